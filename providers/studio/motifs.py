"""What the studio's scenes are made of: lanterns, boats, trees, towers, planets, somebody."""

import math
from random import Random

from PIL import Image, ImageDraw

from providers.studio.brush import Point, Sheet, cloud, disc, glow, ramp, stars, tinted
from providers.studio.palette import Color, Palette, mixed


def sky(sheet: Sheet, palette: Palette, horizon: float) -> None:
    """A sky with stars or clouds, and the moon or the sun."""
    chance, unit = sheet.chance, sheet.unit
    height = round(horizon + unit * 0.1)
    sheet.image.paste(palette.sky[-1], (0, 0, *sheet.image.size))
    sheet.image.paste(ramp((sheet.width, height), palette.sky), (0, 0))
    if palette.is_dark:
        stars(sheet, 260, horizon * 0.8, palette.light, palette.sky[0])
    place = (sheet.width * chance.uniform(0.2, 0.8), horizon * chance.uniform(0.26, 0.5))
    radius = unit * chance.uniform(0.055, 0.105)
    glow(sheet, place, radius * 6, palette.light, 0.5)
    glow(sheet, place, radius * 2.4, palette.light, 0.65)
    disc(sheet, place, radius, palette.light)
    if palette.is_dark:
        for _ in range(6):
            turn, far = chance.uniform(0, math.tau), chance.uniform(0.1, 0.62) * radius
            spot = radius * chance.uniform(0.07, 0.2)
            center = (place[0] + far * math.cos(turn), place[1] + far * math.sin(turn))
            disc(sheet, center, spot, mixed(palette.light, palette.sky[1], 0.13))
    for _ in range(chance.randint(2, 5)):
        center = (chance.uniform(0, sheet.width), horizon * chance.uniform(0.15, 0.85))
        color = mixed(palette.sky[-1], palette.light, 0.6)
        cloud(
            sheet, center, unit * chance.uniform(0.35, 0.9), color, 0.25 if palette.is_dark else 0.6
        )


def lanterns(sheet: Sheet, palette: Palette, count: int) -> None:
    """Paper lanterns that rise, the far ones small."""
    chance, unit = sheet.chance, sheet.unit
    sizes = sorted(0.018 + 0.062 * chance.random() ** 1.7 for _ in range(count))
    for index, size in enumerate(sizes):
        place = (
            sheet.width * ((index * 0.618 + chance.uniform(-0.04, 0.04)) % 1) * 0.92
            + sheet.width * 0.04,
            sheet.height * chance.uniform(0.08, 0.6),
        )
        _lantern(sheet, palette, place, unit * size)


def _lantern(sheet: Sheet, palette: Palette, center: Point, size: float) -> None:
    x, y = center
    draw = sheet.draw()
    glow(sheet, center, size * 4.2, palette.accent, 0.55)
    red = mixed(palette.accent, (226, 60, 36), 0.55)
    bright = mixed(palette.light, (255, 196, 92), 0.4)
    for shell in range(7):
        share = shell / 6
        wide, tall = size * (1 - 0.86 * share), size * (1.12 - 0.5 * share)
        draw.polygon(oval((x, y), wide, tall, 2.5), fill=mixed(red, bright, share * 0.92))
    thin = max(1, round(size * 0.035))
    for rib in (0.38, 0.76):
        box = (x - size * rib, y - size * 1.1, x + size * rib, y + size * 1.1)
        draw.ellipse(box, outline=mixed(red, palette.ink, 0.3), width=thin)
    gold, cap = mixed(palette.light, (214, 158, 46), 0.7), size * 0.42
    for edge in (-1, 1):
        middle = y + edge * size * 1.1
        draw.rectangle((x - cap, middle - size * 0.09, x + cap, middle + size * 0.09), fill=gold)
    draw.line((x, y - size * 1.1, x, y - size * 1.6), fill=gold, width=thin)
    for thread in (-0.2, 0, 0.2):
        draw.line(
            (x + size * thread * 0.4, y + size * 1.2, x + size * thread, y + size * 1.95),
            fill=red,
            width=thin,
        )


