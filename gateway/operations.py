"""The eight operations of a canvas change: JSON into messages."""

from collections.abc import Callable
from typing import Any

from gesso.canvas.v1 import canvas_pb2 as pb

from gateway.failures import InvalidOperation
from servicekit.strictjson import dumps

_ANY: dict[str, Any] = {}
_TEXT = {"type": "string"}
_OBJECT = {"type": "object"}


def operations_from_json(values: list[Any]) -> list[pb.Operation]:
    """The operations of a request as messages. Raises `InvalidOperation`, saying which."""
    operations: list[pb.Operation] = []
    for index, value in enumerate(values):
        try:
            operations.append(_operation(value))
        except InvalidOperation as refused:
            refused.facts["operation_index"] = index
            raise
    return operations


def _operation(value: Any) -> pb.Operation:
    if not isinstance(value, dict):
        raise InvalidOperation("An operation is a JSON object.")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidOperation(f"The type is one of {', '.join(_KINDS)}.", path="type")
    members, optional, build = _KINDS[kind]
    unknown = value.keys() - members.keys() - {"type"}
    if unknown:
        raise InvalidOperation(f"{kind} has no member {min(unknown)[:80]!r}.", path=min(unknown))
    for name, schema in members.items():
        if name not in value and name not in optional:
            raise InvalidOperation(f"{kind} needs the member {name!r}.", path=name)
        if schema is _TEXT and not isinstance(value[name], str):
            raise InvalidOperation(f"{name} is text.", path=name)
        if schema is _OBJECT and not isinstance(value.get(name, {}), dict):
            raise InvalidOperation(f"{name} is a JSON object.", path=name)
    return build(value)


def _json(value: Any) -> bytes:
    return dumps(value).encode()


def _create_canvas(value: dict[str, Any]) -> pb.Operation:
    return pb.Operation(create_canvas=pb.CreateCanvas(canvas=_json(value["canvas"])))


def _create_node(value: dict[str, Any]) -> pb.Operation:
    return pb.Operation(create_node=pb.CreateNode(node=_json(value["node"])))


def _patch_node(value: dict[str, Any]) -> pb.Operation:
    return pb.Operation(
        patch_node=pb.PatchNode(
            id=value["id"],
            patch={path: _json(target) for path, target in value["patch"].items()},
            before={path: _json(seen) for path, seen in value.get("before", {}).items()},
        )
    )


def _remove_node(value: dict[str, Any]) -> pb.Operation:
    return pb.Operation(
        remove_node=pb.RemoveNode(id=value["id"], expected=_json(value["expected"]))
    )


def _create_connection(value: dict[str, Any]) -> pb.Operation:
    connection = _json(value["connection"])
    return pb.Operation(create_connection=pb.CreateConnection(connection=connection))


def _update_connection(value: dict[str, Any]) -> pb.Operation:
    return pb.Operation(
        update_connection=pb.UpdateConnection(
            id=value["id"],
            expected=_json(value["expected"]),
            connection=_json(value["connection"]),
        )
    )


def _remove_connection(value: dict[str, Any]) -> pb.Operation:
    return pb.Operation(
        remove_connection=pb.RemoveConnection(id=value["id"], expected=_json(value["expected"]))
    )


def _set_field(value: dict[str, Any]) -> pb.Operation:
    # Early clients leave out what is null.
    return pb.Operation(
        set_field=pb.SetField(
            field=value["field"],
            value=_json(value.get("value")),
            before_value=_json(value.get("beforeValue")),
        )
    )


_Members = dict[str, dict[str, Any]]
_Kind = tuple[_Members, frozenset[str], Callable[[dict[str, Any]], pb.Operation]]
_NONE: frozenset[str] = frozenset()

# The members of each operation, those that may be left out, and what makes the message.
_KINDS: dict[str, _Kind] = {
    "create_canvas": ({"canvas": _OBJECT}, _NONE, _create_canvas),
    "create_node": ({"node": _OBJECT}, _NONE, _create_node),
    "patch_node": (
        {"id": _TEXT, "patch": _OBJECT, "before": _OBJECT},
        frozenset({"before"}),
        _patch_node,
    ),
    "remove_node": ({"id": _TEXT, "expected": _OBJECT}, _NONE, _remove_node),
    "create_connection": ({"connection": _OBJECT}, _NONE, _create_connection),
    "update_connection": (
        {"id": _TEXT, "expected": _OBJECT, "connection": _OBJECT},
        _NONE,
        _update_connection,
    ),
    "remove_connection": ({"id": _TEXT, "expected": _OBJECT}, _NONE, _remove_connection),
    "set_field": (
        {"field": _TEXT, "value": _ANY, "beforeValue": _ANY},
        frozenset({"value", "beforeValue"}),
        _set_field,
    ),
}

OPERATION_SCHEMA: dict[str, Any] = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"type": {"const": kind}, **members},
            "required": ["type", *(name for name in members if name not in optional)],
            "additionalProperties": False,
        }
        for kind, (members, optional, _) in _KINDS.items()
    ]
}
