"""The built-in provider of pictures."""

import asyncio
import io
from random import Random

import pytest
from PIL import Image, ImageChops, ImageStat

from providers.image import Capacity, ImageRequest, Refused, Uncertain
from providers.studio.brush import Sheet
from providers.studio.caption import READABLE, fitted, panel_color, write
from providers.studio.directives import directives_of
from providers.studio.image import StudioImages
from providers.studio.motifs import planet
from providers.studio.palette import PALETTES, contrast

SUBTYPES = ("plain", "style_guide", "character", "ui_design", "promo", "quick_edit")


def wanted(prompt: str = "a lantern", **changes: object) -> ImageRequest:
    values: dict[str, object] = {
        "request_id": "r",
        "prompt": prompt,
        "width": 96,
        "height": 64,
        "seed": 1,
        **changes,
    }
    return ImageRequest(**values)  # type: ignore[arg-type]  # a builder of tests


async def unheard(request_id: str) -> None:
    assert request_id


async def drawn(request: ImageRequest) -> Image.Image:
    return Image.open(io.BytesIO(await StudioImages().generate(request, unheard)))


async def test_the_same_request_gives_the_same_bytes() -> None:
    """GN19"""
    first = await StudioImages().generate(wanted(), unheard)
    second = await StudioImages().generate(wanted(request_id="another"), unheard)

    assert first == second


async def test_other_prompts_and_seeds_look_different() -> None:
    """GN19"""
    prompts = ("a lantern", "a quiet sea", "a city", "一朵花", "a planet", "anything at all")
    requests = [wanted(prompt) for prompt in prompts] + [wanted(seed=seed) for seed in (2, 3)]
    pictures = [(await drawn(request)).crop((0, 0, 96, 36)) for request in requests]

    for index, one in enumerate(pictures):
        for other in pictures[index + 1 :]:
            difference = ImageStat.Stat(ImageChops.difference(one, other)).mean
            assert sum(difference) > 8


@pytest.mark.parametrize(
    ("width", "height"), [(64, 64), (64, 4096), (4096, 64), (1024, 1024), (333, 777)]
)
async def test_a_picture_has_the_size_that_was_asked_for(width: int, height: int) -> None:
    """GN19"""
    picture = await drawn(wanted("远山 and 🏮 lanterns", width=width, height=height))

    assert (picture.format, picture.mode, picture.size) == ("PNG", "RGB", (width, height))


@pytest.mark.parametrize("subtype", SUBTYPES)
async def test_a_transparent_picture_has_a_ground_that_is(subtype: str) -> None:
    """GN19"""
    picture = await drawn(wanted(transparent=True, subtype=subtype, width=128, height=128))

    alpha = picture.getchannel("A")
    assert picture.mode == "RGBA"
    assert alpha.getpixel((0, 0)) == 0
    assert alpha.getpixel((64, 60)) == 255


@pytest.mark.parametrize("subtype", SUBTYPES)
async def test_every_subtype_is_drawn(subtype: str) -> None:
    """GN19"""
    picture = await drawn(wanted(subtype=subtype))

    assert len(picture.getcolors(maxcolors=100_000) or ()) > 50


async def test_the_loop_goes_on_while_it_draws() -> None:
    """GN18"""
    turns = 0
    drawing = asyncio.create_task(drawn(wanted(width=1024, height=1024)))
    while not drawing.done():
        await asyncio.sleep(0.001)
        turns += 1

    assert turns > 10


@pytest.mark.parametrize("palette", PALETTES, ids=lambda palette: palette.name)
def test_the_caption_can_be_read_on_every_palette(palette: object) -> None:
    """GN19"""
    assert isinstance(palette, type(PALETTES[0]))
    assert contrast((255, 255, 255), panel_color(palette)) > READABLE


