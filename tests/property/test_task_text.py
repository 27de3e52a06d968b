"""Properties of the text of tasks, for any text and any reader."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from providers.studio.text import direction_of
from services.tasks.domain.text import (
    MAX_EVENTS,
    Delta,
    Pace,
    Reset,
    TextEvent,
    contents,
    events_of_attempt,
    storable,
)
from services.tasks.feed import KEPT_EVENTS, Topic
from services.tasks.store import Reading, Standing

any_text = st.text(st.characters(exclude_categories=["Cs"]))


@given(any_text, st.integers(min_value=4, max_value=40))
def test_contents_are_the_text_again_and_each_fits(text: str, most_bytes: int) -> None:
    """TK10"""
    parts = list(contents(text, most_bytes=most_bytes))

    assert "".join(parts) == text
    assert all(0 < len(part.encode()) <= most_bytes for part in parts)
    # No more of them than must be: two neighbours never fit one event.
    assert all(len((one + two[0]).encode()) > most_bytes for one, two in pairwise(parts))


@given(st.text())
def test_what_is_storable_is_utf8_without_zero_and_stays_as_it_is(text: str) -> None:
    """TK10"""
    kept = storable(text)

    assert "\0" not in kept
    assert kept.encode().decode() == kept
    assert storable(kept) == kept


@given(
    events=st.integers(min_value=2, max_value=300),
    seconds=st.floats(min_value=0.1, max_value=1_000),
    quickest=st.floats(min_value=0.001, max_value=1),
    delays=st.lists(st.floats(min_value=0, max_value=0.5), min_size=1, max_size=5),
)
def test_a_model_that_never_pauses_does_not_use_up_the_events(
    events: int, seconds: float, quickest: float, delays: list[float]
) -> None:
    """TK11"""
    pace = Pace(events=events, seconds=seconds, quickest_seconds=quickest)
    elapsed, written = 0.0, 0

    while elapsed < seconds:
        elapsed += delays[written % len(delays)]
        written += 1
        pause = pace.pause(written, elapsed)
        assert pause >= quickest
        elapsed += pause

    assert written <= events


@given(st.integers(min_value=0, max_value=MAX_EVENTS + 5), st.integers(min_value=1, max_value=5))
def test_an_attempt_leaves_events_to_those_after_it(last: int, attempts_left: int) -> None:
    """TK11"""
    allowed = events_of_attempt(last, attempts_left=attempts_left)

    left = max(0, MAX_EVENTS - last)
    assert 0 <= allowed <= left
    assert attempts_left == 1 or left - allowed >= left // 2


numbered_events = st.lists(st.booleans(), min_size=1, max_size=2 * KEPT_EVENTS).map(
    lambda kinds: [
        Delta(sequence, f"{sequence} ") if is_delta else Reset(sequence, sequence)
        for sequence, is_delta in enumerate(kinds, start=1)
    ]
)


@given(events=numbered_events, begins=st.integers(min_value=0), data=st.data())
def test_a_topic_knows_exactly_what_follows_a_place_or_says_that_it_does_not(
    events: list[TextEvent], begins: int, data: st.DataObject
) -> None:
    """TK9"""
    begins %= len(events)
    topic = Topic(Standing(key=1, task_id="tk", last_sequence=begins))
    at = begins
    while at < len(events):
        until = data.draw(st.integers(min_value=at, max_value=len(events)))
        until = max(until, at + 1)
        topic.extend(Reading(events[at:until], last_sequence=until, ending=None))
        at = until

    place = data.draw(st.integers(min_value=0, max_value=len(events) + 3))

    known = topic.after(place)
    if known is None:
        assert place < max(begins, len(events) - KEPT_EVENTS)
    else:
        assert known == events[place:]


@given(any_text)
def test_tokens_are_the_text_again(text: str) -> None:
    direction = direction_of(text)

    assert direction.subject
    assert all(direction.text())
