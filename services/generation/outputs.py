"""Keeps what was made: its bytes, a resource, and an asset that names it."""

from gesso.assets.v1 import assets_pb2
from gesso.assets.v1.assets_pb2_grpc import AssetsServiceStub

from servicekit.client import Client
from servicekit.errors import Conflict, NotFound
from servicekit.identity import Behalf
from servicekit.objects import Objects
from services.generation.domain.jobs import ClaimedJob, Output

CATEGORY = "generated"


class Outputs:
    """Where pictures are kept, each for the account of its job."""

    def __init__(self, objects: Objects, client: Client) -> None:
        self._objects = objects
        self._client = client
        self._stub = AssetsServiceStub(client.channel)

    async def keep_image(self, job: ClaimedJob, number: int, title: str, content: bytes) -> Output:
        """Keeps picture `number` of a job; doing it again changes nothing."""
        stored = await self._objects.put(content)
        behalf = Behalf(account_id=job.account_id)
        created = await self._client.call(
            self._stub.CreateResource,
            assets_pb2.CreateResourceRequest(
                request_id=f"job:{job.job_id}:{number}", sha256=stored.sha256, kind="image"
            ),
            behalf,
        )
        resource = created.resource
        asset = assets_pb2.Asset(
            asset_id=asset_id_of(job.job_id, number),
            kind="image",
            category=CATEGORY,
            title=title,
            resource_id=resource.resource_id,
        )
        try:
            await self._client.call(
                self._stub.PutAsset, assets_pb2.PutAssetRequest(asset=asset), behalf
            )
        except Conflict as conflict:
            # Its owner has renamed what an earlier try of ours put there.
            if conflict.machine_word != "asset_version_conflict":
                raise
        return _output(asset.asset_id, resource)

    async def kept_image(self, job: ClaimedJob, number: int) -> Output | None:
        """Picture `number` of a job that was kept before; None if its asset names none."""
        asset_id = asset_id_of(job.job_id, number)
        behalf = Behalf(account_id=job.account_id)
        try:
            found = await self._client.call(
                self._stub.GetAsset, assets_pb2.GetAssetRequest(asset_id=asset_id), behalf
            )
            request = assets_pb2.GetResourceRequest(resource_id=found.asset.resource_id)
            resource = (await self._client.call(self._stub.GetResource, request, behalf)).resource
        except NotFound:
            return None
        return _output(asset_id, resource) if resource.kind == "image" else None


def asset_id_of(job_id: str, number: int) -> str:
    """The id of the asset that names picture `number` of a job."""
    return f"as_{job_id.removeprefix('extgen-')}-{number}"


def _output(asset_id: str, resource: assets_pb2.Resource) -> Output:
    return Output(
        resource_id=resource.resource_id,
        asset_id=asset_id,
        mime_type=resource.mime_type,
        width=resource.width,
        height=resource.height,
    )