@pytest.mark.parametrize(
    "text",
    [
        "一盏灯笼，在河上。" * 600,
        "x" * 4_000,
        "wörd " * 800,
        "🏮👩‍🚀" * 300,
        "\n" * 50 + "x",
        "مرحبا नमस्ते สวัสดี",
        "\U0010fffd\u200d\ufe0f",
    ],
)
def test_a_prompt_of_any_length_and_script_stays_in_its_panel(text: str) -> None:
    """GN19"""
    block = fitted(text, (400, 150), 20)
    picture = Image.new("RGB", (480, 400))

    write(picture, text, PALETTES[0])

    assert block.height <= 150 + block.line_height
    assert block.width <= 400 + block.size


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\x1c", "\x85", "\u2028", "\u2029"])
async def test_lines_may_end_in_any_way(end: str) -> None:
    """GN19"""
    picture = await drawn(wanted(f"一盏灯笼{end}a lantern{end}فانوس", width=256, height=256))

    assert picture.size == (256, 256)


def test_a_planet_of_any_size_has_its_night_side() -> None:
    """GN19"""
    for side in range(2, 110):
        sheet = Sheet(Image.new("RGB", (128, 128)), Random(side))

        planet(sheet, PALETTES[0], (64, 64), side / 2, PALETTES[0].ink)

        assert sheet.image.getbbox() is not None


def test_chinese_is_drawn_with_chinese_letters() -> None:
    """GN19"""
    pictures = [Image.new("RGB", (300, 300)) for _ in range(3)]
    for picture, text in zip(pictures, ("灯笼", "河流", "\U0010fffd\U0010fffd"), strict=True):
        write(picture, text, PALETTES[0])

    assert len({picture.tobytes() for picture in pictures}) == 3


@pytest.mark.parametrize(
    ("prompt", "rest", "facts"),
    [
        ("a !slow=8 lantern", "a  lantern", (False, False, 8, 0)),
        ("!fail", "", (True, False, 0, 0)),
        ("x !429=2 !hang", "x", (False, True, 0, 2)),
        ("!slow=0.25", "", (False, False, 0.25, 0)),
        ("wow!fail !failed !slow !429=x !slow=99999", None, (False, False, 0, 0)),
    ],
)
def test_directives_are_read_and_taken_out(
    prompt: str, rest: str | None, facts: tuple[bool, bool, float, int]
) -> None:
    """GN19"""
    found = directives_of(prompt)

    assert found.prompt == (prompt if rest is None else rest)
    assert (found.fails, found.hangs, found.slow_seconds, found.refusals) == facts


async def test_directives_are_followed() -> None:
    """GN19"""
    studio = StudioImages()

    with pytest.raises(Refused):
        await studio.generate(wanted("!fail"), unheard)
    for _ in range(2):
        with pytest.raises(Capacity) as caught:
            await studio.generate(wanted("a lantern !429=2"), unheard)
    third = await studio.generate(wanted("a lantern !429=2"), unheard)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await studio.generate(wanted("!hang"), unheard)

    assert caught.value.retry_after_seconds is not None
    assert third == await studio.generate(wanted("a lantern"), unheard)


async def test_a_request_that_was_accepted_is_gone_on_with_and_not_begun_anew() -> None:
    """GN19"""
    accepted: list[str] = []

    async def heard(request_id: str) -> None:
        accepted.append(request_id)

    studio = StudioImages()
    request = wanted("a lantern !slow=0.2")
    first = await studio.generate(request, heard)
    # It was accepted long enough ago to be done at once, at another process too.
    async with asyncio.timeout(5):
        second = await StudioImages().resume(request, accepted[0])

    assert second == first
    assert await studio.cancel(accepted[0])
    with pytest.raises(Uncertain):
        await studio.resume(request, "another's")


async def test_a_request_that_is_cut_off_is_uncertain() -> None:
    """GN19"""
    with pytest.raises(Uncertain):
        await StudioImages().generate(wanted("a lantern !cut"), unheard)
