"""The JSON text frames that sockets get, each made once for all that get it."""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from services.presence.domain.audience import News
from services.presence.domain.roster import Peer
from services.presence.domain.versions import Version

_PEERS_HEAD = b'{"type":"peers","peers":['
_PEERS_TAIL = b"]}"


@dataclass(frozen=True)
class Omission:
    """The bytes of a frame, from `start` to before `end`, that a session does not get."""

    session_id: str
    start: int
    end: int


@dataclass(frozen=True)
class Delivery:
    """A frame for some sessions; `replaces` what they were told before if it is a welcome."""

    session_ids: tuple[str, ...]
    frame: bytes
    omissions: tuple[Omission, ...] = ()
    replaces: bool = False


def deliveries(news: News, server_time: str) -> Iterator[Delivery]:
    """The frames that tell the news of a room: nobody hears of itself (PR5)."""
    if news.settled:
        for session_id in news.left:
            yield Delivery(news.settled, _frame(type="leave", id=session_id))
        yield from _changes(news.settled, news.changed)
        if news.version is not None:
            yield Delivery(news.settled, _invalidate(news.version))
        # Who can apply the operations asks for nothing, and would not hear of the leases.
        if news.leases_changed and (news.version is None or news.version.operations is not None):
            yield Delivery(news.settled, _invalidate(Version(news.revision)))
    for newcomer in news.newcomers:
        frame = _welcome(newcomer, news, server_time)
        yield Delivery((newcomer.session_id,), frame, replaces=True)


def heartbeat(server_time: str) -> bytes:
    """The frame that shows that the line is alive (PR11)."""
    return _frame(type="heartbeat", serverTime=server_time)


def _invalidate(version: Version) -> bytes:
    members: dict[str, object] = {"type": "invalidate", "revision": version.revision}
    if version.content_hash:
        members["contentHash"] = version.content_hash
    if version.operations is None:
        return _frame(**members)
    if version.mutation_id:
        members["mutationId"] = version.mutation_id
    head = _frame(**members, baseRevision=version.base_revision)
    return b'%s,"operations":%s}' % (head[:-1], version.operations)


def _welcome(newcomer: Peer, news: News, server_time: str) -> bytes:
    others = b",".join(peer.entry for peer in news.peers if peer is not newcomer)
    head = _frame(type="welcome", selfId=newcomer.session_id, number=newcomer.number)
    tail = _frame(revision=news.revision, serverTime=server_time)
    return b'%s,"peers":[%s],%s' % (head[:-1], others, tail[1:])


def _changes(settled: tuple[str, ...], changed: tuple[Peer, ...]) -> Iterator[Delivery]:
    """One `peer` for a session that one other changed for, one `peers` for several (PR6)."""
    movers = {peer.session_id for peer in changed}
    match changed:
        case ():
            return
        case (peer,):
            yield from _to(_without(settled, movers), _peer(peer))
        case (first, second):
            yield from _to(_without(settled, movers), _peers(changed))
            yield from _to(_only(settled, first), _peer(second))
            yield from _to(_only(settled, second), _peer(first))
        case _:
            yield Delivery(settled, _peers(changed), tuple(_omissions(settled, changed)))


def _to(session_ids: tuple[str, ...], frame: bytes) -> Iterator[Delivery]:
    if session_ids:
        yield Delivery(session_ids, frame)


def _without(settled: tuple[str, ...], movers: Collection[str]) -> tuple[str, ...]:
    return tuple(session_id for session_id in settled if session_id not in movers)


def _only(settled: tuple[str, ...], peer: Peer) -> tuple[str, ...]:
    return (peer.session_id,) if peer.session_id in settled else ()


def _peer(peer: Peer) -> bytes:
    return b'{"type":"peer",' + peer.entry[1:]


def _peers(changed: tuple[Peer, ...]) -> bytes:
    return _PEERS_HEAD + b",".join(peer.entry for peer in changed) + _PEERS_TAIL


def _omissions(settled: tuple[str, ...], changed: tuple[Peer, ...]) -> Iterator[Omission]:
    listening = frozenset(settled)
    start = len(_PEERS_HEAD)
    for index, peer in enumerate(changed):
        end = start + len(peer.entry)
        if peer.session_id in listening:
            # One comma goes along: the one behind, before the last entry the one in front.
            last = index == len(changed) - 1
            yield Omission(peer.session_id, start - last, end + (not last))
        start = end + 1


def _frame(**members: object) -> bytes:
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
