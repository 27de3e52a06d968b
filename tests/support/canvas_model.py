"""A canvas as a person would keep it, and edits to try on it."""

import copy
from typing import Any

from hypothesis import strategies as st

from services.canvas.domain.edits import (
    CreateConnection,
    CreateNode,
    Edit,
    PatchNode,
    RemoveConnection,
    RemoveNode,
    SetField,
    UpdateConnection,
    ends_of,
)
from services.canvas.domain.values import equal

IDS = st.sampled_from(["a", "b", "c"])
LINKS = st.sampled_from(["l", "m"])
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x", 1.5])


class Model:
    """A canvas as a person would keep it: lists of whole objects."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.links: list[dict[str, Any]] = []
        self.fields: dict[str, Any] = {"title": "T"}

    def apply(self, edit: Edit) -> bool:
        """Applies an edit; whether it can be."""
        match edit:
            case CreateNode(node=node):
                if self._find(self.nodes, node["id"]) is not None:
                    return False
                self.nodes.append(node)
            case PatchNode(node_id=node_id, patch=patch, before=before):
                at = self._find(self.nodes, node_id)
                if at is None:
                    return False
                node = copy.deepcopy(self.nodes[at])
                if any(
                    not equal(_get(node, path), before.get(path)) for path in {**patch, **before}
                ):
                    return False
                for path, value in patch.items():
                    _set(node, path, value)
                self.nodes[at] = node
            case RemoveNode(node_id=node_id, expected=expected):
                at = self._find(self.nodes, node_id)
                if at is None or not equal(self.nodes[at], expected):
                    return False
                del self.nodes[at]
                self.links = [link for link in self.links if node_id not in ends_of(link)]
            case CreateConnection(connection=link):
                if self._find(self.links, link["id"]) is not None or not self._joins(link):
                    return False
                self.links.append(link)
            case UpdateConnection(connection_id=link_id, expected=expected, connection=link):
                at = self._find(self.links, link_id)
                if at is None or not equal(self.links[at], expected) or not self._joins(link):
                    return False
                self.links[at] = link
            case RemoveConnection(connection_id=link_id, expected=expected):
                at = self._find(self.links, link_id)
                if at is None or not equal(self.links[at], expected):
                    return False
                del self.links[at]
            case SetField(name=name, value=value, before=before):
                if not equal(self.fields.get(name), before):
                    return False
                self.fields = {key: it for key, it in self.fields.items() if key != name}
                if value is not None:
                    self.fields[name] = value
        return True

    def _joins(self, link: dict[str, Any]) -> bool:
        return all(self._find(self.nodes, end) is not None for end in ends_of(link))

    @staticmethod
    def _find(items: list[dict[str, Any]], item_id: str) -> int | None:
        return next((at for at, item in enumerate(items) if item["id"] == item_id), None)


def _get(node: dict[str, Any], path: str) -> Any:
    here: Any = node
    for name in path.split("."):
        here = (here or {}).get(name)
    return here


def _set(node: dict[str, Any], path: str, value: Any) -> None:
    *outer, last = path.split(".")
    for name in outer:
        node[name] = node.get(name) or {}
        node = node[name]
    node[last] = value


PATHS = st.sampled_from(["title", "metadata.prompt", "metadata.deep.er"])


@st.composite
def edits(draw: st.DrawFn) -> Edit:
    node_id, other, link_id = draw(IDS), draw(IDS), draw(LINKS)
    node = {"id": node_id, "type": "t", "title": draw(SCALARS)}
    link = {"id": link_id, "fromNodeId": node_id, "toNodeId": other}
    paths = draw(st.lists(PATHS, unique=True, min_size=1))
    choices: list[Edit] = [
        CreateNode(node),
        PatchNode(
            node_id,
            {path: draw(SCALARS) for path in paths},
            {path: draw(SCALARS) for path in paths if draw(st.booleans())},
        ),
        RemoveNode(node_id, node),
        CreateConnection(link),
        UpdateConnection(link_id, link, {**link, "label": draw(SCALARS)}),
        RemoveConnection(link_id, link),
        SetField("timeline", draw(SCALARS), draw(SCALARS)),
    ]
    return draw(st.sampled_from(choices))
