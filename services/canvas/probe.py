"""Tells from the bytes of a file what it is; a name proves nothing."""

import io
import warnings

import filetype
from PIL import Image, UnidentifiedImageError

from servicekit.errors import Invalid
from services.canvas.domain.assets import Probe

HEAD_BYTES = 1024 * 1024
MAX_PIXELS = 100_000_000

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "AVIF")
_UNREADABLE = (
    UnidentifiedImageError,
    Image.DecompressionBombError,
    OSError,
    ValueError,
    SyntaxError,
    RuntimeError,  # AVIF
)


def probe(content: bytes, *, is_whole: bool) -> Probe | None:
    """What a file is that begins with `content`.

    None for a picture that only more of it can tell: some formats are read from the end, others
    have notes of any length before their size. Never None for a whole file.

    Reads headers only and never decodes pixels, so that a picture cannot be a bomb. Raises
    `Invalid` for pictures of more than 100 megapixels.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of sizes that are checked below
            with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
                width, height = image.size
                # JPEG with more than one picture in it, as telephones take them.
                picture = "JPEG" if image.format == "MPO" else image.format
                mime_type = Image.MIME[picture or ""]
    except _UNREADABLE:
        guess = filetype.guess(content)
        if not is_whole and guess is not None and guess.mime.startswith("image/"):
            return None
        # What claims to be a picture but cannot be opened as one is just a file.
        known = guess is not None and guess.mime.startswith(("video/", "audio/", "application/"))
        return Probe(mime_type=guess.mime if known else "application/octet-stream")
    if width * height > MAX_PIXELS:
        raise Invalid(f"A picture has at most {MAX_PIXELS // 1_000_000} megapixels.", path="file")
    return Probe(mime_type=mime_type, width=width, height=height)
