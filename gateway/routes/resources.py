"""Resources (stored files) and assets (what an account calls its own things)."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from gesso.assets.v1 import assets_pb2
from gesso.assets.v1.assets_pb2_grpc import AssetsServiceStub
from msgspec import Meta
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message

from gateway import ranges
from gateway.endpoints import Answer, Call, Input, Media, NoQuery, Output, PageQuery, endpoint
from gateway.failures import RequestTimeout, TooLarge, UnsupportedMediaType
from servicekit.client import Client
from servicekit.errors import Invalid
from servicekit.objects import CHUNK_BYTES, Objects
from servicekit.times import rfc3339, time_from_timestamp

MAX_UPLOAD_BYTES = 32 * 1024 * 1024
# At 64 KiB a second the longest file takes nine minutes.
UPLOAD_SECONDS = 600.0
# What a multipart body has beside the file.
_ENVELOPE_BYTES = 16 * 1024
# Shown in place; everything else is only offered for download, since it could run as a page.
_SHOWN = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/avif", "video/", "audio/")


class ResourceView(Output, frozen=True):
    """A stored file."""

    id: str
    kind: str
    mime_type: str
    size_bytes: int
    sha256: str
    created_at: str
    width: int | None = None
    height: int | None = None


class AssetDraft(Input, frozen=True):
    """An asset as it shall be. `version` is the one that was read, 0 creates."""

    kind: str
    title: str
    version: Annotated[int, Meta(ge=0, le=2**63 - 2)]
    category: str = ""
    resource_id: str | None = None


class AssetView(Output, frozen=True):
    """An asset."""

    id: str
    kind: str
    category: str
    title: str
    version: int
    created_at: str
    updated_at: str
    resource_id: str | None = None


class Assets(Output, frozen=True):
    """A page of assets, newest first."""

    assets: list[AssetView]
    next_page_token: str | None = None


class ResourceRoutes:
    """Files and assets of who is signed in."""

    def __init__(self, canvas: Client, objects: Objects) -> None:
        self._canvas = canvas
        self._stub = AssetsServiceStub(canvas.channel)
        self._objects = objects

    @endpoint(
        "POST",
        "/api/resources",
        tag="resources",
        body=Request,
        max_body_bytes=MAX_UPLOAD_BYTES,
        answers={201: ResourceView},
        refusals=("too_large", "unsupported_media_type", "idempotency_key_reused"),
        idempotent_by_key=True,
    )
    async def upload(self, call: Call[None, NoQuery]) -> Answer:
        """Store a file: `multipart/form-data` with `file` and `kind` (image, video, audio, file).

        Its type is told from its bytes. At most 32 MiB.
        """
        async with _form(call.request) as form:
            file, kind = _parts(form)
            stored = await self._objects.put_stream(_chunks(file))
        created = await self._canvas.call(
            self._stub.CreateResource,
            assets_pb2.CreateResourceRequest(
                # Apart from those of workers, which are known to who has the job.
                request_id=f"upload:{call.idempotency_key or secrets.token_hex(16)}",
                sha256=stored.sha256,
                kind=kind,
            ),
            call.behalf,
        )
        headers = {"Idempotent-Replayed": "true"} if created.replayed else {}
        return Answer(_view_of_resource(created.resource), 201, headers)

    @endpoint(
        "GET",
        "/api/resources/{resource_id}",
        tag="resources",
        answers={200: ResourceView},
        refusals=("not_found",),
    )
    async def resource(self, call: Call[None, NoQuery]) -> Answer:
        """Say what a file is."""
        return Answer(_view_of_resource(await self._resource(call)))

    @endpoint(
        "GET",
        "/api/resources/{resource_id}/file",
        tag="resources",
        answers={
            200: Media("application/octet-stream", "The file, in its own type."),
            206: Media("application/octet-stream", "The part that `Range` asks for."),
            304: None,
        },
        refusals=("not_found", "range_not_satisfiable"),
    )
    async def file(self, call: Call[None, NoQuery]) -> Answer | Response:
        """Read a file, or a part of it by `Range`."""
        resource = await self._resource(call)
        etag = f'"{resource.sha256}"'
        headers = {
            "ETag": etag,
            "Cache-Control": "private, max-age=31536000, immutable",
            "Accept-Ranges": "bytes",
            "Content-Security-Policy": "sandbox; default-src 'none'",
            "Content-Disposition": _disposition(resource.mime_type),
        }
        asked = call.request.headers
        if etag in asked.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        part = None
        if asked.get("if-range", etag) == etag:
            part = ranges.wanted(asked.get("range"), resource.size_bytes)
        start, end = part or (0, resource.size_bytes)
        headers["Content-Length"] = str(end - start)
        if part is not None:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{resource.size_bytes}"
        status = 206 if part is not None else 200
        if call.request.method == "HEAD":
            return Response(status_code=status, headers=headers, media_type=resource.mime_type)
        content = self._objects.read(resource.sha256, start, end)
        first = await anext(content, b"")
        return StreamingResponse(
            _joined(first, content), status, headers, media_type=resource.mime_type
        )

    @endpoint(
        "PUT",
        "/api/assets/{asset_id}",
        tag="assets",
        body=AssetDraft,
        answers={200: AssetView},
        refusals=("asset_version_conflict", "structured_storage_exceeded"),
    )
    async def put_asset(self, call: Call[AssetDraft, NoQuery]) -> Answer:
        """Create an asset (`version` 0) or replace the version that was read."""
        draft = call.body
        request = assets_pb2.PutAssetRequest(
            asset=assets_pb2.Asset(
                asset_id=call.path["asset_id"],
                kind=draft.kind,
                category=draft.category,
                title=draft.title,
                resource_id=draft.resource_id,
                version=draft.version,
            )
        )
        written = await self._canvas.call(self._stub.PutAsset, request, call.behalf)
        return Answer(_view_of_asset(written.asset))

    @endpoint("GET", "/api/assets", tag="assets", query=PageQuery, answers={200: Assets})
    async def assets(self, call: Call[None, PageQuery]) -> Answer:
        """List assets, newest first."""
        request = assets_pb2.ListAssetsRequest(
            page_size=call.query.page_size, page_token=call.query.page_token
        )
        page = await self._canvas.call(self._stub.ListAssets, request, call.behalf)
        return Answer(
            Assets(
                assets=[_view_of_asset(asset) for asset in page.assets],
                next_page_token=page.next_page_token or None,
            )
        )

    @endpoint(
        "GET",
        "/api/assets/{asset_id}",
        tag="assets",
        answers={200: AssetView},
        refusals=("not_found",),
    )
    async def asset(self, call: Call[None, NoQuery]) -> Answer:
        """Read an asset."""
        request = assets_pb2.GetAssetRequest(asset_id=call.path["asset_id"])
        found = await self._canvas.call(self._stub.GetAsset, request, call.behalf)
        return Answer(_view_of_asset(found.asset))

    @endpoint(
        "DELETE",
        "/api/assets/{asset_id}",
        tag="assets",
        answers={204: None},
        refusals=("not_found",),
    )
    async def delete_asset(self, call: Call[None, NoQuery]) -> Answer:
        """Delete an asset; its file stays."""
        request = assets_pb2.DeleteAssetRequest(asset_id=call.path["asset_id"])
        await self._canvas.call(self._stub.DeleteAsset, request, call.behalf)
        return Answer(status=204)

    async def _resource(self, call: Call[None, NoQuery]) -> assets_pb2.Resource:
        request = assets_pb2.GetResourceRequest(resource_id=call.path["resource_id"])
        found = await self._canvas.call(self._stub.GetResource, request, call.behalf)
        return found.resource


@asynccontextmanager
async def _form(request: Request) -> AsyncIterator[FormData]:
    """The parts of a multipart body, whose files are closed at the end.

    Raises `UnsupportedMediaType`, `TooLarge`, `RequestTimeout`, and `Invalid` for a malformed one.
    """
    media_type, parameters = parse_options_header(request.headers.get("content-type"))
    if media_type != b"multipart/form-data":
        raise UnsupportedMediaType("multipart/form-data")
    # Python has codecs that give anything.
    if parameters.get(b"charset", b"utf-8").lower() != b"utf-8":
        raise UnsupportedMediaType("multipart/form-data in UTF-8")
    limited = _limited(request, MAX_UPLOAD_BYTES + _ENVELOPE_BYTES)
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            form = await limited.form(max_files=1, max_fields=4)
    except TimeoutError:
        raise RequestTimeout from None
    except HTTPException as error:
        raise Invalid(f"The multipart body is malformed: {error.detail}", path="file") from None
    try:
        yield form
    finally:
        await form.close()


def _limited(request: Request, limit: int) -> Request:
    """The same request, whose body raises `TooLarge` where it becomes longer than `limit`."""
    if int(request.headers.get("content-length") or 0) > limit:
        raise TooLarge(MAX_UPLOAD_BYTES)
    size = 0

    async def receive() -> Message:
        nonlocal size
        message = await request.receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise TooLarge(MAX_UPLOAD_BYTES)
        return message

    return Request(request.scope, receive)


def _parts(form: FormData) -> tuple[UploadFile, str]:
    file, kind = form.get("file"), form.get("kind")
    if not isinstance(file, UploadFile):
        raise Invalid("The part `file` is missing.", path="file")
    if not isinstance(kind, str):
        raise Invalid("The part `kind` is missing.", path="kind")
    if (file.size or 0) > MAX_UPLOAD_BYTES:
        raise TooLarge(MAX_UPLOAD_BYTES)
    return file, kind


async def _chunks(file: UploadFile) -> AsyncIterator[bytes]:
    while chunk := await file.read(CHUNK_BYTES):
        yield chunk


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


def _disposition(mime_type: str) -> str:
    return "inline" if mime_type.startswith(_SHOWN) else "attachment"


def _view_of_resource(resource: assets_pb2.Resource) -> ResourceView:
    return ResourceView(
        id=resource.resource_id,
        kind=resource.kind,
        mime_type=resource.mime_type,
        size_bytes=resource.size_bytes,
        sha256=resource.sha256,
        created_at=rfc3339(time_from_timestamp(resource.create_time)),
        width=resource.width if resource.HasField("width") else None,
        height=resource.height if resource.HasField("height") else None,
    )


def _view_of_asset(asset: assets_pb2.Asset) -> AssetView:
    return AssetView(
        id=asset.asset_id,
        kind=asset.kind,
        category=asset.category,
        title=asset.title,
        version=asset.version,
        created_at=rfc3339(time_from_timestamp(asset.create_time)),
        updated_at=rfc3339(time_from_timestamp(asset.update_time)),
        resource_id=asset.resource_id if asset.HasField("resource_id") else None,
    )
