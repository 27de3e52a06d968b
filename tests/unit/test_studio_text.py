"""The built-in text model."""

import asyncio
import json
import re
from contextlib import aclosing

import pytest

from providers.studio.text import NAME, StudioText, direction_of, story
from providers.text import ModelRefused


async def written(prompt: str) -> list[str]:
    async with aclosing(StudioText().write(f"{prompt} !rate=1000000", model=NAME)) as pieces:
        return [piece async for piece in pieces]


async def test_a_prompt_gives_the_same_text_each_time_and_another_prompt_another_text() -> None:
    lantern, again, river = [
        "".join(await written(prompt)) for prompt in ("a lantern", "a lantern", "a river")
    ]

    assert lantern == again
    assert "a lantern" in lantern
    assert "a river" in river
    shared = set(lantern.split(". ")) & set(river.split(". "))
    assert len(shared) <= 2


async def test_a_text_has_several_sentences_in_the_language_of_its_prompt() -> None:
    english = "".join(await written("a paper lantern over a river"))
    chinese = "".join(await written("一盏纸灯笼"))

    assert english.isascii() or re.search(r"[\u3400-\u9fff]", english) is None
    assert len(re.findall(r"[.!?](\s|$)", english)) >= 6
    assert chinese.count("。") >= 6
    assert re.search(r"[A-Za-z]", chinese) is None


async def test_a_text_takes_two_to_three_seconds_at_the_usual_rate() -> None:
    for prompt in ("a lantern", "一盏灯笼"):
        direction = direction_of(prompt)

        seconds = len(list(direction.text())) / direction.tokens_per_second

        assert 1.5 <= seconds <= 3.5


async def test_so_many_tokens_are_written_as_are_asked_for() -> None:
    assert [len(await written(f"a lantern !tokens={n}")) for n in (0, 1, 200)] == [0, 1, 200]
    assert len(await written("灯 !tokens=700")) == 700


async def test_tokens_come_at_the_rate_that_is_asked_for() -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()

    async with aclosing(StudioText().write("x !tokens=10 !rate=100 !slow=0.05", model=NAME)) as it:
        times = [loop.time() - started async for _ in it]

    assert times[0] >= 0.05
    assert times[-1] >= 0.05 + 9 / 100


async def test_a_json_value_is_answered_exactly() -> None:
    value = '{"characters": [{"name": "阿灯", "age": 1.0}],  "scenes": []}'

    answer = "".join(await written(f"extract it !json={value} please"))

    assert answer == value
    assert json.loads(answer)["characters"][0]["name"] == "阿灯"


async def test_a_refusal_comes_at_once_or_after_the_text_that_is_asked_for() -> None:
    pieces: dict[str, list[str]] = {"": [], "!tokens=3": []}

    async def collect(directive: str) -> None:
        prompt = f"a lantern !fail !rate=100000 {directive}"
        async with aclosing(StudioText().write(prompt, model=NAME)) as written:
            async for piece in written:
                pieces[directive].append(piece)

    for directive in pieces:
        with pytest.raises(ModelRefused):
            await collect(directive)

    assert [len(found) for found in pieces.values()] == [0, 3]


async def test_a_model_that_hangs_is_silent_until_it_is_closed() -> None:
    pieces = StudioText().write("x !hang !tokens=1 !rate=100000", model=NAME)
    first = await anext(pieces)
    second = asyncio.ensure_future(anext(pieces))
    done, _ = await asyncio.wait([second], timeout=0.05)
    second.cancel()
    await asyncio.wait([second])
    await pieces.aclose()

    assert first
    assert not done


@pytest.mark.parametrize(
    "words", ["!tokens=many", "!tokens=-1", "!fails", "hey!fail", "!json={", "!tokens", "!rate="]
)
def test_what_is_not_quite_a_directive_is_part_of_the_subject(words: str) -> None:
    direction = direction_of(f"a {words} b")

    assert direction.subject == f"a {words} b"
    assert (direction.tokens, direction.answer, direction.ending) == (None, None, None)


@pytest.mark.parametrize("value", ["1" * 5_000, "[" * 60_000])
def test_a_json_value_that_cannot_be_read_is_part_of_the_subject(value: str) -> None:
    direction = direction_of(f"a lantern !json={value}")

    assert direction.subject.startswith("a")
    assert direction.answer is None


def test_a_prompt_of_nothing_but_directives_has_a_text_too() -> None:
    assert "an empty page" in "".join(direction_of("!rate=5").text())


def test_a_long_prompt_is_cut_to_a_subject() -> None:
    assert len(direction_of("word " * 10_000).subject) <= 49
    assert len(direction_of("灯" * 10_000).subject) <= 49


def test_every_prompt_finds_words_for_its_story() -> None:
    for number in range(2_000):
        assert "{" not in story(f"subject {number}")
        assert "{" not in story(f"第{number}盏灯")
