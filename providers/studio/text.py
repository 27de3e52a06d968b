"""Writes a short text about any prompt, the same each time, without a network.

Words in the prompt direct it:

- `!tokens=200` writes exactly so many tokens.
- `!rate=50` writes so many tokens a second.
- `!slow=8` waits so many seconds before the first token.
- `!json={…}` answers exactly this JSON value.
- `!fail` refuses, `!hang` falls silent for ever: after the text if `!tokens` or `!json` is
  given, before any otherwise.
"""

import asyncio
import hashlib
import random
import re
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from itertools import islice
from json import JSONDecoder

from providers.text import ModelRefused

NAME = "studio-text"

TOKENS_PER_SECOND = 50.0
MAX_TOKENS = 1_000_000
MAX_SUBJECT_LENGTH = 48

_DIRECTIVE = re.compile(r"(?<!\S)!(?:(tokens|rate|slow)=(\d{1,7}(?:\.\d{1,3})?)|(fail|hang))(?!\S)")
_JSON = "!json="
_PUNCTUATION = " .,;:!?…\"'“”。，；：！？、"
_HAN = re.compile(r"[\u3400-\u9fff]")
# Joined, the tokens are the text again.
_TOKEN = re.compile(r"[\u3400-\u9fff]{1,2}|\s*[^\s\u3400-\u9fff]+|\s+")


@dataclass(frozen=True)
class Direction:
    """What a prompt asks for, and how."""

    subject: str
    answer: str | None = None
    tokens: int | None = None
    tokens_per_second: float = TOKENS_PER_SECOND
    first_after_seconds: float = 0.0
    ending: str | None = None

    def text(self) -> Iterator[str]:
        """The tokens to write before the ending."""
        if self.answer is not None:
            return islice(_tokens(self.answer), self.tokens)
        if self.tokens is not None:
            return islice(_endless_tokens(self.subject), self.tokens)
        return _tokens("" if self.ending else story(self.subject))


class StudioText:
    """The built-in text model."""

    async def write(self, prompt: str, *, model: str) -> AsyncGenerator[str, None]:  # noqa: ARG002 - it has one voice
        """A text about the prompt, token by token."""
        direction = direction_of(prompt)
        loop = asyncio.get_running_loop()
        due = loop.time() + direction.first_after_seconds
        for token in direction.text():
            # Also when it is late, so that whoever shares the loop has a turn.
            await asyncio.sleep(max(0.0, due - loop.time()))
            yield token
            due += 1 / direction.tokens_per_second
        if direction.ending == "fail":
            raise ModelRefused("The model refuses: the prompt tells it to.")
        if direction.ending == "hang":
            await asyncio.Event().wait()


def direction_of(prompt: str) -> Direction:
    """What a prompt asks for. What is not quite a directive is part of the subject."""
    words, answer = _without_json(prompt)
    numbers = {name: float(value) for name, value, _ in _DIRECTIVE.findall(words) if name}
    endings = [ending for _, _, ending in _DIRECTIVE.findall(words) if ending]
    tokens = numbers.get("tokens")
    return Direction(
        subject=_subject(_DIRECTIVE.sub(" ", words)),
        answer=answer,
        tokens=None if tokens is None else min(int(tokens), MAX_TOKENS),
        tokens_per_second=max(0.01, numbers.get("rate", TOKENS_PER_SECOND)),
        first_after_seconds=numbers.get("slow", 0.0),
        ending=endings[-1] if endings else None,
    )


def story(subject: str, *, chapter: int = 0) -> str:
    """Several sentences about a subject, in Chinese if it has Chinese characters, else English."""
    seed = hashlib.sha256(f"{chapter}:{subject}".encode("utf-8", "replace")).digest()
    chosen = random.Random(seed)  # noqa: S311 - the same text each time, no secret
    chinese = _HAN.search(subject) is not None
    voice = _CHINESE if chinese else _ENGLISH
    body = chosen.sample(voice.middles, k=6)
    patterns = [chosen.choice(voice.openings), *body, chosen.choice(voice.endings)]
    decks = {slot: iter(chosen.sample(words, k=len(words))) for slot, words in voice.words.items()}
    sentences = [_filled(pattern, subject, decks) for pattern in patterns]
    return ("" if chinese else " ").join(sentences)


@dataclass(frozen=True)
class _Voice:
    """Sentences with slots, and the words for these, enough for one story."""

    openings: list[str]
    middles: list[str]
    endings: list[str]
    words: dict[str, list[str]]


def _filled(pattern: str, subject: str, decks: dict[str, Iterator[str]]) -> str:
    def word(slot: re.Match[str]) -> str:
        return subject if slot[1] == "subject" else next(decks[slot[1]])

    return re.sub(r"\{(\w+)\}", word, pattern)


def _tokens(text: str) -> Iterator[str]:
    return (found[0] for found in _TOKEN.finditer(text))


def _endless_tokens(subject: str) -> Iterator[str]:
    chapter = 0
    while True:
        yield from _tokens(("\n\n" if chapter else "") + story(subject, chapter=chapter))
        chapter += 1


