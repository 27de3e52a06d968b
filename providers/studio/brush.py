"""Ways of putting colour on a picture: ramps, glows, ridges, mist, reflections."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from PIL import Image, ImageDraw, ImageFilter, ImageOps

from providers.studio.palette import Color, mixed

Point = tuple[float, float]

_STEPS = 512
# Soft things are painted this much smaller, and stretched.
_SOFT = 8


@dataclass
class Sheet:
    """A picture being painted; lengths in `unit`s are shares of its shorter side."""

    image: Image.Image
    chance: Random

    @property
    def width(self) -> int:
        """Pixels."""
        return self.image.width

    @property
    def height(self) -> int:
        """Pixels."""
        return self.image.height

    @property
    def unit(self) -> float:
        """The shorter side."""
        return float(min(self.image.size))

    def draw(self) -> ImageDraw.ImageDraw:
        """Draws opaque shapes."""
        return ImageDraw.Draw(self.image)


def ramp(size: tuple[int, int], colors: Sequence[Color]) -> Image.Image:
    """Colours from top to bottom, one going over into the next."""
    strip = Image.new("RGB", (1, _STEPS))
    for step in range(_STEPS):
        place = step / (_STEPS - 1) * (len(colors) - 1)
        index = min(int(place), len(colors) - 2)
        share = place - index
        eased = share * share * (3 - 2 * share)
        strip.putpixel((0, step), mixed(colors[index], colors[index + 1], eased))
    return strip.resize(size, Image.Resampling.BICUBIC)


def glow(sheet: Sheet, center: Point, radius: float, color: Color, strength: float) -> None:
    """Light around a point, fading to nothing at the radius."""
    side = max(2, round(2 * radius))
    falloff = Image.radial_gradient("L").point(
        [round(255 * strength * max(0.0, 1 - step / 181) ** 2) for step in range(256)]
    )
    mask = falloff.resize((side, side), Image.Resampling.BICUBIC)
    corner = (round(center[0] - side / 2), round(center[1] - side / 2))
    sheet.image.paste(Image.new("RGB", mask.size, color), corner, mask)


def disc(sheet: Sheet, center: Point, radius: float, color: Color) -> None:
    """A filled circle."""
    x, y = center
    sheet.draw().ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)


def tinted(sheet: Sheet, shape: Sequence[Point], color: Color, opacity: float) -> None:
    """A polygon that lets what is below shine through."""
    xs, ys = [point[0] for point in shape], [point[1] for point in shape]
    left, top = math.floor(min(xs)), math.floor(min(ys))
    size = (math.ceil(max(xs)) - left + 1, math.ceil(max(ys)) - top + 1)
    mask = Image.new("L", size, 0)
    ImageDraw.Draw(mask).polygon([(x - left, y - top) for x, y in shape], fill=round(255 * opacity))
    sheet.image.paste(Image.new("RGB", size, color), (left, top), mask)


def ridge_line(sheet: Sheet, base: float, height: float, roughness: float) -> list[Point]:
    """Points of a line of hills from left to right, around `base`, in pixels."""
    chance = sheet.chance
    waves = [
        (
            chance.uniform(0.6, 1.4) * 2**octave,
            chance.uniform(0, math.tau),
            roughness**octave,
        )
        for octave in range(6)
    ]
    whole = sum(size for _, _, size in waves)
    count = 160
    line = []
    for step in range(count + 1):
        share = step / count
        lift = sum(
            math.sin(share * math.tau * turns + start) * size for turns, start, size in waves
        )
        line.append((share * sheet.width, base - height * lift / whole))
    return line


def ground(sheet: Sheet, line: Sequence[Point], top: Color, bottom: Color) -> None:
    """Everything below a line, in a ramp of its own."""
    peak = max(0, math.floor(min(y for _, y in line)))
    size = (sheet.width, sheet.height - peak)
    if size[1] <= 0:
        return
    mask = Image.new("L", size, 0)
    outline = [(x, y - peak) for x, y in line]
    ImageDraw.Draw(mask).polygon([(0, size[1]), *outline, (sheet.width, size[1])], fill=255)
    sheet.image.paste(ramp(size, (top, bottom)), (0, peak), mask)


def mist(sheet: Sheet, middle: float, depth: float, color: Color, opacity: float) -> None:
    """A band of haze across the picture."""
    top, size = round(middle - depth), (sheet.width, max(2, round(2 * depth)))
    band = Image.new("L", (1, 64))
    for step in range(64):
        band.putpixel((0, step), round(255 * opacity * math.sin(math.pi * step / 63) ** 2))
    mask = band.resize(size, Image.Resampling.BICUBIC)
    sheet.image.paste(Image.new("RGB", size, color), (0, top), mask)


def cloud(sheet: Sheet, center: Point, length: float, color: Color, opacity: float) -> None:
    """A long soft cloud, flat below."""
    chance = sheet.chance
    width, height = round(length / _SOFT) + 8, round(length * 0.34 / _SOFT) + 8
    mask = Image.new("L", (width, height), 0)
    draw = ImageDraw.Draw(mask)
    for _ in range(9):
        x = width * min(max(chance.gauss(0.5, 0.15), 0.3), 0.7)
        far = abs(x / width - 0.5) * 2
        size = height * chance.uniform(0.16, 0.36) * (1 - 0.6 * far)
        bottom = height * 0.68
        draw.ellipse(
            (x - size * 1.9, bottom - size * 1.7, x + size * 1.9, bottom + size * 0.25),
            fill=round(255 * opacity),
        )
    mask = mask.filter(ImageFilter.GaussianBlur(max(1.0, height / 14)))
    mask = mask.resize((width * _SOFT, height * _SOFT), Image.Resampling.BICUBIC)
    corner = (round(center[0] - mask.width / 2), round(center[1] - mask.height / 2))
    sheet.image.paste(Image.new("RGB", mask.size, color), corner, mask)


def shadow(sheet: Sheet, box: tuple[float, float, float, float], color: Color) -> None:
    """A soft shadow of a box, a little below it."""
    left, top, right, bottom = box
    reach = sheet.unit * 0.06
    size = (round((right - left + 2 * reach) / _SOFT), round((bottom - top + 2 * reach) / _SOFT))
    inner = reach / _SOFT
    mask = Image.new("L", size, 0)
    ImageDraw.Draw(mask).rounded_rectangle(
        (inner, inner, size[0] - inner, size[1] - inner), inner / 2, fill=150
    )
    mask = mask.filter(ImageFilter.GaussianBlur(inner / 2.2))
    mask = mask.resize((size[0] * _SOFT, size[1] * _SOFT), Image.Resampling.BICUBIC)
    corner = (round(left - reach), round(top - reach * 0.6))
    sheet.image.paste(Image.new("RGB", mask.size, color), corner, mask)


def stars(sheet: Sheet, count: int, bottom: float, color: Color, sky: Color) -> None:
    """Points of light above a height, denser and brighter further up."""
    chance, draw = sheet.chance, sheet.draw()
    for _ in range(count):
        x = chance.uniform(0, sheet.width)
        y = bottom * chance.random() ** 1.4
        size = sheet.unit * (0.0007 + 0.0022 * chance.random() ** 4)
        shine = mixed(sky, color, chance.uniform(0.35, 1.0))
        draw.ellipse((x - size, y - size, x + size, y + size), fill=shine)
        if size > sheet.unit * 0.002:
            reach = size * 3.4
            draw.line((x - reach, y, x + reach, y), fill=mixed(sky, shine, 0.6), width=1)
            draw.line((x, y - reach, x, y + reach), fill=mixed(sky, shine, 0.6), width=1)


def water(sheet: Sheet, horizon: float, color: Color, light: Color) -> None:
    """A mirror below the horizon, deeper in colour towards the front, with glints."""
    top = round(horizon)
    depth = sheet.height - top
    if depth < 4:
        return
    above = sheet.image.crop((0, max(0, top - depth), sheet.width, top))
    mirror = ImageOps.flip(above).resize((sheet.width, depth), Image.Resampling.BILINEAR)
    small = mirror.resize((max(1, sheet.width // 3), max(1, depth // 24)), Image.Resampling.BOX)
    mirror = Image.blend(mirror, small.resize((sheet.width, depth), Image.Resampling.BICUBIC), 0.75)
    veil = ramp((1, depth), ((90, 90, 90), (215, 215, 215))).convert("L")
    mask = veil.resize((sheet.width, depth))
    sheet.image.paste(Image.composite(Image.new("RGB", mirror.size, color), mirror, mask), (0, top))
    chance = sheet.chance
    for _ in range(70):
        share = chance.random()
        y = top + depth * share
        x = chance.uniform(-0.1, 1.0) * sheet.width
        length = sheet.width * chance.uniform(0.02, 0.14) * (0.4 + share)
        thick = max(1.0, sheet.unit * 0.0012 * (0.5 + 2 * share))
        shape = [(x, y), (x + length / 2, y - thick), (x + length, y), (x + length / 2, y + thick)]
        tinted(sheet, shape, light, chance.uniform(0.08, 0.3))
