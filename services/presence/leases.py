"""Numbers of sessions as leases in Valkey, so that no two instances give the same one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from valkey.asyncio import Valkey
from valkey.commands.core import AsyncScript

from servicekit.valkey import translated
from services.presence.domain.rooms import Place
from services.presence.domain.roster import MAX_PEERS

LEASE_SECONDS = 60.0
RENEWAL_SECONDS = 15.0
# A room that nobody renews is forgotten.
KEPT_SECONDS = 120.0
# Rooms whose scripts go to Valkey together.
BATCH = 100

_NUMBERS = "gesso:presence:numbers:"

# A field of the hash is a number, its value says until when it is whose: "MILLISECONDS INSTANCE
# SESSION", by Valkey's clock.
_COMMON = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local instance, lease, kept = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local function parts(value)
    local until_, holder, session = string.match(value, '^(%d+) (%S+) (.*)$')
    return tonumber(until_), holder, session
end
local function hold(number, session)
    redis.call('HSET', KEYS[1], number, string.format('%.0f %s %s', now + lease, instance, session))
    redis.call('PEXPIRE', KEYS[1], kept)
end
"""

# The number that the session has, else the one it wants, else the lowest that is free; 0 if none.
TAKE = (
    _COMMON
    + """
local session, wanted, most = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local all, taken, number = redis.call('HGETALL', KEYS[1]), {}, 0
for index = 1, #all, 2 do
    local until_, _, owner = parts(all[index + 1])
    if owner == session then
        number = tonumber(all[index])
    elseif until_ > now then
        taken[tonumber(all[index])] = true
    end
end
if number == 0 and wanted >= 1 and wanted <= most and not taken[wanted] then
    number = wanted
end
for candidate = 1, most do
    if number == 0 and not taken[candidate] then
        number = candidate
    end
end
if number > 0 then
    hold(number, session)
end
return number
"""
)

# Sessions and their numbers, by turns; the sessions whose numbers are others' now.
RENEW = (
    _COMMON
    + """
local lost = {}
for index = 4, #ARGV, 2 do
    local session, number = ARGV[index], ARGV[index + 1]
    local value = redis.call('HGET', KEYS[1], number)
    local until_, _, owner = 0, '', session
    if value then
        until_, _, owner = parts(value)
    end
    if owner == session or until_ <= now then
        hold(number, session)
    else
        table.insert(lost, session)
    end
end
return lost
"""
)

# Sessions and their numbers, by turns: only of those that this instance holds.
RELEASE = (
    _COMMON
    + """
for index = 4, #ARGV, 2 do
    local session, number = ARGV[index], ARGV[index + 1]
    local value = redis.call('HGET', KEYS[1], number)
    if value then
        local _, holder, owner = parts(value)
        if holder == instance and owner == session then
            redis.call('HDEL', KEYS[1], number)
        end
    end
end
"""
)


@dataclass(frozen=True)
class Lease:
    """A session's number in the room of a canvas, of one incarnation of it; 0 for any."""

    place: Place
    incarnation: int
    session_id: str
    number: int

    @property
    def key(self) -> str:
        """Under which Valkey has the numbers of the room."""
        place = self.place
        return f"{_NUMBERS}{place.account_id}/{self.incarnation}/{place.canvas_id}"


class Leases:
    """The numbers that sessions of one instance have, for 60 seconds unless renewed.

    All methods raise `Unavailable`.
    """

    def __init__(
        self, client: Valkey, instance_id: str, *, lease_seconds: float = LEASE_SECONDS
    ) -> None:
        self._client = client
        lease, kept = int(lease_seconds * 1000), int(KEPT_SECONDS * 1000)
        self._head: list[str | int] = [instance_id, lease, kept]
        self._take = client.register_script(TAKE)
        self._renew = client.register_script(RENEW)
        self._release = client.register_script(RELEASE)

    async def take(self, wanted: Sequence[Lease]) -> list[int | None]:
        """The number of each session: its own, the wanted one or the lowest free; None if none is.

        Twice for the same session gives the same number, and this instance holds it then.
        """
        taken: list[int | None] = []
        with translated():
            for start in range(0, len(wanted), BATCH):
                async with self._client.pipeline(transaction=False) as pipeline:
                    for each in wanted[start : start + BATCH]:
                        session = (each.session_id, each.number, MAX_PEERS)
                        await self._take([each.key], [*self._head, *session], client=pipeline)
                    taken += [number or None for number in await pipeline.execute()]
        return taken

    async def renew(self, held: Iterable[Lease]) -> list[str]:
        """Holds numbers on, those too that nobody has; the sessions whose numbers others have."""
        found = await self._each(self._renew, held)
        return [session.decode() for lost in found for session in lost]

    async def release(self, held: Iterable[Lease]) -> None:
        """Ends leases, if this instance still holds them."""
        await self._each(self._release, held)

    async def _each(self, script: AsyncScript, leases: Iterable[Lease]) -> list[Any]:
        """Runs a script for each room, with its sessions and their numbers."""
        by_key: dict[str, list[str | int]] = {}
        for lease in leases:
            by_key.setdefault(lease.key, []).extend((lease.session_id, lease.number))
        results: list[Any] = []
        rooms = list(by_key.items())
        with translated():
            for start in range(0, len(rooms), BATCH):
                async with self._client.pipeline(transaction=False) as pipeline:
                    for key, sessions in rooms[start : start + BATCH]:
                        await script([key], [*self._head, *sessions], client=pipeline)
                    results += await pipeline.execute()
        return results
