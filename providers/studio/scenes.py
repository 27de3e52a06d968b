"""What the studio paints: a scene for each prompt, by its words or by chance."""

import math
from collections.abc import Callable
from random import Random

from providers.studio.brush import (
    Sheet,
    cloud,
    disc,
    glow,
    ground,
    mist,
    ramp,
    ridge_line,
    shadow,
    stars,
    tinted,
    water,
)
from providers.studio.motifs import (
    along,
    ball,
    birds,
    boat,
    figure,
    flower,
    grass,
    lanterns,
    oval,
    pines,
    planet,
    planet_ring,
    scale,
    sky,
    stem,
    tile,
    tower,
)
from providers.studio.palette import Palette, mixed

Scene = Callable[[Sheet, Palette, str], None]


def landscape(sheet: Sheet, palette: Palette, words: str) -> None:
    """Hills behind hills under a moon or a sun, perhaps a lake, perhaps lanterns over it."""
    chance, unit = sheet.chance, sheet.unit
    horizon = sheet.height * chance.uniform(0.5, 0.62)
    sky(sheet, palette, horizon)
    layers = chance.randint(4, 6)
    wet = _says(words, _WATER) or chance.random() < 0.45
    last = horizon + (sheet.height - horizon) * (0.12 if wet else 0.75)
    for layer in range(layers):
        share = layer / (layers - 1)
        base = horizon - unit * 0.07 * (1 - share) + (last - horizon) * share
        height = unit * (0.15 - 0.06 * share) * chance.uniform(0.7, 1.3)
        color = along(palette.land, share)
        haze = mixed(color, palette.sky[-1], 0.5 * (1 - share))
        line = ridge_line(sheet, base, height, chance.uniform(0.42, 0.55))
        ground(sheet, line, haze, mixed(color, palette.sky[-1], 0.65 * (1 - share)))
        if layer < layers - 1:
            mist(sheet, base + unit * 0.05, unit * 0.07, palette.sky[-1], 0.34 * (1 - share))
        if 0.2 < share < 0.95 and (_says(words, _TREES) or chance.random() < 0.4):
            pines(sheet, line, mixed(color, palette.ink, 0.35), 0.02 + 0.03 * share)
    if wet:
        water(
            sheet, last + unit * 0.01, mixed(palette.land[-1], palette.sky[1], 0.25), palette.light
        )
        if _says(words, _BOATS) or chance.random() < 0.5:
            boat(sheet, palette, last)
    if _says(words, _LANTERNS):
        lanterns(sheet, palette, chance.randint(9, 14))
    elif not palette.is_dark:
        birds(sheet, palette, horizon)
    if not wet:
        grass(sheet, palette)


def city(sheet: Sheet, palette: Palette, words: str) -> None:
    """Rows of towers, the nearest darkest, with lit windows and a street of light."""
    chance, unit = sheet.chance, sheet.unit
    horizon = sheet.height * 0.74
    sky(sheet, palette, horizon)
    for row in range(4):
        share = row / 3
        color = mixed(palette.sky[-2], palette.ink, 0.3 + 0.66 * share)
        x = -unit * 0.05
        while x < sheet.width:
            width = unit * chance.uniform(0.05, 0.13) * (0.7 + 0.6 * share)
            tall = unit * (chance.uniform(0.22, 0.62) - 0.14 * share)
            tower(sheet, palette, (x, horizon - tall), width, color, lit=0.12 + 0.4 * share)
            x += width * chance.uniform(0.92, 1.15)
        if row < 3:
            mist(sheet, horizon - unit * 0.04, unit * 0.13, palette.sky[-1], 0.4 * (1 - share))
    water(sheet, horizon, mixed(palette.ink, palette.sky[1], 0.35), palette.light)
    if _says(words, _LANTERNS):
        lanterns(sheet, palette, 8)