def _without_json(prompt: str) -> tuple[str, str | None]:
    """The prompt without its `!json=…`, and the JSON text of that as it is written."""
    before, directive, rest = prompt.partition(_JSON)
    if not directive:
        return prompt, None
    try:
        _, end = JSONDecoder().raw_decode(rest)
    except (ValueError, RecursionError):  # Python reads no integer of more than 4,300 digits
        return prompt, None
    return f"{before} {rest[end:]}", rest[:end]


def _subject(words: str) -> str:
    """The prompt as something that a sentence can be about."""
    line = " ".join(words.split()).strip(_PUNCTUATION)
    if len(line) > MAX_SUBJECT_LENGTH:
        cut = line[:MAX_SUBJECT_LENGTH]
        line = (cut if _HAN.search(cut) else cut.rpartition(" ")[0] or cut).rstrip(
            _PUNCTUATION
        ) + "…"
    return line or "an empty page"


_ENGLISH = _Voice(
    openings=[
        "Picture this: {subject}, seen {time}, when the whole place turns {colour}.",
        "It begins with {subject}, and with {light} that makes everything look {colour}.",
        "There is more to “{subject}” than a first look shows, above all {time}.",
        "Take {subject} as the heart of the scene, and let {light} do the rest.",
    ],
    middles=[
        "In the foreground {thing} catches {light} and gives the eye somewhere to rest.",
        "Farther back, {thing} fades into {colour}, so that the distance can be felt.",
        "{Thing} tells us that somebody was here only a moment ago.",
        "The air smells of {smell}, and from somewhere comes {sound}.",
        "Nothing moves except {thing}, and even that moves slowly.",
        "The camera drifts past {thing} and finds {subject} again from the other side.",
        "A child would notice {thing} first; a painter would begin with the {colour} shadows.",
        "For a breath there is only {sound}, and then the picture holds still.",
        "Every line leads back to {subject}, as if the place had been built around it.",
        "Keep the palette small: {colour}, {colour}, and one warm spot near {thing}.",
    ],
    endings=[
        "Leave it there, with {sound} and a little room for whoever looks next.",
        "The last thing we see is {thing}; after that, only {light}.",
        "End on {subject}, a step closer than before, and cut before it explains itself.",
    ],
    words={
        "time": ["just before dawn", "late on a summer evening", "in the first rain of the year"],
        "colour": ["copper", "slate blue", "pale green", "amber", "rose", "ink black"],
        "light": [
            "a low, slanting light",
            "the glow of a paper lamp",
            "moonlight on wet stone",
            "the last sun between two roofs",
            "a thin winter brightness",
        ],
        "thing": [
            "a folded letter",
            "an open window",
            "a rope worn smooth by hands",
            "a cup that is still warm",
            "a row of small boats",
            "a bicycle against the wall",
            "a curtain in the draught",
            "a lantern on its hook",
        ],
        "Thing": ["A half-eaten pear", "A chair pushed back", "A trail of wet footprints"],
        "smell": ["cedar and rain", "fresh ink", "salt and smoke"],
        "sound": [
            "a bell across the water",
            "somebody tuning a string",
            "the creak of a gate",
            "slow wings overhead",
        ],
    },
)
_CHINESE = _Voice(
    openings=[
        "先从{subject}说起：{time}，四周都染上了{colour}。",
        "画面的中心是{subject}，{light}让一切慢了下来。",
        "说到{subject}，最动人的其实是{time}的那一刻。",
        "请把目光放在{subject}上，余下的交给{light}。",
    ],
    middles=[
        "近处，{thing}接住了{light}，让视线有了落脚的地方。",
        "远处，{thing}渐渐隐入{colour}之中，距离感便出来了。",
        "{thing}告诉我们，刚刚还有人来过这里。",
        "空气里有{smell}的味道，不知从哪里传来{sound}。",
        "万物静止，只有{thing}还在轻轻地动。",
        "镜头缓缓掠过{thing}，从另一侧再次遇见{subject}。",
        "孩子会先看见{thing}，画家则会从{colour}的阴影画起。",
        "有那么一瞬，只听得见{sound}，然后画面定住了。",
        "所有的线条都引向{subject}，仿佛这里本就为它而建。",
        "颜色不必多：{colour}、{colour}，再在{thing}旁边留一点暖意。",
    ],
    endings=[
        "就停在这里吧，留下{sound}，也给下一位观者留一点空白。",
        "最后映入眼帘的是{thing}，之后便只剩{light}。",
        "结尾再靠近{subject}一步，在它开口解释之前收住。",
    ],
    words={
        "time": ["天将亮未亮时", "夏夜将尽", "初雨落下之前"],
        "colour": ["赭红", "黛蓝", "浅碧", "琥珀色", "藕粉", "墨黑"],
        "light": ["低斜的日光", "纸灯的微光", "湿石上的月色", "屋檐间最后的夕阳", "清薄的冬晖"],
        "thing": [
            "一封折好的信",
            "一扇半开的窗",
            "一盏挂着的灯笼",
            "一杯尚温的茶",
            "一排小船",
            "靠墙的旧自行车",
            "被风掀起的帘子",
            "一串湿漉漉的脚印",
        ],
        "smell": ["雨后松木", "新墨", "海盐与炊烟"],
        "sound": ["隔水的钟声", "有人调弦的声音", "木门的轻响", "头顶缓慢的振翅声"],
    },
)
