"""Reads settings from environment variables, and says plainly what is wrong with them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

PREFIX = "GESSO_"

# A host:port.
ADDRESS = (
    r"^[^\s:]+:([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$"
)
_WORDS = {
    "`int`": "a whole number",
    "`float`": "a number",
    "`str`": "text",
    "`bool`": "true or false",
}


class WrongSettings(Exception):  # noqa: N818 - facts are named without a suffix
    """Settings that a process cannot start with; one line for each."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class CannotListen(WrongSettings):
    """The address to listen on is taken, or not one of this machine."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__([f"cannot listen on {address}: {why}"])


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all settings.

    Each field is a variable, `Annotated` with `setting(...)`, or a group of settings.
    """


S = TypeVar("S", bound=Settings)


def setting(
    description: str, *, example: str, shared: bool = False, secret: bool = False, **limits: Any
) -> Meta:
    """Describes a setting for people and the loader.

    `shared` settings are read from `GESSO_<NAME>` when `GESSO_<SERVICE>_<NAME>` is not set, so
    that one variable serves all services. The value of a `secret` is never shown. `limits` are
    those of `msgspec.Meta`, e.g. `ge=1`.
    """
    return Meta(
        description=description,
        examples=[example],
        extra={"shared": shared, "secret": secret},
        **limits,
    )


@dataclass(frozen=True)
class Variable:
    """One environment variable of the documented table."""

    name: str
    description: str
    example: str
    required: bool
    default: str | None
    shared: bool
    secret: bool


def variables(settings: type[Settings], service: str) -> list[Variable]:
    """The variables that a settings class reads, in order; `service` is e.g. `canvas`."""
    found: list[Variable] = []
    for field in msgspec.structs.fields(settings):
        group = _group_of(settings, field.name)
        if group is not None:
            found += variables(group, service)
            continue
        meta = _meta_of(settings, field.name)
        found.append(
            Variable(
                name=_name(None if _is(meta, "shared") else service, field.name),
                description=meta.description or "",
                example=str((meta.examples or [""])[0]),
                required=field.required,
                default=None if field.required or field.default is None else str(field.default),
                shared=_is(meta, "shared"),
                secret=_is(meta, "secret"),
            )
        )
    return found


def load(settings: type[S], service: str, environ: Mapping[str, str]) -> S:
    """The settings of a service.

    Raises `WrongSettings` with one line for each variable that is missing or wrong: which, what
    is wrong with it, and an example.
    """
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for field in msgspec.structs.fields(settings):
        try:
            group = _group_of(settings, field.name)
            if group is not None:
                values[field.name] = load(group, service, environ)
            else:
                values |= _read(settings, field, service, environ)
        except WrongSettings as error:
            wrong += error.lines
    if wrong:
        raise WrongSettings(wrong)
    return settings(**values)


def _read(
    settings: type[Settings],
    field: msgspec.structs.FieldInfo,
    service: str,
    environ: Mapping[str, str],
) -> dict[str, Any]:
    """The value of one field by its name, nothing if its default stands."""
    meta = _meta_of(settings, field.name)
    name, shared_name = _name(service, field.name), _name(None, field.name)
    if name not in environ and _is(meta, "shared"):
        name = shared_name
    advice = f"{meta.description} Example: {name}={(meta.examples or [''])[0]}"
    text = environ.get(name)
    if text is None:
        if field.required:
            raise WrongSettings([f"{name} is not set: {advice}"])
        return {}
    try:
        return {
            field.name: msgspec.convert(text, _hint_when_set(settings, field.name), strict=False)
        }
    except msgspec.ValidationError as error:
        shown = "the value" if _is(meta, "secret") else repr(text)
        raise WrongSettings([f"{name}: {shown} is wrong: {_plain(str(error))}. {advice}"]) from None


def _name(service: str | None, field: str) -> str:
    middle = f"{service.replace('-', '_').upper()}_" if service else ""
    return f"{PREFIX}{middle}{field.upper()}"


def _hint_of(settings: type[Settings], field: str) -> Any:
    return get_type_hints(settings, include_extras=True)[field]


def _hint_when_set(settings: type[Settings], field: str) -> Any:
    """The hint without None: what is set is text, and limits are for text alone."""
    hint, *about = get_args(_hint_of(settings, field))
    if NoneType in get_args(hint):
        (hint,) = (kind for kind in get_args(hint) if kind is not NoneType)
    return Annotated[hint, *about]


def _group_of(settings: type[Settings], field: str) -> type[Settings] | None:
    """The settings class of a field that is a group of settings itself."""
    hint = _hint_of(settings, field)
    return hint if isinstance(hint, type) and issubclass(hint, Settings) else None


def _meta_of(settings: type[Settings], field: str) -> Meta:
    hint = _hint_of(settings, field)
    return next(argument for argument in get_args(hint)[1:] if isinstance(argument, Meta))


def _is(meta: Meta, flag: str) -> bool:
    return bool((meta.extra or {})[flag])


def _plain(message: str) -> str:
    for technical, word in _WORDS.items():
        message = message.replace(technical, word)
    message = re.sub(r", got `\w+`", "", message)
    message = re.sub(r" matching regex .*", " of another form", message)
    return message[:1].lower() + message[1:]


class ServiceSettings(Settings, frozen=True, kw_only=True):
    """What every process of the suite must know."""

    internal_tokens: Annotated[
        str,
        setting(
            "One or two secrets by which the suite's processes know one another, each of 16 "
            "characters or more, separated by a comma: both are accepted, the first is shown.",
            example="9f3c2b71d8e04a56,5b0e9d1c7a3f4e82",
            shared=True,
            secret=True,
            pattern=r"^[^,\s]{16,}(,[^,\s]{16,})?$",
        ),
    ]
    log_level: Annotated[
        str,
        setting(
            "What is logged: debug, info, warning or error.",
            example="info",
            shared=True,
            pattern="^(debug|info|warning|error)$",
        ),
    ] = "info"
    metrics_listen: Annotated[
        str | None,
        setting(
            "host:port of the Prometheus metrics; none if not set.",
            example="127.0.0.1:9100",
            pattern=ADDRESS,
        ),
    ] = None
    drain_seconds: Annotated[
        float,
        setting(
            "How long work in flight may take to end after SIGTERM.",
            example="10",
            shared=True,
            ge=0,
            le=7_200,
        ),
    ] = 10

    def tokens(self) -> tuple[str, ...]:
        """The internal tokens, the one to show first."""
        return tuple(self.internal_tokens.split(","))


class ServerSettings(ServiceSettings, frozen=True, kw_only=True):
    """What a process that answers calls must know."""

    listen: Annotated[
        str,
        setting(
            "host:port to listen on; port 0 picks one.",
            example="127.0.0.1:50051",
            pattern=ADDRESS,
        ),
    ]


def host_and_port(listen: str) -> tuple[str, int]:
    """The two parts of a `host:port`."""
    host, _, port = listen.rpartition(":")
    return host, int(port)
