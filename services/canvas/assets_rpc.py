"""Speaks gesso.assets.v1: messages into values and back."""

from gesso.assets.v1 import assets_pb2
from gesso.assets.v1.assets_pb2_grpc import AssetsServiceServicer

from servicekit.identity import Context, account_of
from servicekit.pages import page_of, page_size, place_from_token
from servicekit.times import timestamp_from_time
from services.canvas.assets import AssetsService
from services.canvas.domain.assets import Asset, Draft, Resource


class AssetsRpc(AssetsServiceServicer):
    """The resources and assets as gRPC."""

    def __init__(self, service: AssetsService) -> None:
        self._service = service

    async def CreateResource(
        self, request: assets_pb2.CreateResourceRequest, context: Context
    ) -> assets_pb2.CreateResourceResponse:
        """See assets.proto."""
        resource, replayed = await self._service.add_resource(
            account_of(context), request.request_id, kind=request.kind, sha256=request.sha256
        )
        return assets_pb2.CreateResourceResponse(
            resource=proto_from_resource(resource), replayed=replayed
        )

    async def GetResource(
        self, request: assets_pb2.GetResourceRequest, context: Context
    ) -> assets_pb2.GetResourceResponse:
        """See assets.proto."""
        resource = await self._service.resource(account_of(context), request.resource_id)
        return assets_pb2.GetResourceResponse(resource=proto_from_resource(resource))

    async def PutAsset(
        self, request: assets_pb2.PutAssetRequest, context: Context
    ) -> assets_pb2.PutAssetResponse:
        """See assets.proto."""
        asset = request.asset
        draft = Draft(
            asset_id=asset.asset_id,
            kind=asset.kind,
            category=asset.category,
            title=asset.title,
            resource_id=asset.resource_id if asset.HasField("resource_id") else None,
            version=asset.version,
        )
        written = await self._service.write(account_of(context), draft)
        return assets_pb2.PutAssetResponse(asset=proto_from_asset(written))

    async def GetAsset(
        self, request: assets_pb2.GetAssetRequest, context: Context
    ) -> assets_pb2.GetAssetResponse:
        """See assets.proto."""
        asset = await self._service.asset(account_of(context), request.asset_id)
        return assets_pb2.GetAssetResponse(asset=proto_from_asset(asset))

    async def ListAssets(
        self, request: assets_pb2.ListAssetsRequest, context: Context
    ) -> assets_pb2.ListAssetsResponse:
        """See assets.proto."""
        size = page_size(request.page_size)
        (before,) = place_from_token(request.page_token)
        found = await self._service.page(account_of(context), before, size + 1)
        shown, next_page_token = page_of(found, size, lambda asset: (asset.key,))
        return assets_pb2.ListAssetsResponse(
            assets=map(proto_from_asset, shown), next_page_token=next_page_token
        )

    async def DeleteAsset(
        self, request: assets_pb2.DeleteAssetRequest, context: Context
    ) -> assets_pb2.DeleteAssetResponse:
        """See assets.proto."""
        await self._service.delete(account_of(context), request.asset_id)
        return assets_pb2.DeleteAssetResponse()


def proto_from_resource(resource: Resource) -> assets_pb2.Resource:
    """A resource as a message."""
    return assets_pb2.Resource(
        resource_id=resource.resource_id,
        kind=resource.kind,
        mime_type=resource.mime_type,
        size_bytes=resource.size_bytes,
        sha256=resource.sha256,
        width=resource.width,
        height=resource.height,
        create_time=timestamp_from_time(resource.created_at),
    )


def proto_from_asset(asset: Asset) -> assets_pb2.Asset:
    """An asset as a message."""
    return assets_pb2.Asset(
        asset_id=asset.asset_id,
        kind=asset.kind,
        category=asset.category,
        title=asset.title,
        resource_id=asset.resource_id,
        version=asset.version,
        create_time=timestamp_from_time(asset.created_at),
        update_time=timestamp_from_time(asset.updated_at),
    )
