"""Speaks gesso.presence.v1: messages into values and back."""

import asyncio
from collections.abc import AsyncIterator

from gesso.presence.v1 import presence_pb2
from gesso.presence.v1.presence_pb2_grpc import PresenceServiceServicer

from servicekit.errors import Invalid
from servicekit.identity import Context
from services.presence.domain.frames import Delivery
from services.presence.domain.versions import MAX_OPERATIONS_BYTES, Version
from services.presence.service import Closing, Gateway, Place, PresenceService

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
        for each in request.invalidations:
            place = Place(each.account_id, each.canvas_id)
            if each.deleted:
                self._service.announce_deleted(place)
            self._service.announce(
                place,
                version_from_proto(each),
                leases_changed=each.leases_changed,
            )
        return presence_pb2.AnnounceResponse()


def version_from_proto(message: presence_pb2.Invalidation) -> Version:
    """What was committed, as a value."""
    fits = 0 < len(message.operations) <= MAX_OPERATIONS_BYTES
    return Version(
        revision=message.revision,
        content_hash=message.content_hash,
        base_revision=message.base_revision,
        operations=message.operations if fits else None,
        mutation_id=message.mutation_id,
    )


def response_from_telling(telling: Delivery | Closing) -> presence_pb2.ConnectResponse:
    """What a gateway has to hear, as a message."""
    match telling:
        case Delivery():
            return presence_pb2.ConnectResponse(
                deliver=presence_pb2.Deliver(
                    session_ids=telling.session_ids,
                    frame=telling.frame,
                    omissions=[
                        presence_pb2.Omission(
                            session_id=each.session_id, start=each.start, end=each.end
                        )
                        for each in telling.omissions
                    ],
                    replaces=telling.replaces,
                )
            )
        case Closing():
            return presence_pb2.ConnectResponse(
                close=presence_pb2.Close(
                    session_id=telling.session_id, code=telling.code, reason=telling.reason
                )
            )


async def _hear(requests: AsyncIterator[presence_pb2.ConnectRequest], gateway: Gateway) -> None:
    """Passes on what a gateway says, until it ends. Raises what makes it end (PR9, PR15)."""
    async for request in requests:
        if request.HasField("batch"):
            for each in request.batch.requests:
                _take(each, gateway)
        else:
            _take(request, gateway)


def _take(request: presence_pb2.ConnectRequest, gateway: Gateway) -> None:
    match request.WhichOneof("event"):
        case "join":
            join = request.join
            place = Place(join.account_id, join.canvas_id)
            gateway.join(join.session_id, place, join.revision)
        case "move":
            move = request.move
            gateway.move(move.session_id, move.cursor, move.drag)
        case "leave":
            gateway.leave(request.leave.session_id)
        case "resync":
            gateway.resync(request.resync.session_id)
        case _:
            raise Invalid("The request says nothing that this version knows.")