def pines(sheet: Sheet, line: list[Point], color: Color, size: float) -> None:
    """Trees along a line of hills."""
    chance, draw = sheet.chance, sheet.draw()
    for point, y in line[::2]:
        if chance.random() < 0.45:
            continue
        x = point + sheet.width * chance.uniform(-0.004, 0.004)
        tall = sheet.unit * size * chance.uniform(0.6, 1.5)
        wide = tall * 0.24
        foot = y + tall * 0.1
        for tier in range(3):
            top = foot - tall + tall * 0.27 * tier
            spread = wide * (0.5 + 0.25 * tier)
            draw.polygon(
                [(x, top), (x - spread, top + tall * 0.46), (x + spread, top + tall * 0.46)],
                fill=color,
            )


def grass(sheet: Sheet, palette: Palette) -> None:
    """Blades at the foot of the picture."""
    chance, draw, unit = sheet.chance, sheet.draw(), sheet.unit
    for _ in range(round(260 * sheet.width / unit)):
        x = chance.uniform(-0.02, 1.02) * sheet.width
        tall = unit * chance.uniform(0.03, 0.1)
        lean = tall * chance.uniform(-0.5, 0.5)
        wide = unit * 0.0035
        color = mixed(palette.ink, palette.land[-1], chance.uniform(0.1, 0.9))
        draw.polygon(
            [(x - wide, sheet.height), (x + lean, sheet.height - tall), (x + wide, sheet.height)],
            fill=color,
        )


def birds(sheet: Sheet, palette: Palette, horizon: float) -> None:
    """A flock far away."""
    chance, draw, unit = sheet.chance, sheet.draw(), sheet.unit
    x, y = sheet.width * chance.uniform(0.2, 0.7), horizon * chance.uniform(0.25, 0.6)
    for _ in range(chance.randint(4, 9)):
        span = unit * chance.uniform(0.008, 0.018)
        at = (x + unit * chance.gauss(0, 0.09), y + unit * chance.gauss(0, 0.045))
        width = max(1, round(unit * 0.0024))
        draw.line(
            [
                (at[0] - span, at[1] - span * 0.45),
                (at[0] - span * 0.4, at[1] - span * 0.5),
                at,
                (at[0] + span * 0.4, at[1] - span * 0.5),
                (at[0] + span, at[1] - span * 0.45),
            ],
            fill=palette.ink,
            width=width,
            joint="curve",
        )


def boat(sheet: Sheet, palette: Palette, horizon: float) -> None:
    """A boat with two sails on the water below a horizon."""
    chance, draw, unit = sheet.chance, sheet.draw(), sheet.unit
    x = sheet.width * chance.uniform(0.2, 0.8)
    y = horizon + (sheet.height - horizon) * chance.uniform(0.2, 0.4)
    size = unit * chance.uniform(0.05, 0.08)
    tinted(sheet, oval((x, y + size * 0.3), size * 1.2, size * 0.12), palette.ink, 0.3)
    draw.polygon(
        [
            (x - size, y),
            (x + size, y),
            (x + size * 0.66, y + size * 0.32),
            (x - size * 0.66, y + size * 0.32),
        ],
        fill=palette.ink,
    )
    sail = mixed(palette.light, palette.accent, chance.choice((0.1, 0.8)))
    draw.polygon(
        [
            (x - size * 0.06, y - size * 0.06),
            (x - size * 0.06, y - size * 1.7),
            (x + size * 0.86, y - size * 0.18),
        ],
        fill=sail,
    )
    draw.polygon(
        [
            (x - size * 0.14, y - size * 0.06),
            (x - size * 0.14, y - size * 1.35),
            (x - size * 0.66, y - size * 0.16),
        ],
        fill=mixed(sail, palette.ink, 0.18),
    )


