"""The text models that tasks can ask for."""

from collections.abc import Mapping

from providers.studio.text import NAME, StudioText
from providers.text import TextModel

DEFAULT = NAME
TextModels = Mapping[str, TextModel]


def text_models() -> TextModels:
    """The models by the names that they are asked by."""
    return {NAME: StudioText()}
