"""Models that write text: how they are asked, and how they fail."""

from collections.abc import AsyncGenerator
from typing import Protocol

from servicekit.errors import Invalid, Unavailable


class TextModel(Protocol):
    """A model that writes text for a prompt."""

    def write(self, prompt: str, *, model: str) -> AsyncGenerator[str, None]:
        """The text in pieces, as they come; `model` is the name that it was asked by.

        Whoever asks closes it, also before its end, and bounds the time. Raises `ModelRefused`
        or `ModelUnavailable`, also after some text.
        """
        ...


class ModelRefused(Invalid):
    """The model will not answer this prompt, however often it is asked."""

    reason = "model_refused"


class ModelUnavailable(Unavailable):
    """The model did not answer to the end; asked again, it may."""

    reason = "model_unavailable"