def waves(sheet: Sheet, palette: Palette, words: str) -> None:
    """A sea of scales, row over row, under a great sun, as on old cloth."""
    chance, unit = sheet.chance, sheet.unit
    horizon = sheet.height * chance.uniform(0.34, 0.46)
    sheet.image.paste(ramp(sheet.image.size, palette.sky))
    sun = (sheet.width * chance.uniform(0.3, 0.7), horizon * 0.9)
    glow(sheet, sun, unit * 0.6, palette.light, 0.75)
    disc(sheet, sun, unit * chance.uniform(0.17, 0.23), mixed(palette.light, palette.accent, 0.75))
    for _ in range(4):
        place = (chance.uniform(0, sheet.width), chance.uniform(0.1, 0.7) * horizon)
        cloud(sheet, place, unit * chance.uniform(0.4, 0.8), palette.light, 0.55)
    deep, shallow = palette.land[-1], mixed(palette.land[0], palette.light, 0.15)
    radius = sheet.width / chance.randint(9, 13) / 2
    row, y = 0, horizon
    while y < sheet.height + radius:
        share = min(1.0, (y - horizon) / (sheet.height - horizon))
        tone = mixed(shallow, deep, 0.2 + 0.75 * share)
        x = -radius if row % 2 else 0.0
        while x <= sheet.width + radius:
            lift = unit * 0.01 * math.sin(x / sheet.width * math.tau * 1.5 + row * 0.7)
            scale(sheet, (x, y + lift), radius, tone, mixed(tone, palette.light, 0.7))
            x += 2 * radius
        y += radius * 0.5
        row += 1
    if _says(words, _BOATS) or chance.random() < 0.6:
        boat(sheet, palette, horizon + unit * 0.02)
    birds(sheet, palette, horizon)


def cosmos(sheet: Sheet, palette: Palette, words: str) -> None:
    """A planet with its ring and moons among stars and glowing dust."""
    chance, unit = sheet.chance, sheet.unit
    night = mixed(palette.ink, (4, 6, 18), 0.6)
    sheet.image.paste(ramp(sheet.image.size, (night, mixed(night, palette.sky[1], 0.5), night)))
    for _ in range(7):
        place = (chance.uniform(0, sheet.width), chance.uniform(0, sheet.height))
        color = chance.choice((palette.accent, palette.sky[-1], palette.sky[-2], palette.land[0]))
        glow(sheet, place, unit * chance.uniform(0.35, 0.8), color, chance.uniform(0.12, 0.3))
    stars(sheet, 380, sheet.height, palette.light, night)
    middle = (sheet.width * chance.uniform(0.38, 0.62), sheet.height * chance.uniform(0.36, 0.46))
    radius = unit * chance.uniform(0.19, 0.25)
    draw = sheet.draw()
    faint = mixed(night, palette.light, 0.22)
    for orbit in range(3):
        reach = radius * (1.9 + 0.55 * orbit)
        box = (middle[0] - reach, middle[1] - reach, middle[0] + reach, middle[1] + reach)
        draw.ellipse(box, outline=faint, width=max(1, round(unit * 0.0012)))
        turn = chance.uniform(0, math.tau)
        place = (middle[0] + reach * math.cos(turn), middle[1] + reach * math.sin(turn))
        color = chance.choice((palette.accent, palette.light, palette.land[0]))
        ball(sheet, place, unit * chance.uniform(0.012, 0.03), color, night)
    glow(sheet, middle, radius * 1.7, palette.accent, 0.5)
    tilt = chance.uniform(-0.5, 0.5)
    planet_ring(sheet, palette, middle, radius, tilt, behind=True)
    planet(sheet, palette, middle, radius, night)
    planet_ring(sheet, palette, middle, radius, tilt, behind=False)
    if _says(words, _LANTERNS):
        lanterns(sheet, palette, 7)


def tiles(sheet: Sheet, palette: Palette, _words: str) -> None:
    """A floor of arcs, discs and triangles in few colours."""
    chance, unit = sheet.chance, sheet.unit
    side = unit / chance.choice((4, 5, 6))
    colors = (*palette.land[:3], palette.accent, palette.light, palette.sky[0], palette.sky[-1])
    draw = sheet.draw()
    for row in range(math.ceil(sheet.height / side)):
        for column in range(math.ceil(sheet.width / side)):
            below, above = chance.sample(colors, 2)
            tile(draw, (column * side, row * side), side, (below, above, palette.ink), chance)


