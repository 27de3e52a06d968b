"""The object store: files kept under the digest of their content, streamed both ways."""

import hashlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from servicekit.errors import NotFound, Unavailable
from servicekit.settings import Settings, setting

CHUNK_BYTES = 256 * 1024


class ObjectSettings(Settings, frozen=True, kw_only=True):
    """Where files are kept."""

    objects_url: Annotated[
        str,
        setting(
            "Where files are kept: file:///folder, s3://bucket/prefix, gs://… or az://…; keys and "
            "regions by the usual variables of those services.",
            example="file:///var/lib/gesso/objects",
            shared=True,
            pattern="^(file|s3|gs|az)://",
        ),
    ]


@dataclass(frozen=True)
class Stored:
    """A file in the store: its digest in hex, its length in bytes."""

    sha256: str
    size_bytes: int


class Objects:
    """Files by the SHA-256 of their content. Storing the same content again changes nothing."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @classmethod
    def at(cls, url: str) -> Self:
        """The store at a URL; a local folder is made if it is not there."""
        parts = urlsplit(url)
        if parts.scheme == "file":
            folder = Path(unquote(parts.path))
            folder.mkdir(parents=True, exist_ok=True)
            return cls(LocalStore(folder))
        return cls(from_url(url))

    async def put(self, content: bytes) -> Stored:
        """Stores content that is in memory."""
        stored = Stored(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
        try:
            await obstore.put_async(self._store, _key(stored.sha256), content)
        except (BaseError, OSError) as error:
            raise _unavailable() from error
        return stored

    async def put_stream(self, chunks: AsyncIterator[bytes]) -> Stored:
        """Stores content as it comes. What `chunks` raises ends it, with nothing stored."""
        digest = hashlib.sha256()
        size = 0

        async def counted() -> AsyncIterator[bytes]:
            nonlocal size
            async for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                yield chunk

        staging = f"staging/{secrets.token_hex(16)}"
        try:
            await obstore.put_async(self._store, staging, counted(), chunk_size=8 * 1024 * 1024)
            key = _key(digest.hexdigest())
            await obstore.rename_async(self._store, staging, key, overwrite=True)
        except (BaseError, OSError) as error:
            raise _unavailable() from error
        return Stored(sha256=digest.hexdigest(), size_bytes=size)

    async def size(self, sha256: str) -> int:
        """The length in bytes of what is stored. Raises `NotFound`."""
        try:
            meta = await obstore.head_async(self._store, _key(sha256))
        except FileNotFoundError:
            raise NotFound("object") from None
        except (BaseError, OSError) as error:
            raise _unavailable() from error
        return meta["size"]

    async def read(self, sha256: str, start: int, end: int) -> AsyncIterator[bytes]:
        """The bytes from `start` up to but not including `end`, in chunks. Raises `NotFound`."""
        if start == end:
            return
        try:
            result = await obstore.get_async(
                self._store, _key(sha256), options={"range": (start, end)}
            )
            async for chunk in result.stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)
        except FileNotFoundError:
            raise NotFound("object") from None
        except (BaseError, OSError) as error:
            raise _unavailable() from error

    async def check(self) -> None:
        """Raises `Unavailable` if the store does not answer."""
        try:
            await obstore.head_async(self._store, "probe")
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            raise _unavailable() from error


def _key(sha256: str) -> str:
    return f"sha256/{sha256[:2]}/{sha256[2:]}"


def _unavailable() -> Unavailable:
    return Unavailable("The file store does not answer; try again.")
