"""Which files and assets a node names, and whether they are there."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from services.canvas.domain.failures import MediaAssetsPending

PREFIX = "resource:"


@dataclass(frozen=True)
class Reference:
    """An object in a node's metadata that names a resource, an asset, or both as a pair."""

    path: str
    resource_id: str | None
    asset_id: str | None


@dataclass(frozen=True)
class Known:
    """What the account has of what was asked for: resources, and the resource of each asset."""

    resources: frozenset[str]
    assets: Mapping[str, str | None]


NOTHING_KNOWN = Known(resources=frozenset(), assets={})


def may_name(text: str) -> bool:
    """Whether the JSON text of a node can name media at all: a quick look."""
    return '"storageKey"' in text or '"assetId"' in text


def references(node: dict[str, Any]) -> list[Reference]:
    """What a node names, nested objects too (CV20). `content` is for show and names nothing."""
    return list(_references(node.get("metadata"), "metadata"))


def named(values: Iterable[Any]) -> tuple[set[str], set[str]]:
    """Every id of a resource and of an asset that JSON values name, in patches by path too."""
    resources: set[str] = set()
    assets: set[str] = set()
    for key, value in _members(list(values)):
        last = key.rpartition(".")[2]
        if last == "storageKey" and _resource_id(value) is not None:
            resources.add(value.removeprefix(PREFIX))
        elif last == "assetId" and isinstance(value, str) and value:
            assets.add(value)
    return resources, assets


def check_media(nodes: Iterable[dict[str, Any]], known: Known) -> None:
    """Raises `MediaAssetsPending` with all that is not there or does not belong together."""
    missing = [
        {"nodeId": node["id"], "path": reference.path}
        | ({"resourceId": reference.resource_id} if reference.resource_id else {})
        | ({"assetId": reference.asset_id} if reference.asset_id else {})
        for node in nodes
        for reference in references(node)
        if not _is_there(reference, known)
    ]
    if missing:
        raise MediaAssetsPending(missing)


def _is_there(reference: Reference, known: Known) -> bool:
    resource_id, asset_id = reference.resource_id, reference.asset_id
    if resource_id is not None and resource_id not in known.resources:
        return False
    if asset_id is not None and asset_id not in known.assets:
        return False
    if resource_id is None or asset_id is None:
        return True
    return known.assets[asset_id] == resource_id


def _references(value: Any, path: str) -> Iterator[Reference]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _references(item, f"{path}.{index}")
    if not isinstance(value, dict):
        return
    resource_id = _resource_id(value.get("storageKey"))
    asset_id = value.get("assetId")
    asset_id = asset_id if isinstance(asset_id, str) and asset_id else None
    if resource_id is not None or asset_id is not None:
        yield Reference(path, resource_id, asset_id)
    for key, member in value.items():
        yield from _references(member, f"{path}.{key}")


def _resource_id(storage_key: Any) -> str | None:
    if isinstance(storage_key, str) and storage_key.startswith(PREFIX):
        return storage_key.removeprefix(PREFIX)
    return None


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, member in value.items():
            yield key, member
            yield from _members(member)
    elif isinstance(value, list):
        for item in value:
            yield from _members(item)