def garden(sheet: Sheet, palette: Palette, _words: str) -> None:
    """Flowers and leaves before a great pale disc."""
    chance, unit = sheet.chance, sheet.unit
    pale = tuple(mixed(color, palette.light, 0.62) for color in palette.sky)
    sheet.image.paste(ramp(sheet.image.size, pale))
    sun = (sheet.width * chance.uniform(0.35, 0.65), sheet.height * 0.4)
    disc(sheet, sun, unit * 0.3, mixed(palette.accent, pale[0], 0.72))
    disc(sheet, sun, unit * 0.25, mixed(palette.accent, pale[0], 0.6))
    for layer in range(3):
        share = layer / 2
        count = round(sheet.width / unit * chance.randint(5, 7))
        for number in range(count):
            x = sheet.width * (number + chance.uniform(0.1, 0.9)) / count
            tall = unit * chance.uniform(0.3, 0.62) * (1.15 - 0.3 * share)
            lean = unit * chance.uniform(-0.12, 0.12)
            green = mixed(palette.land[layer + 1], pale[0], 0.45 * (1 - share))
            tip = (x + lean, sheet.height - tall)
            stem(sheet, (x, float(sheet.height)), tip, green)
            petals = chance.choice(
                (palette.accent, palette.land[0], mixed(palette.accent, palette.light, 0.5))
            )
            petals = mixed(petals, pale[0], 0.4 * (1 - share))
            flower(sheet, tip, unit * chance.uniform(0.035, 0.075), petals, palette.light)


def creature(sheet: Sheet, palette: Palette, _words: str) -> None:
    """Somebody friendly, in the middle of a soft stage."""
    unit = sheet.unit
    pale = [mixed(color, palette.light, 0.55) for color in palette.sky]
    sheet.image.paste(ramp(sheet.image.size, pale))
    middle = (sheet.width / 2, sheet.height * 0.47)
    glow(sheet, middle, unit * 0.62, palette.light, 0.9)
    tinted(
        sheet,
        oval((middle[0], middle[1] + unit * 0.29), unit * 0.26, unit * 0.035),
        palette.ink,
        0.25,
    )
    figure(sheet, palette)


