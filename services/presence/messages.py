"""The messages of gesso.presence.v1 as values, and back."""

from collections.abc import Iterable

from gesso.presence.v1 import presence_pb2

from services.presence.domain.rooms import Announcement, Place
from services.presence.domain.roster import Peer
from services.presence.domain.versions import MAX_OPERATIONS_BYTES, Version


def announcement_from_proto(message: presence_pb2.Invalidation) -> Announcement:
    """What was committed, as a value."""
    fits = 0 < len(message.operations) <= MAX_OPERATIONS_BYTES
    return Announcement(
        place=Place(message.account_id, message.canvas_id),
        version=Version(
            revision=message.revision,
            content_hash=message.content_hash,
            base_revision=message.base_revision,
            operations=message.operations if fits else None,
            mutation_id=message.mutation_id,
        ),
        leases_changed=message.leases_changed,
        deleted=message.deleted,
        incarnation=message.incarnation,
    )


def proto_from_announcement(announcement: Announcement) -> presence_pb2.Invalidation:
    """What was committed, as a message."""
    version = announcement.version
    return presence_pb2.Invalidation(
        account_id=announcement.place.account_id,
        canvas_id=announcement.place.canvas_id,
        revision=version.revision,
        content_hash=version.content_hash,
        base_revision=version.base_revision,
        operations=version.operations or b"",
        mutation_id=version.mutation_id,
        leases_changed=announcement.leases_changed,
        deleted=announcement.deleted,
        incarnation=announcement.incarnation,
    )


def peer_from_proto(message: presence_pb2.Peer) -> Peer:
    """A peer, as a value."""
    return Peer(
        session_id=message.session_id,
        number=message.number,
        cursor=message.cursor,
        drag=message.drag,
        term=message.term,
    )


def protos_from_peers(peers: Iterable[Peer]) -> list[presence_pb2.Peer]:
    """Peers, as messages."""
    return [
        presence_pb2.Peer(
            session_id=peer.session_id,
            number=peer.number,
            cursor=peer.cursor,
            drag=peer.drag,
            term=peer.term,
        )
        for peer in peers
    ]
