"""Models that make pictures: how they are asked, and how they fail."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class ImageRequest:
    """A picture that is wanted; `width` and `height` in pixels.

    `request_id` is the same in every try at the same picture, and no other picture's.
    `transparent` asks for a ground that is.
    """

    request_id: str
    prompt: str
    width: int
    height: int
    seed: int
    transparent: bool = False
    subtype: str = "plain"


# Told what the provider calls a request, as soon as it says so.
Accepted = Callable[[str], Awaitable[None]]


class ImageModel(Protocol):
    """A model that makes pictures."""

    async def generate(self, request: ImageRequest, accepted: Accepted) -> bytes:
        """The encoded picture. Raises an `ImageFailure`; may be cancelled at any time.

        Calls `accepted` with the provider's id of the request if that can be asked after by
        `resume`; a provider without such ids never does. After it, `Capacity` and `Outage` say that
        the provider cannot be asked just now, and `resume` is called later.
        """
        ...

    async def resume(self, request: ImageRequest, request_id: str) -> bytes:
        """The picture of a request that was accepted before; nothing is begun anew.

        Raises an `ImageFailure`; `Uncertain` if the provider has no such ids.
        """
        ...

    async def cancel(self, request_id: str) -> bool:
        """Asks the provider to cancel a request; whether it says that it did."""
        ...


class ImageFailure(Exception):  # noqa: N818 - facts are named without a suffix
    """A request that gave no picture. `detail` is for operators, never for people."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class Refused(ImageFailure):
    """The model will not do this, however often it is asked."""


class Capacity(ImageFailure):
    """The model has no room now, and did nothing. It may say when to ask again."""

    def __init__(self, detail: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds


class Outage(ImageFailure):
    """The model cannot be reached or is broken, and did nothing."""


class Uncertain(ImageFailure):
    """The model was asked, and nobody knows what became of it: it may have been paid."""


class TimedOut(ImageFailure):
    """The model took longer than there was time."""
