"""Speaks gesso.presence.v1: messages into values and back."""

import asyncio
from collections.abc import AsyncIterator

from gesso.presence.v1 import presence_pb2
from gesso.presence.v1.presence_pb2_grpc import PresenceServiceServicer

from servicekit.errors import Invalid
from servicekit.identity import Context
from services.presence.domain.rooms import Place
from services.presence.gateways import Gateway, Telling, Update
from services.presence.messages import announcement_from_proto, protos_from_peers
from services.presence.service import PresenceService

MAX_ANNOUNCED = 500


class PresenceRpc(PresenceServiceServicer):
    """Presence as gRPC."""

    def __init__(self, service: PresenceService) -> None:
        self._service = service

    async def Connect(
        self, request_iterator: AsyncIterator[presence_pb2.ConnectRequest], context: Context
    ) -> AsyncIterator[presence_pb2.ConnectResponse]:
        """See presence.proto."""
        with self._service.connected() as gateway:
            # Not a task group: one must not span a yield, and would wrap the failure.
            hearing = asyncio.create_task(_hear(request_iterator, gateway))
            hearing.add_done_callback(lambda _: gateway.end())
            try:
                # Tells the gateway that it is connected, before there is anything to say.
                await context.send_initial_metadata(())
                async for telling in gateway.tellings():
                    yield response_from_telling(telling)
                await hearing
            finally:
                hearing.cancel()

    async def Announce(
        self, request: presence_pb2.AnnounceRequest, _context: Context
    ) -> presence_pb2.AnnounceResponse:
        """See presence.proto."""
        if len(request.invalidations) > MAX_ANNOUNCED:
            raise Invalid(f"At most {MAX_ANNOUNCED} can be announced at once.")
        await self._service.announce(
            [announcement_from_proto(each) for each in request.invalidations]
        )
        return presence_pb2.AnnounceResponse()


def response_from_telling(telling: Telling) -> presence_pb2.ConnectResponse:
    """What a gateway has to hear, as a message."""
    return presence_pb2.ConnectResponse(
        closes=[
            presence_pb2.Close(session_id=each.session_id, code=each.code, reason=each.reason)
            for each in telling.closings
        ],
        rooms=[_proto_from_update(each) for each in telling.updates],
        heartbeat=telling.heartbeat,
    )


def _proto_from_update(update: Update) -> presence_pb2.RoomUpdate:
    news = update.news
    return presence_pb2.RoomUpdate(
        account_id=update.place.account_id,
        canvas_id=update.place.canvas_id,
        anew=news.anew,
        admissions=[
            presence_pb2.Admission(session_id=peer.session_id, number=peer.number)
            for peer in news.admitted
        ],
        left_session_ids=news.left,
        peers=protos_from_peers(news.changed),
        revision=update.revision,
        shared=news.shared,
        frames=update.frames,
        incarnation=update.incarnation,
    )


async def _hear(requests: AsyncIterator[presence_pb2.ConnectRequest], gateway: Gateway) -> None:
    """Passes on what a gateway says, until it ends. Raises what makes it end (PR9, PR15)."""
    async for request in requests:
        if gateway.is_ended:
            return
        hear(request, gateway)


def hear(request: presence_pb2.ConnectRequest, gateway: Gateway) -> None:
    """Does what a gateway says."""
    for session_id in request.left_session_ids:
        gateway.leave(session_id)
    for join in request.joins:
        gateway.join(
            join.session_id,
            Place(join.account_id, join.canvas_id),
            join.revision,
            number=join.number,
            term=join.term,
            incarnation=join.incarnation,
        )
    for move in request.moves:
        gateway.move(move.session_id, move.cursor, move.drag)
