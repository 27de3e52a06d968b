"""How far a window has got with the states of jobs and tasks."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gesso.generation.v1 import generation_pb2 as pb

from gateway.mailbox import MAX_FRAMES, Closed, Mailbox
from gateway.routes.states import States, job_frame
from gateway.watching import News


class Watched:
    """Something to watch, which the test tells of."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.tell: Callable[[News[Any]], None]
        self.reach: Callable[[str], None]

    def reader(self, account_id: str, *, tell: Any, reach: Any) -> "Watched":
        self.account_id, self.tell, self.reach = account_id, tell, reach
        return self

    def close(self) -> None:
        self.account_id = ""

    def begin(self, since: str) -> None:
        self.begun.append(since)

    def change(self, number: int, canvas_id: str = "c") -> None:
        self.tell(
            News(
                pb.JobSummary(
                    job_id=f"j{number}", canvas_id=canvas_id, status=pb.JOB_STATUS_PENDING
                )
            )
        )


class Watcheds:
    """Jobs that the test tells of, and no tasks."""

    def __init__(self) -> None:
        self.jobs, self.tasks = Watched(), Watched()


class Window:
    """A window with its mailbox, as a session has it."""

    def __init__(self, states: States) -> None:
        self._states = states
        self.mailbox = Mailbox(lambda: None, states.pass_on)

    def hear(self, frame: bytes) -> None:
        self.mailbox.put(frame)

    def welcome(self) -> None:
        self.mailbox.begin()
        self._states.begun()

    async def read(self) -> list[bytes]:
        """Reads all there is; marks are left out."""
        self.mailbox.close(Closed(1000, ""))
        frames = []
        while not isinstance(frame := await self.mailbox.take(), Closed):
            self._states.sent(frame)
            frames.append(frame)
        self.mailbox = Mailbox(lambda: None, self._states.pass_on)
        return frames


@pytest.fixture
def watched() -> Watcheds:
    return Watcheds()


@pytest.fixture
def window(watched: Watcheds) -> Iterator[Window]:
    states = States("c", "en", send=lambda _: None, send_at_once=lambda _: False)
    made = Window(states)
    session: Any = made
    watchings: Any = watched
    states.begin(session, "us_a", watchings)
    yield made
    states.end()
    assert watched.jobs.account_id == watched.tasks.account_id == ""


async def test_a_welcome_begins_from_what_the_window_is_known_to_have(
    window: Window, watched: Watcheds
) -> None:
    """PR21"""
    window.welcome()
    await window.read()
    window.welcome()
    watched.jobs.reach("5")
    watched.jobs.change(1)
    watched.jobs.reach("6")
    watched.jobs.reach("7")
    await window.read()

    window.welcome()
    await window.read()

    # Nothing was told between 6 and 7: to begin there is as good.
    assert watched.jobs.begun == ["", "", "6"]


async def test_what_was_dropped_was_not_told(window: Window, watched: Watcheds) -> None:
    """PR21"""
    window.welcome()
    await window.read()
    window.welcome()
    watched.jobs.reach("5")
    await window.read()
    window.welcome()
    watched.jobs.begun.clear()
    for number in range(MAX_FRAMES + 1):
        watched.jobs.change(number)
    watched.jobs.reach("6")

    window.welcome()
    await window.read()

    assert watched.jobs.begun == ["5"]


async def test_what_is_on_another_canvas_is_not_told(window: Window, watched: Watcheds) -> None:
    """PR20"""
    window.welcome()
    watched.jobs.change(1, "d")
    watched.jobs.change(2)

    assert [b'"j2"' in frame for frame in await window.read()] == [True]


def test_a_state_is_encoded_once_for_all_windows_of_a_language() -> None:
    """PR20"""
    times: list[str] = []

    def encode(job: pb.JobSummary, language: str) -> bytes:
        times.append(language)
        return job_frame(job, language)

    news = News(pb.JobSummary(status=pb.JOB_STATUS_RUNNING))

    frames = [news.encoded(encode, language) for language in ("en", "zh", "en", "zh")]

    assert times == ["en", "zh"]
    assert frames[0] is frames[2]
    assert frames[0] != frames[1]
