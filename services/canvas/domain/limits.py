"""How much an account may keep."""

from dataclasses import dataclass

from services.canvas.domain.failures import StorageExceeded
from services.canvas.domain.operations import Head


@dataclass(frozen=True)
class Usage:
    """What an account keeps, or by how much that changes."""

    canvases: int = 0
    assets: int = 0
    json_bytes: int = 0


@dataclass(frozen=True)
class Limits:
    """The most that an account may keep."""

    canvases: int
    assets: int
    json_bytes: int

    def check(self, usage: Usage, growth: Usage) -> None:
        """Raises `StorageExceeded` if `usage`, after having grown, is over a limit (CV9).

        What does not grow passes, so that an account over a limit can still clear up.
        """
        for used, grown, most in (
            (usage.canvases, growth.canvases, self.canvases),
            (usage.assets, growth.assets, self.assets),
            (usage.json_bytes, growth.json_bytes, self.json_bytes),
        ):
            if grown > 0 and used > most:
                raise self.exceeded_by(growth)

    def exceeded_by(self, growth: Usage) -> StorageExceeded:
        """What to tell who wants to grow by so much and may not."""
        wanted = [
            f"{most} {name}"
            for name, grown, most in (
                ("canvases", growth.canvases, self.canvases),
                ("assets", growth.assets, self.assets),
                ("bytes of canvases", growth.json_bytes, self.json_bytes),
            )
            if grown > 0
        ]
        return StorageExceeded(
            f"An account keeps at most {' and '.join(wanted)}; delete something first."
        )


def growth(before: Head | None, after: Head) -> Usage:
    """By how much a change of a canvas changes what its account keeps."""
    if before is None:
        return Usage(canvases=1, json_bytes=after.size_bytes)
    return Usage(json_bytes=after.size_bytes - before.size_bytes)
