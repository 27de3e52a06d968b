"""How often something may be tried: counted in Valkey for all gateways, else in this process."""

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage, RedisStorage, Storage
from limits.aio.strategies import MovingWindowRateLimiter
from limits.errors import StorageError

from gateway.failures import RateLimited
from servicekit.telemetry import logger

_log = logger("gateway.limits")


class TryLimits:
    """Limits tries per minute, each by a key such as an address."""

    def __init__(self, redis_url: str | None, per_minute: int) -> None:
        self._limiter = MovingWindowRateLimiter(_storage(redis_url))
        self._limit = RateLimitItemPerMinute(per_minute, namespace="gesso")

    async def count(self, what: str, **keys: str) -> None:
        """Counts a try under each key, e.g. `address`; equal keys of two names are two.

        Raises `RateLimited` when one is over its limit. While Valkey is away tries are let
        through: being able to sign in matters more.
        """
        try:
            for name, key in keys.items():
                if not await self._limiter.hit(self._limit, what, name, key):
                    raise RateLimited(what, self._limit.get_expiry())
        except StorageError as error:
            _log.warning("tries are not counted", why=str(error))


def _storage(redis_url: str | None) -> Storage:
    if redis_url is None:
        return MemoryStorage()
    return RedisStorage(redis_url, implementation="valkey", wrap_exceptions=True, socket_timeout=2)
