"""Writes the prompt on a picture, in any script that the fonts of the wheels have."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from providers.studio.palette import Color, Palette, contrast, mixed

WHITE: Color = (255, 255, 255)
READABLE = 7.0
MAX_CHARACTERS = 1_200
WEIGHT = 500
PANEL_OPACITY = 0.82

# Simplified Chinese of the collection, then every other font of the wheels.
_CHINESE_FACE = 2
_MISSING = "\U0010fffd"
_EMOJI_FACE = 2
# Combining marks, joiners, and what changes the skin of emoji.
_MARKS = frozenset({"Mn", "Mc", "Me", "Cf", "Sk"})
# A word, a mark that must not begin a line with what it follows, or a space.
_TOKENS = re.compile(
    "\n|[^\\S\n]+|[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
    "[，。、；：！？）」』》〉】…,.;:!?)]*|[^\\s\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef"
    "\U00020000-\U0003ffff]+"
)


@dataclass(frozen=True)
class Block:
    """Text broken into lines at a size, in pixels."""

    lines: tuple[str, ...]
    size: int
    width: float
    is_whole: bool

    @property
    def line_height(self) -> int:
        """From one line to the next."""
        return round(self.size * 1.42)

    @property
    def height(self) -> int:
        """Of all lines."""
        return self.line_height * len(self.lines)


def write(picture: Image.Image, text: str, palette: Palette, *, prominence: float = 1.0) -> None:
    """Writes text on a panel at the foot of a picture, an RGB or RGBA one, in place."""
    if not text:
        return
    width, height = picture.size
    unit = min(width, height)
    margin = max(2, round(unit * 0.04))
    inset = max(2, round(unit * 0.032))
    room = (width - 2 * (margin + inset), round(height * 0.42) - 2 * inset)
    largest = max(8, round(unit * 0.036 * prominence))
    # One kind of line end: the layout of right-to-left text fails at the others.
    block = fitted("\n".join(text.splitlines()), room, largest)
    panel_width = min(width - 2 * margin, max(round(block.width), inset) + 2 * inset + 2)
    top = height - margin - block.height - 2 * inset
    panel = (margin, top, margin + panel_width, height - margin)
    _lay_panel(picture, panel, panel_color(palette), radius=inset)
    draw = ImageDraw.Draw(picture)
    for number, line in enumerate(block.lines):
        baseline = top + inset + block.line_height * number + round(block.size * 1.06)
        _write_line(draw, (margin + inset, baseline), line, block.size)


def panel_color(palette: Palette) -> Color:
    """The palette's ink, dark enough to read white on, whatever shines through."""
    color = palette.ink
    while contrast(WHITE, mixed(color, WHITE, 1 - PANEL_OPACITY)) < READABLE:
        color = mixed(color, (0, 0, 0), 0.2)
    return color


def fitted(text: str, room: tuple[int, int], largest: int) -> Block:
    """The text as large as it fits; cut at the smallest size that can be read."""
    cut = text[:MAX_CHARACTERS]
    smallest = max(7, min(largest, round(largest * 0.45)))
    sizes = sorted({largest, round(largest * 0.8), round(largest * 0.62), smallest}, reverse=True)
    block = _broken(cut, sizes[0], room)
    for size in sizes[1:]:
        if block.is_whole:
            break
        block = _broken(cut, size, room)
    return block