def tower(
    sheet: Sheet, palette: Palette, corner: Point, width: float, color: Color, *, lit: float
) -> None:
    """A tower from its upper left corner down, some of its windows lit."""
    chance, draw = sheet.chance, sheet.draw()
    x, y = corner
    draw.rectangle((x, y, x + width, sheet.height), fill=color)
    crown = chance.choice(("flat", "flat", "step", "spire", "slope"))
    if crown == "step":
        draw.rectangle((x + width * 0.2, y - width * 0.3, x + width * 0.8, y), fill=color)
    elif crown == "spire":
        draw.polygon(
            [(x + width * 0.42, y), (x + width * 0.5, y - width * 0.9), (x + width * 0.58, y)],
            fill=color,
        )
    elif crown == "slope":
        draw.polygon([(x, y), (x + width, y - width * 0.4), (x + width, y)], fill=color)
    pane = sheet.unit * 0.0085
    columns = max(1, int(width / (pane * 2.1)))
    step = width / columns
    warm = (palette.light, palette.accent, mixed(palette.light, palette.accent, 0.4))
    for row in range(int((sheet.height * 0.74 - y) / (pane * 2.6))):
        for column in range(columns):
            if chance.random() < lit:
                left = x + step * column + (step - pane) / 2
                top = y + pane * 1.4 + row * pane * 2.6
                shine = mixed(color, chance.choice(warm), chance.uniform(0.55, 0.95))
                draw.rectangle((left, top, left + pane, top + pane * 1.3), fill=shine)


def scale(sheet: Sheet, center: Point, radius: float, tone: Color, line: Color) -> None:
    """One scale of a sea: rings in rings."""
    x, y = center
    draw = sheet.draw()
    for ring in range(4):
        outer, inner = radius * (1 - 0.24 * ring), radius * (0.9 - 0.24 * ring)
        draw.ellipse((x - outer, y - outer, x + outer, y + outer), fill=line)
        draw.ellipse(
            (x - inner, y - inner, x + inner, y + inner), fill=mixed(tone, line, 0.12 * ring)
        )


def planet(sheet: Sheet, palette: Palette, middle: Point, radius: float, night: Color) -> None:
    """A banded ball with its night side."""
    chance = sheet.chance
    side = round(2 * radius)
    bands = Image.new("RGB", (1, 48))
    tones = [palette.accent, palette.land[0], palette.sky[-1], palette.land[1]]
    tone = chance.choice(tones)
    for step in range(48):
        if chance.random() < 0.3:
            tone = mixed(chance.choice(tones), palette.accent, 0.35)
        bands.putpixel((0, step), tone)
    face = bands.resize((side, side), Image.Resampling.BICUBIC)
    face = face.rotate(chance.uniform(-25, 25), Image.Resampling.BICUBIC, fillcolor=tones[0])
    # Shadow on the side that is away from the light.
    shade = Image.radial_gradient("L").resize((side * 2, side * 2), Image.Resampling.BICUBIC)
    away = round(side * 0.66)
    shade = shade.crop((away, away, away + side, away + side)).point(
        [min(245, round(step * 1.75)) for step in range(256)]
    )
    face = Image.composite(Image.new("RGB", face.size, night), face, shade)
    mask = Image.new("L", (side, side), 0)
    ImageDraw.Draw(mask).ellipse((0, 0, side - 1, side - 1), fill=255)
    sheet.image.paste(face, (round(middle[0] - radius), round(middle[1] - radius)), mask)


def planet_ring(
    sheet: Sheet, palette: Palette, middle: Point, radius: float, tilt: float, *, behind: bool
) -> None:
    """The half of a planet's rings that is behind it, or before it."""
    half = range(48, 97) if behind else range(49)
    for inner, color, opacity in (
        (1.34, palette.light, 0.75),
        (1.5, palette.accent, 0.6),
        (1.68, palette.light, 0.4),
    ):
        edges: list[list[Point]] = []
        for reach in (inner, inner + 0.13):
            edge = []
            for step in half:
                turn = step / 96 * math.tau
                x, y = radius * reach * math.cos(turn), radius * reach * 0.26 * math.sin(turn)
                edge.append(
                    (
                        middle[0] + x * math.cos(tilt) - y * math.sin(tilt),
                        middle[1] + x * math.sin(tilt) + y * math.cos(tilt),
                    )
                )
            edges.append(edge)
        tinted(sheet, [*edges[0], *reversed(edges[1])], color, opacity)


