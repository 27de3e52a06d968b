"""What each kind of job costs."""

from dataclasses import dataclass

from services.generation.domain.failures import WrongRequest

MICROS_PER_CREDIT = 1_000_000


@dataclass(frozen=True)
class Price:
    """What one output of a kind costs with a model, in micro-credits.

    `channel` is the account or route of the provider that the model is asked by.
    """

    kind: str
    model: str
    channel: str
    unit_micros: int

    def of(self, count: int) -> int:
        """What so many outputs cost."""
        return count * self.unit_micros


PRICES = (Price("editor_image_generation", "studio", "studio", 4 * MICROS_PER_CREDIT),)
# A channel whose last model goes has to stay here until none of its jobs is left.
CHANNELS = tuple(dict.fromkeys(price.channel for price in PRICES))


def price_of(kind: str, model: str) -> Price:
    """The price of a kind with a model. Raises `WrongRequest` if the model does not make it."""
    for price in PRICES:
        if (price.kind, price.model) == (kind, model):
            return price
    models = ", ".join(price.model for price in PRICES if price.kind == kind)
    raise WrongRequest({"params.model": f"must be one of {models}"})
