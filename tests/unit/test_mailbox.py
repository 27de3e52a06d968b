"""What waits for a slow window."""

import asyncio

from gateway.mailbox import MAX_BYTES, MAX_FRAMES, Closed, Mailbox


def refused(_frame: bytes) -> bool:
    """A line that takes nothing."""
    return False


class Asked:
    """Counts how often everything is asked for."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


async def taken(mailbox: Mailbox, count: int) -> list[bytes | Closed]:
    async with asyncio.timeout(5):
        return [await mailbox.take() for _ in range(count)]


async def asks(mailbox: Mailbox) -> "asyncio.Task[bytes | Closed]":
    """A reader that waits."""
    reader = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0)
    return reader


async def test_frames_come_in_order_once_everything_was_told() -> None:
    """PR4 PR8"""
    mailbox = Mailbox(Asked(), refused)

    mailbox.put(b"too early")
    mailbox.begin()
    mailbox.put(b"1")
    mailbox.put(b"2")

    assert await taken(mailbox, 2) == [b"1", b"2"]


async def test_what_waits_is_not_needed_once_everything_is_told_anew() -> None:
    """PR8 PR16"""
    mailbox = Mailbox(Asked(), refused)
    mailbox.begin()
    mailbox.put(b"1")

    mailbox.begin()
    mailbox.put(b"2")

    assert await taken(mailbox, 1) == [b"2"]


async def test_what_is_too_much_is_dropped_and_everything_asked_for_when_the_reader_is_back() -> (
    None
):
    """PR8"""
    asked = Asked()
    mailbox = Mailbox(asked, refused)
    mailbox.begin()
    for _ in range(3 * MAX_FRAMES):
        mailbox.put(b"frame")
    before = asked.times

    reader = await asks(mailbox)
    mailbox.put(b"still of before")
    mailbox.begin()
    mailbox.put(b"after")

    assert (before, asked.times) == (0, 1)
    assert await reader == b"after"


async def test_one_frame_may_be_larger_than_all_that_may_wait() -> None:
    """PR8"""
    asked = Asked()
    mailbox = Mailbox(asked, refused)
    large = b"x" * (MAX_BYTES + 1)
    mailbox.begin()
    mailbox.put(large)
    first = await taken(mailbox, 1)

    mailbox.put(large)
    mailbox.put(b"one more")
    reader = await asks(mailbox)
    mailbox.begin()
    mailbox.put(b"after")

    assert (first, await reader) == ([large], b"after")
    assert asked.times == 1


async def test_the_end_comes_after_the_frames_and_stays() -> None:
    mailbox = Mailbox(Asked(), refused)
    mailbox.begin()
    mailbox.put(b"1")

    mailbox.close(Closed(4429, "first"))
    mailbox.put(b"late")
    mailbox.close(Closed(1000, "second"))

    end = Closed(4429, "first")
    assert await taken(mailbox, 3) == [b"1", end, end]


class Socket:
    """Takes frames while it is open."""

    def __init__(self) -> None:
        self.is_open = True
        self.sent: list[bytes] = []

    def __call__(self, frame: bytes) -> bool:
        if self.is_open:
            self.sent.append(frame)
        return self.is_open


async def test_frames_are_passed_on_while_the_reader_waits_for_one() -> None:
    """PR8"""
    socket = Socket()
    mailbox = Mailbox(Asked(), socket)
    mailbox.begin()
    mailbox.put(b"before anybody reads")

    first = await mailbox.take()
    # The reader is busy with that one: what came after must not overtake it.
    mailbox.put(b"1")
    second = await mailbox.take()
    reader = await asks(mailbox)
    mailbox.put(b"2")
    mailbox.put(b"3")
    socket.is_open = False
    mailbox.put(b"4")
    socket.is_open = True
    mailbox.put(b"5")

    assert [first, second] == [b"before anybody reads", b"1"]
    assert socket.sent == [b"2", b"3"]
    assert [await reader, await mailbox.take()] == [b"4", b"5"]


async def test_who_fell_behind_is_passed_on_nothing_before_a_new_beginning() -> None:
    """PR8"""
    socket = Socket()
    asked = Asked()
    mailbox = Mailbox(asked, socket)
    mailbox.begin()
    for _ in range(MAX_FRAMES + 1):
        mailbox.put(b"x")

    reader = await asks(mailbox)
    mailbox.put(b"lost")
    mailbox.begin()
    mailbox.put(b"after")

    assert asked.times == 1
    assert socket.sent == [b"after"]
    mailbox.close(Closed(1000, "gone"))
    assert await reader == Closed(1000, "gone")