def ball(sheet: Sheet, center: Point, radius: float, color: Color, night: Color) -> None:
    """A small moon."""
    disc(sheet, center, radius, mixed(color, night, 0.45))
    disc(sheet, (center[0] - radius * 0.14, center[1] - radius * 0.14), radius * 0.86, color)


def tile(
    draw: ImageDraw.ImageDraw,
    corner: Point,
    side: float,
    colors: tuple[Color, Color, Color],
    chance: Random,
) -> None:
    """One tile of a floor; `colors` are the ground, the shape, and the darkest."""
    x, y = corner
    below, above, ink = colors
    draw.rectangle((x, y, x + side, y + side), fill=below)
    kind = chance.choice(("quarter", "quarter", "disc", "half", "triangle", "rings", "bars"))
    turn = chance.randrange(4)
    cx, cy = x + side * (turn in (1, 2)), y + side * (turn in (2, 3))
    if kind == "quarter":
        draw.pieslice(
            (cx - side, cy - side, cx + side, cy + side), 90 * turn, 90 * turn + 90, fill=above
        )
    elif kind == "disc":
        draw.ellipse(
            (x + side * 0.14, y + side * 0.14, x + side * 0.86, y + side * 0.86), fill=above
        )
        draw.ellipse((x + side * 0.36, y + side * 0.36, x + side * 0.64, y + side * 0.64), fill=ink)
    elif kind == "half":
        draw.pieslice((x, y, x + side, y + side), 90 * turn, 90 * turn + 180, fill=above)
    elif kind == "triangle":
        corners = [(x, y), (x + side, y), (x + side, y + side), (x, y + side)]
        draw.polygon([corner for index, corner in enumerate(corners) if index != turn], fill=above)
    elif kind == "rings":
        for ring, color in ((1.0, above), (0.75, below), (0.5, above), (0.25, ink)):
            reach = side * ring
            draw.pieslice(
                (cx - reach, cy - reach, cx + reach, cy + reach),
                90 * turn,
                90 * turn + 90,
                fill=color,
            )
    else:
        for bar in range(0, 6, 2):
            if turn % 2:
                box = (x + side * bar / 6, y, x + side * (bar + 1) / 6, y + side)
            else:
                box = (x, y + side * bar / 6, x + side, y + side * (bar + 1) / 6)
            draw.rectangle(box, fill=above)


def stem(sheet: Sheet, foot: Point, tip: Point, color: Color) -> None:
    """A stem with leaves, from its foot to its tip."""
    draw, unit, chance = sheet.draw(), sheet.unit, sheet.chance
    bend = (foot[0], (foot[1] + tip[1]) / 2)
    curve = []
    for step in range(21):
        share = step / 20
        curve.append(
            (
                (1 - share) ** 2 * foot[0] + 2 * share * (1 - share) * bend[0] + share**2 * tip[0],
                (1 - share) ** 2 * foot[1] + 2 * share * (1 - share) * bend[1] + share**2 * tip[1],
            )
        )
    draw.line(curve, fill=color, width=max(1, round(unit * 0.006)), joint="curve")
    for leaf in range(chance.randint(2, 4)):
        x, y = curve[4 + 4 * leaf]
        side = 1 if leaf % 2 else -1
        long = unit * chance.uniform(0.05, 0.09)
        rise = long * chance.uniform(0.35, 0.8)
        draw.polygon(
            [
                (x, y),
                (x + side * long * 0.45, y - rise * 0.9),
                (x + side * long, y - rise),
                (x + side * long * 0.55, y - rise * 0.2),
            ],
            fill=color,
        )


def flower(sheet: Sheet, center: Point, size: float, color: Color, light: Color) -> None:
    """A flower of chance petals."""
    chance, draw = sheet.chance, sheet.draw()
    count = chance.choice((5, 6, 8, 11))
    start = chance.uniform(0, math.tau)
    dark = mixed(color, (40, 10, 40), 0.18)
    for petal in range(count):
        turn = start + petal / count * math.tau
        cos, sin = math.cos(turn), math.sin(turn)
        outline = [
            (
                center[0] + size * (0.62 + along) * cos - size * across * sin,
                center[1] + size * (0.62 + along) * sin + size * across * cos,
            )
            for along, across in oval((0, 0), 0.52, 1.9 / count + 0.04)
        ]
        draw.polygon(outline, fill=color if petal % 2 else dark)
    disc(sheet, center, size * 0.34, light)
    disc(sheet, center, size * 0.2, mixed(light, (190, 120, 20), 0.5))


