"""Tells from the first bytes of a file what it is; a name proves nothing."""

import io
import warnings

import filetype
from PIL import Image, UnidentifiedImageError

from servicekit.errors import Invalid
from services.canvas.domain.assets import Probe

HEAD_BYTES = 1024 * 1024
MAX_PIXELS = 100_000_000

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "AVIF")


def probe(head: bytes) -> Probe:
    """What a file is that begins with `head`: up to its first MiB.

    Reads headers only and never decodes pixels, so that a picture cannot be a bomb. Raises
    `Invalid` for pictures of more than 100 megapixels.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of sizes that are checked below
            with Image.open(io.BytesIO(head), formats=_FORMATS) as image:
                width, height = image.size
                mime_type = Image.MIME[image.format or ""]
    except (
        UnidentifiedImageError,
        Image.DecompressionBombError,
        OSError,
        ValueError,
        SyntaxError,
        RuntimeError,  # what its reader of AVIF raises
    ):
        guess = filetype.guess(head)
        # What claims to be a picture but cannot be opened as one is just a file.
        known = guess is not None and guess.mime.startswith(("video/", "audio/", "application/"))
        return Probe(mime_type=guess.mime if known else "application/octet-stream")
    if width * height > MAX_PIXELS:
        raise Invalid(f"A picture has at most {MAX_PIXELS // 1_000_000} megapixels.", path="file")
    return Probe(mime_type=mime_type, width=width, height=height)
