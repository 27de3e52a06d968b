"""The messages that tell windows of their peers, each made once for all that get it."""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from gateway.rooms.audience import News
from gateway.rooms.peers import Peer
from gateway.sockets import text_message

_PEERS_HEAD = b'{"type":"peers","peers":['
_PEERS_TAIL = b"]}"


@dataclass(frozen=True)
class Delivery:
    """A text for some windows; `own` is where in it, from and to, some find themselves.

    Those get it without that part.
    """

    session_ids: tuple[str, ...]
    text: bytes
    own: tuple[tuple[str, int, int], ...] = ()

    def each(self) -> Iterator[tuple[str, bytes]]:
        """The message that each window gets."""
        text = self.text
        message = text_message(text)
        cut = {
            session_id: text_message(text[:start] + text[end:])
            for session_id, start, end in self.own
        }
        for session_id in self.session_ids:
            yield session_id, cut.get(session_id, message)


def deliveries(news: News) -> Iterator[Delivery]:
    """What tells windows what is news to them: nobody hears of itself (PR5)."""
    if not news.session_ids:
        return
    for session_id in news.left:
        yield Delivery(news.session_ids, _frame(type="leave", id=session_id))
    yield from _changes(news.session_ids, news.changed)


def welcome(newcomer: Peer, peers: Iterable[Peer], *, revision: int, server_time: str) -> bytes:
    """The message that tells a window everything (PR4)."""
    others = b",".join(peer.entry() for peer in peers if peer is not newcomer)
    head = _frame(type="welcome", selfId=newcomer.session_id, number=newcomer.number)
    tail = _frame(revision=revision, serverTime=server_time)
    return text_message(b'%s,"peers":[%s],%s' % (head[:-1], others, tail[1:]))


def heartbeat(server_time: str) -> bytes:
    """The text that shows that the line is alive (PR11)."""
    return _frame(type="heartbeat", serverTime=server_time)


def invalidate(revision: int) -> bytes:
    """The text that shows that a canvas is further than windows may know (PR10)."""
    return _frame(type="invalidate", revision=revision)


def _changes(listening: tuple[str, ...], changed: tuple[Peer, ...]) -> Iterator[Delivery]:
    """One `peer` for a session that one other changed for, one `peers` for several (PR6)."""
    movers = {peer.session_id for peer in changed}
    match changed:
        case ():
            return
        case (peer,):
            yield from _to(_without(listening, movers), _peer(peer))
        case (first, second):
            yield from _to(_without(listening, movers), _peers([first.entry(), second.entry()]))
            yield from _to(_only(listening, first), _peer(second))
            yield from _to(_only(listening, second), _peer(first))
        case _:
            entries = [peer.entry() for peer in changed]
            yield Delivery(listening, _peers(entries), tuple(_own(listening, changed, entries)))


def _to(session_ids: tuple[str, ...], text: bytes) -> Iterator[Delivery]:
    if session_ids:
        yield Delivery(session_ids, text)


def _without(listening: tuple[str, ...], movers: Collection[str]) -> tuple[str, ...]:
    return tuple(session_id for session_id in listening if session_id not in movers)


def _only(listening: tuple[str, ...], peer: Peer) -> tuple[str, ...]:
    return (peer.session_id,) if peer.session_id in listening else ()


def _peer(peer: Peer) -> bytes:
    return b'{"type":"peer",' + peer.entry()[1:]


def _peers(entries: Sequence[bytes]) -> bytes:
    return _PEERS_HEAD + b",".join(entries) + _PEERS_TAIL


def _own(
    listening: tuple[str, ...], changed: tuple[Peer, ...], entries: Sequence[bytes]
) -> Iterator[tuple[str, int, int]]:
    listeners = frozenset(listening)
    start = len(_PEERS_HEAD)
    for index, (peer, entry) in enumerate(zip(changed, entries, strict=True)):
        end = start + len(entry)
        if peer.session_id in listeners:
            # One comma goes along: the one behind, before the last entry the one in front.
            last = index == len(changed) - 1
            yield peer.session_id, start - last, end + (not last)
        start = end + 1


def _frame(**members: object) -> bytes:
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