def figure(sheet: Sheet, palette: Palette) -> None:
    """The body of somebody friendly: ears, eyes, arms and colours by chance."""
    chance, unit = sheet.chance, sheet.unit
    x, y = sheet.width / 2, sheet.height * 0.47
    body = chance.choice((palette.accent, palette.land[0], palette.land[1]))
    shade, belly = mixed(body, palette.ink, 0.35), mixed(body, palette.light, 0.72)
    wide, tall = unit * chance.uniform(0.19, 0.24), unit * chance.uniform(0.24, 0.28)
    draw = sheet.draw()
    ears = chance.choice(("round", "long", "horn", "leaf"))
    for side in (-1, 1):
        ear = (x + side * wide * 0.55, y - tall * 0.86)
        shape = {
            "round": oval((ear[0] + side * wide * 0.12, ear[1]), wide * 0.36, wide * 0.36),
            "long": oval((ear[0], ear[1] - tall * 0.26), wide * 0.2, tall * 0.46),
            "horn": [
                (ear[0] - wide * 0.26, ear[1] + tall * 0.16),
                (ear[0] + side * wide * 0.3, ear[1] - tall * 0.38),
                (ear[0] + wide * 0.26, ear[1] + tall * 0.16),
            ],
            "leaf": oval(
                (ear[0] + side * wide * 0.35, ear[1] - tall * 0.06), wide * 0.46, wide * 0.2
            ),
        }[ears]
        draw.polygon(shape, fill=shade)
        draw.polygon(
            oval((x + side * wide * 1.02, y + tall * 0.2), wide * 0.2, tall * 0.3), fill=shade
        )
        draw.polygon(
            oval((x + side * wide * 0.45, y + tall * 0.98), wide * 0.32, tall * 0.14), fill=shade
        )
    draw.polygon(oval((x, y), wide, tall, 2.6), fill=body)
    draw.polygon(oval((x, y + tall * 0.38), wide * 0.66, tall * 0.5, 2.2), fill=belly)
    eye = unit * chance.uniform(0.03, 0.042)
    for side in (-1, 1):
        place = (x + side * wide * 0.42, y - tall * 0.32)
        disc(sheet, place, eye, (255, 255, 255))
        disc(sheet, (place[0] + eye * 0.12, place[1] + eye * 0.1), eye * 0.66, palette.ink)
        disc(sheet, (place[0] + eye * 0.34, place[1] - eye * 0.22), eye * 0.22, (255, 255, 255))
        cheek = (x + side * wide * 0.66, y - tall * 0.08)
        draw.polygon(oval(cheek, eye * 0.8, eye * 0.45), fill=mixed(body, (255, 120, 130), 0.55))
    smile = (x - eye, y - tall * 0.2, x + eye, y - tall * 0.06)
    draw.arc(smile, 20, 160, fill=palette.ink, width=max(1, round(unit * 0.007)))
    for spot in range(chance.randint(0, 3)):
        place = (x + wide * (0.2 * spot - 0.2), y - tall * (0.72 + 0.06 * (spot % 2)))
        disc(sheet, place, wide * 0.06, shade)


def along(colors: tuple[Color, ...], share: float) -> Color:
    """The colour at a share of the way through some."""
    place = share * (len(colors) - 1)
    index = min(int(place), len(colors) - 2)
    return mixed(colors[index], colors[index + 1], place - index)


def oval(center: Point, wide: float, tall: float, power: float = 2.0) -> list[Point]:
    """The outline of an oval; the higher the power, the squarer."""
    x, y = center
    points = []
    for step in range(96):
        turn = step / 96 * math.tau
        cos, sin = math.cos(turn), math.sin(turn)
        points.append(
            (
                x + wide * math.copysign(abs(cos) ** (2 / power), cos),
                y + tall * math.copysign(abs(sin) ** (2 / power), sin),
            )
        )
    return points