def screen(sheet: Sheet, palette: Palette, _words: str) -> None:
    """A window of an application, laid out in cards."""
    chance, unit = sheet.chance, sheet.unit
    sheet.image.paste(ramp(sheet.image.size, palette.sky))
    glow(sheet, (sheet.width * 0.8, sheet.height * 0.1), unit * 0.8, palette.accent, 0.5)
    paper = mixed(palette.light, (255, 255, 255), 0.7)
    line, faint = mixed(paper, palette.ink, 0.16), mixed(paper, palette.land[0], 0.16)
    left, top = sheet.width * 0.08, sheet.height * 0.08
    right, bottom = sheet.width * 0.92, sheet.height * 0.76
    draw, round_ = sheet.draw(), unit * 0.028
    shadow(sheet, (left, top, right, bottom), palette.ink)
    draw.rounded_rectangle((left, top, right, bottom), round_, fill=paper)
    bar = left + (right - left) * 0.2
    draw.rounded_rectangle(
        (left, top, bar, bottom), round_, fill=palette.land[-1], corners=(True, False, False, True)
    )
    for dot, color in enumerate(((255, 95, 87), (254, 188, 46), (40, 200, 64))):
        disc(sheet, (left + unit * (0.035 + 0.032 * dot), top + unit * 0.035), unit * 0.009, color)
    for item in range(6):
        y = top + unit * (0.1 + 0.058 * item)
        long = (bar - left) * chance.uniform(0.4, 0.66)
        color = palette.accent if item == 1 else mixed(palette.land[-1], palette.light, 0.3)
        draw.rounded_rectangle(
            (left + unit * 0.028, y, left + unit * 0.028 + long, y + unit * 0.02),
            unit * 0.01,
            fill=color,
        )
    gap, x0, x1 = unit * 0.028, bar + unit * 0.035, right - unit * 0.035
    third = (x1 - x0 - 2 * gap) / 3
    y0 = top + unit * 0.05
    for card in range(3):
        x = x0 + card * (third + gap)
        draw.rounded_rectangle((x, y0, x + third, y0 + unit * 0.13), unit * 0.018, fill=faint)
        draw.rounded_rectangle(
            (x + gap / 2, y0 + gap / 2, x + third * 0.5, y0 + gap), unit * 0.007, fill=line
        )
        figure_ = third * chance.uniform(0.35, 0.75)
        draw.rounded_rectangle(
            (x + gap / 2, y0 + gap * 1.7, x + gap / 2 + figure_, y0 + gap * 2.8),
            unit * 0.012,
            fill=(palette.accent, *palette.land)[card],
        )
    top_of_chart, foot = y0 + unit * 0.13 + gap, bottom - unit * 0.04
    draw.rounded_rectangle((x0, top_of_chart, x1, foot), unit * 0.018, fill=faint)
    count = 12
    step = (x1 - x0 - 2 * gap) / count
    for column in range(count):
        share = 0.25 + 0.6 * abs(math.sin(column * 0.55 + chance.uniform(0, 0.5)))
        x = x0 + gap + column * step
        y = foot - gap - (foot - top_of_chart - 2 * gap) * share
        color = (
            palette.accent if column % 4 == 2 else mixed(palette.land[0], palette.land[2], share)
        )
        draw.rounded_rectangle(
            (x + step * 0.18, y, x + step * 0.82, foot - gap),
            step * 0.2,
            fill=color,
            corners=(True, True, False, False),
        )


def scene_for(prompt: str, subtype: str, chance: Random) -> Scene:
    """The scene that subtype or words of the prompt ask for, or else any."""
    words = prompt.lower()
    by_subtype = {"character": creature, "ui_design": screen, "style_guide": tiles}
    if subtype in by_subtype:
        return by_subtype[subtype]
    asked = [scene for scene, told in _SCENE_WORDS if _says(words, told)]
    return chance.choice(asked or [landscape, landscape, city, waves, cosmos, tiles, garden])


_WATER = ("river", "lake", "sea", "water", "reflection", "河", "江", "湖", "水", "海")
_TREES = ("forest", "tree", "pine", "wood", "林", "树", "松", "森")
_BOATS = ("boat", "sail", "ship", "船", "舟", "帆")
_LANTERNS = ("lantern", "灯笼", "灯", "lamp", "festival", "元宵")
_SCENE_WORDS: tuple[tuple[Scene, tuple[str, ...]], ...] = (
    (
        landscape,
        (
            "mountain",
            "hill",
            "valley",
            "river",
            "lake",
            "forest",
            "landscape",
            "lantern",
            "village",
            "山",
            "河",
            "江",
            "湖",
            "林",
            "村",
            "灯",
            "temple",
            "寺",
        ),
    ),
    (city, ("city", "street", "skyline", "tower", "urban", "neon", "城", "楼", "街", "都市")),
    (waves, ("sea", "ocean", "wave", "beach", "海", "浪", "波")),
    (cosmos, ("space", "planet", "galaxy", "cosmos", "rocket", "星球", "宇宙", "太空", "银河")),
    (tiles, ("pattern", "grid", "abstract", "geometric", "logo", "tile", "图案", "几何", "抽象")),
    (garden, ("flower", "garden", "bloom", "blossom", "plant", "花", "园", "草")),
    (
        creature,
        (
            "character",
            "monster",
            "robot",
            "cat",
            "dog",
            "rabbit",
            "mascot",
            "creature",
            "猫",
            "狗",
            "兔",
            "熊",
            "角色",
            "怪",
            "机器人",
            "吉祥物",
        ),
    ),
    (screen, ("dashboard", "app screen", "website", "ui design", "界面", "网页")),
)


def _says(words: str, told: tuple[str, ...]) -> bool:
    return any(word in words for word in told)
