"""Resources (stored files) and assets (what an account calls its own things)."""

import re
from dataclasses import dataclass
from datetime import datetime

from servicekit.errors import Invalid

RESOURCE_KINDS = ("image", "video", "audio", "file")
ASSET_KINDS = ("image", "video", "audio", "text", "entity")
MAX_CATEGORY_LENGTH = 80
MAX_TITLE_LENGTH = 200
MAX_REQUEST_ID_LENGTH = 256

_ASSET_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Probe:
    """What the bytes of a file say that it is; pixels for images only."""

    mime_type: str
    width: int | None = None
    height: int | None = None


@dataclass(frozen=True)
class Resource:
    """A stored file of an account."""

    resource_id: str
    kind: str
    mime_type: str
    size_bytes: int
    sha256: str
    width: int | None
    height: int | None
    created_at: datetime


@dataclass(frozen=True)
class Draft:
    """An asset as its owner wants it. `version` is the one that was read, 0 creates."""

    asset_id: str
    kind: str
    category: str
    title: str
    resource_id: str | None
    version: int

    def __post_init__(self) -> None:
        if not _ASSET_ID.fullmatch(self.asset_id):
            raise Invalid("An asset id is 1 to 80 of letters, digits, - and _.", path="id")
        if self.kind not in ASSET_KINDS:
            raise Invalid(f"An asset is one of {', '.join(ASSET_KINDS)}.", path="kind")
        if len(self.category) > MAX_CATEGORY_LENGTH:
            raise Invalid(f"At most {MAX_CATEGORY_LENGTH} characters.", path="category")
        if len(self.title) > MAX_TITLE_LENGTH:
            raise Invalid(f"At most {MAX_TITLE_LENGTH} characters.", path="title")
        if self.version < 0:
            raise Invalid("A version is not negative.", path="version")


@dataclass(frozen=True)
class Asset:
    """A stored asset; `key` grows with each creation."""

    key: int
    asset_id: str
    kind: str
    category: str
    title: str
    resource_id: str | None
    version: int
    created_at: datetime
    updated_at: datetime

    def is_result_of(self, draft: Draft) -> bool:
        """Whether writing the draft gave just this."""
        return self.version == draft.version + 1 and (
            self.kind,
            self.category,
            self.title,
            self.resource_id,
        ) == (draft.kind, draft.category, draft.title, draft.resource_id)


def check_resource(kind: str, sha256: str, request_id: str) -> None:
    """Raises `Invalid` unless these can be those of a resource."""
    if kind not in RESOURCE_KINDS:
        raise Invalid(f"A resource is one of {', '.join(RESOURCE_KINDS)}.", path="kind")
    if not _SHA256.fullmatch(sha256):
        raise Invalid("A digest is 64 hex digits.", path="sha256")
    if not 0 < len(request_id) <= MAX_REQUEST_ID_LENGTH:
        raise Invalid(
            f"A request id has 1 to {MAX_REQUEST_ID_LENGTH} characters.", path="requestId"
        )


def check_kind(kind: str, probe: Probe) -> None:
    """Raises `Invalid` unless a file of this type can be a resource of the kind."""
    family = probe.mime_type.partition("/")[0]
    if kind not in ("file", family):
        raise Invalid(f"The file is {probe.mime_type}, not {kind}.", path="kind")
