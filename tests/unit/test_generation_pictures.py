"""Each picture is asked for once, whatever fails on the way."""

import asyncio
from collections.abc import Sequence

import pytest

from providers.image import Accepted, Capacity, ImageFailure, ImageRequest, Outage, Uncertain
from servicekit.errors import Unavailable
from services.generation.domain.budget import Deadlines
from services.generation.domain.calls import Begun, Outcome
from services.generation.domain.jobs import ClaimedJob
from services.generation.domain.params import ImageParams
from services.generation.pictures import Pictures

JOB = ClaimedJob("extgen-1", 1, "us_1", "editor_image_generation", "{}", "c", 1)
PARAMS = ImageParams(prompt="a lantern", size="64x64")


class Model:
    """Accepts a request if it has an id for it, and then fails as it is told, one after another."""

    def __init__(self, *failures: ImageFailure, request_id: str | None = None) -> None:
        self.begun = 0
        self.resumed: list[str] = []
        self._failures = list(failures)
        self._request_id = request_id

    async def generate(self, request: ImageRequest, accepted: Accepted) -> bytes:
        """A picture, if nothing is left that fails."""
        self.begun += 1
        if self._request_id is not None:
            await accepted(self._request_id)
        return self._made(request)

    async def resume(self, request: ImageRequest, request_id: str) -> bytes:
        """The same."""
        self.resumed.append(request_id)
        return self._made(request)

    async def cancel(self, request_id: str) -> bool:
        """Has a fault."""
        raise ZeroDivisionError(request_id)

    def _made(self, request: ImageRequest) -> bytes:
        if self._failures:
            raise self._failures.pop(0)
        return request.prompt.encode()


class Journal:
    """What was said, and how often nobody hears what."""

    def __init__(self, *, deaf_to_accept: int = 0, deaf_to_settle: int = 0) -> None:
        self.said: list[object] = []
        self._accept, self._settle = deaf_to_accept, deaf_to_settle

    async def begin(self, _job: ClaimedJob, number: int, _model: str) -> Begun:
        """Each call is new, as for the attempt that began it."""
        self.said.append(number)
        return Begun(is_new=True, request_id=None)

    async def accept(self, _job: ClaimedJob, _number: int, request_id: str) -> None:
        """Hears it at last."""
        if self._accept:
            self._accept -= 1
            raise Unavailable("away")
        self.said.append(request_id)

    async def settle(self, _job: ClaimedJob, _number: int, outcome: Outcome, _detail: str) -> None:
        """Hears it at last."""
        if self._settle:
            self._settle -= 1
            raise Unavailable("away")
        self.said.append(outcome)


async def _picture(model: Model, journal: Journal) -> bytes:
    now = asyncio.get_running_loop().time()
    pictures = Pictures(journal, {"studio": model})
    return await pictures.picture(JOB, PARAMS, 1, Deadlines(provider=now + 30, job=now + 60))


@pytest.mark.parametrize(
    "failures",
    [(Outage("503"),), (Capacity("429", retry_after_seconds=0.01), Outage("503"))],
)
async def test_a_request_that_was_accepted_is_asked_after_and_never_begun_again(
    failures: Sequence[ImageFailure],
) -> None:
    """GN30"""
    model, journal = Model(*failures, request_id="p-1"), Journal()

    picture = await _picture(model, journal)

    assert picture == b"a lantern"
    assert (model.begun, model.resumed) == (1, ["p-1"] * len(failures))
    assert journal.said == [1, "p-1", Outcome.SUCCEEDED]


async def test_a_request_that_was_not_accepted_is_begun_again_once_that_is_known() -> None:
    """GN30"""
    model, journal = Model(Capacity("429", retry_after_seconds=0.01)), Journal()

    await _picture(model, journal)

    assert model.begun == 2
    assert journal.said == [1, Outcome.FAILED, 1, Outcome.SUCCEEDED]


async def test_what_nobody_heard_to_have_failed_is_not_asked_for_again() -> None:
    """GN30"""
    model = Model(Capacity("429", retry_after_seconds=0.01))

    with pytest.raises(Uncertain):
        await _picture(model, Journal(deaf_to_settle=1))

    assert model.begun == 1


async def test_a_queue_that_is_away_when_a_request_is_accepted_does_not_fail_the_job() -> None:
    """GN30"""
    model, journal = Model(request_id="p-1"), Journal(deaf_to_accept=2)

    picture = await _picture(model, journal)

    assert picture == b"a lantern"
    assert journal.said == [1, "p-1", Outcome.SUCCEEDED]


async def test_a_fault_of_a_model_that_cancels_stops_nobody() -> None:
    """GN30"""
    asked = asyncio.Event()

    class Slow(Model):
        async def generate(self, request: ImageRequest, accepted: Accepted) -> bytes:
            await accepted("p-1")
            asked.set()
            await asyncio.Event().wait()
            return self._made(request)

    now = asyncio.get_running_loop().time()
    journal = Journal()
    pictures = Pictures(journal, {"studio": Slow()})
    limits = Deadlines(provider=now + 30, job=now + 60)
    drawing = asyncio.create_task(pictures.picture(JOB, PARAMS, 1, limits))
    await asked.wait()
    drawing.cancel()
    await asyncio.wait([drawing])

    await pictures.withdraw(JOB)

    assert journal.said == [1, "p-1"]
