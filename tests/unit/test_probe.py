"""What the first bytes of a file say that it is."""

import io

import pytest
from PIL import Image

from services.canvas.probe import probe


def picture(kind: str) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (12, 7), "teal").save(content, kind)
    return content.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "AVIF"])
def test_a_picture_is_told_with_its_size(kind: str) -> None:
    """CV16"""
    found = probe(picture(kind), is_whole=True)

    assert found is not None
    assert (found.mime_type, found.width, found.height) == (f"image/{kind.lower()}", 12, 7)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"plain",
        picture("PNG")[:20],
        picture("JPEG")[:20],
        # It names no item that is the picture.
        picture("AVIF").replace(b"pitm", b"pit\0"),
    ],
)
def test_what_cannot_be_opened_as_a_picture_is_a_file(content: bytes) -> None:
    """CV16"""
    found = probe(content, is_whole=True)

    assert found is not None
    assert (found.mime_type, found.width) == ("application/octet-stream", None)