def _broken(text: str, size: int, room: tuple[int, int]) -> Block:
    most = max(1, room[1] // round(size * 1.42))
    lines: list[str] = []
    for line in _lines(text, size, room[0]):
        if len(lines) == most:
            lines[-1] = _shortened(lines[-1], size, room[0])
            return Block(tuple(lines), size, max(_length(each, size) for each in lines), False)
        lines.append(line)
    return Block(tuple(lines), size, max(_length(each, size) for each in lines), True)


def _lines(text: str, size: int, width: float) -> Iterator[str]:
    line, used = "", 0.0
    for piece in _pieces(text, size, width):
        if piece == "\n":
            yield line.rstrip()
            line, used = "", 0.0
            continue
        needed = _length(piece, size)
        if line and used + needed > width and not piece.isspace():
            yield line.rstrip()
            line, used = "", 0.0
        if line or not piece.isspace():
            line += piece
            used += needed
    if line.strip():
        yield line.rstrip()


def _pieces(text: str, size: int, width: float) -> Iterator[str]:
    """Tokens, those too long for a line cut into characters."""
    for token in _TOKENS.findall(text):
        if len(token) > 1 and _length(token, size) > width:
            yield from token
        else:
            yield token


def _shortened(line: str, size: int, width: float) -> str:
    while line and _length(f"{line}…", size) > width:
        line = line[:-1]
    return f"{line.rstrip()}…"


def _write_line(draw: ImageDraw.ImageDraw, place: tuple[int, int], line: str, size: int) -> None:
    x, y = float(place[0]), place[1]
    for run, font in _runs(line, size):
        draw.text((x, y), run, font=font, fill=WHITE, anchor="ls")
        x += font.getlength(run)


def _length(text: str, size: int) -> float:
    return sum(font.getlength(run) for run, font in _runs(text, size))


def _runs(text: str, size: int) -> Iterator[tuple[str, ImageFont.FreeTypeFont]]:
    """The text in pieces of one font each."""
    run, face = "", 0
    for character in text:
        own = face if run and _joins(character, face) else _face_of(character)
        if run and own != face:
            yield run, _font(face, size)
            run = ""
        run, face = run + character, own
    if run:
        yield run, _font(face, size)


def _joins(character: str, face: int) -> bool:
    """Whether a character is drawn by the font of what stands before it."""
    if character.isspace():
        # The emoji's own space is as wide as they are.
        return face != _EMOJI_FACE
    return unicodedata.category(character) in _MARKS


@lru_cache(maxsize=8192)
def _face_of(character: str) -> int:
    """The number of the first font that has the character; 0 if none has."""
    for face in range(len(_faces())):
        font = _font(face, 16)
        drawn, missing = font.getmask(character), font.getmask(_MISSING)
        if (drawn.size, bytes(drawn)) != (missing.size, bytes(missing)):
            return face
    return 0


@lru_cache(maxsize=256)
def _font(face: int, size: int) -> ImageFont.FreeTypeFont:
    path, index = _faces()[face]
    font = ImageFont.truetype(path, size, index=index)
    font.set_variation_by_axes([_weight(font)])
    return font


def _weight(font: ImageFont.FreeTypeFont) -> float:
    axis = font.get_variation_axes()[0]
    return min(max(WEIGHT, axis["minimum"] or WEIGHT), axis["maximum"] or WEIGHT)


@cache
def _faces() -> Sequence[tuple[str, int]]:
    """Where the fonts are: Chinese, then Latin, emoji, and the other scripts by name."""
    chinese = _folder("manimgx_fonts_cjk") / "NotoSansCJK-VF.otf.ttc"
    first = ("NotoSans[wght].ttf", "NotoEmoji[wght].ttf")
    folder = _folder("manimgx_fonts")
    others = sorted(path.name for path in folder.glob("NotoSans*.ttf"))
    names = [*first, *(name for name in others if name not in first and "Italic" not in name)]
    return [(str(chinese), _CHINESE_FACE), *((str(folder / name), 0) for name in names)]


def _folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None, f"{package} is a dependency of ours"
    assert spec.origin is not None
    return Path(spec.origin).parent


def _lay_panel(
    picture: Image.Image, box: tuple[int, int, int, int], color: Color, *, radius: int
) -> None:
    """A rounded panel; on a transparent ground it is opaque, so that it can be read anywhere."""
    left, top, right, bottom = box
    size = (right - left, bottom - top)
    mask = Image.new("L", (2 * size[0], 2 * size[1]), 0)
    opacity = 255 if picture.mode == "RGBA" else round(255 * PANEL_OPACITY)
    ImageDraw.Draw(mask).rounded_rectangle(
        (0, 0, 2 * size[0] - 1, 2 * size[1] - 1), 2 * radius, fill=opacity
    )
    mask = mask.resize(size, Image.Resampling.BOX)
    fill = (*color, 255) if picture.mode == "RGBA" else color
    picture.paste(Image.new(picture.mode, size, fill), (left, top), mask)
