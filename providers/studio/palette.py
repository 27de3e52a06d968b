"""Colours that go together, chosen by a prompt's words or by chance."""

import colorsys
from dataclasses import dataclass
from random import Random

Color = tuple[int, int, int]


@dataclass(frozen=True)
class Palette:
    """Colours of one picture.

    `sky` from top to horizon, `land` from far to near, `light` shines, `accent` catches the eye,
    `ink` is the darkest.
    """

    name: str
    sky: tuple[Color, ...]
    land: tuple[Color, ...]
    light: Color
    accent: Color
    ink: Color

    @property
    def is_dark(self) -> bool:
        """Whether it is night in it."""
        return luminance(self.sky[0]) < 0.12


def _color(text: str) -> Color:
    return int(text[0:2], 16), int(text[2:4], 16), int(text[4:6], 16)


def _palette(name: str, sky: str, land: str, light: str, accent: str, ink: str) -> Palette:
    return Palette(
        name=name,
        sky=tuple(map(_color, sky.split())),
        land=tuple(map(_color, land.split())),
        light=_color(light),
        accent=_color(accent),
        ink=_color(ink),
    )


PALETTES = (
    _palette(
        "dusk",
        "1b1440 5a2a6e d8557a ffb37a",
        "8a4a7d 5d356b 3a2457 221a3d",
        "fff0d2",
        "ff7a59",
        "150f2b",
    ),
    _palette(
        "dawn",
        "5c7fb8 a9b9dc f5c9c4 ffe6c9",
        "b79fb8 8d86ab 5f6a94 3d4a73",
        "fff8e3",
        "ef6f6c",
        "232b4a",
    ),
    _palette(
        "night",
        "060b24 0f1d4a 23407a 4f7bb0",
        "35588f 23406f 152a50 0b1833",
        "fdf6d8",
        "ffb347",
        "050a1c",
    ),
    _palette(
        "jade",
        "d9efe3 b7e0d2 8fcbbd f4efd6",
        "7fb8a6 4f9a8b 2f766d 17514f",
        "fffbe8",
        "e8663d",
        "0e3537",
    ),
    _palette(
        "ember",
        "2a0d14 6d1a22 c53d2c ffa24b",
        "8b2b2a 661f25 43151e 270c15",
        "ffe9b0",
        "ffd166",
        "1c070f",
    ),
    _palette(
        "mist",
        "eef1f4 dfe6ea c9d6dc f3ece2",
        "b2c2c9 8ea5af 647f8c 3c5663",
        "ffffff",
        "c8553d",
        "22343d",
    ),
    _palette(
        "lagoon",
        "0b3c5d 1c7293 5cb8c4 d9f0e3",
        "3f94a0 27737f 15525f 0b3340",
        "fff6d6",
        "ff8c61",
        "07222d",
    ),
    _palette(
        "blossom",
        "f7d6e0 f9e2e7 fdeff0 fff8ec",
        "e5a9bd c77f9b 96587b 5f3658",
        "fffdf5",
        "d1495b",
        "3b2038",
    ),
    _palette(
        "aurora",
        "050d1e 0c2a3f 1a6a63 7fdcae",
        "16504f 103c42 0a2a34 061a24",
        "eafff3",
        "b388eb",
        "04111a",
    ),
    _palette(
        "desert",
        "3e6c9b 9cc0cf f3d9ae f7b267",
        "e09f5b c5763f 96512f 5f3223",
        "fff3d1",
        "d64933",
        "371b14",
    ),
    _palette(
        "violet",
        "150b2e 3b1c6b 7b3fa0 f08fc0",
        "6a3590 4d2670 341a50 1e1033",
        "ffe9f6",
        "5ce1e6",
        "120926",
    ),
    _palette(
        "harvest",
        "f6e7c1 f2cf8d e8a64c d9743a",
        "b9682f 8f4a29 633325 3c2020",
        "fff8df",
        "8c2f39",
        "2b1518",
    ),
)

_WORDS = {
    "night": ("night", "moon", "star", "midnight", "夜", "月", "星", "space", "宇宙"),
    "dusk": ("dusk", "sunset", "evening", "黄昏", "晚霞", "夕"),
    "dawn": ("dawn", "sunrise", "morning", "清晨", "黎明", "日出", "朝"),
    "ember": ("fire", "red", "lava", "火", "红", "festival", "节", "灯笼", "lantern"),
    "lagoon": ("sea", "ocean", "river", "lake", "blue", "海", "河", "江", "湖", "蓝", "wave"),
    "jade": ("forest", "green", "bamboo", "garden", "林", "竹", "绿", "jade", "tea", "茶"),
    "mist": ("fog", "mist", "snow", "winter", "雾", "雪", "冬", "cloud", "云", "ink", "水墨"),
    "blossom": ("flower", "blossom", "pink", "spring", "花", "樱", "春", "粉"),
    "aurora": ("aurora", "magic", "极光", "魔"),
    "desert": ("desert", "sand", "canyon", "沙", "漠"),
    "violet": ("neon", "cyber", "purple", "robot", "霓虹", "紫", "赛博", "机器"),
    "harvest": ("autumn", "harvest", "gold", "fall", "秋", "金", "wheat"),
}


def palette_for(prompt: str, chance: Random) -> Palette:
    """The palette that words of the prompt ask for, or else any; each a little different."""
    words = prompt.lower()
    asked = [name for name, told in _WORDS.items() if any(word in words for word in told)]
    names = asked or [palette.name for palette in PALETTES]
    name = chance.choice(names)
    chosen = next(palette for palette in PALETTES if palette.name == name)
    turn = chance.uniform(-0.025, 0.025)
    return Palette(
        name=name,
        sky=tuple(turned(color, turn) for color in chosen.sky),
        land=tuple(turned(color, turn) for color in chosen.land),
        light=chosen.light,
        accent=turned(chosen.accent, turn / 2),
        ink=chosen.ink,
    )


def turned(color: Color, turn: float) -> Color:
    """The colour with its hue turned by a part of the circle."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*(part / 255 for part in color))
    return _rounded(colorsys.hls_to_rgb((hue + turn) % 1, lightness, saturation))


def mixed(first: Color, second: Color, share: float) -> Color:
    """The colour between two, `share` of the way to the second."""
    red, green, blue = (
        round(one + (other - one) * share) for one, other in zip(first, second, strict=True)
    )
    return red, green, blue


def luminance(color: Color) -> float:
    """Relative luminance, 0 to 1 (WCAG 2)."""
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4
        for part in (value / 255 for value in color)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: Color, second: Color) -> float:
    """The contrast of two colours, 1 to 21 (WCAG 2)."""
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _rounded(parts: tuple[float, float, float]) -> Color:
    red, green, blue = (min(255, max(0, round(part * 255))) for part in parts)
    return red, green, blue
