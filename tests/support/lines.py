"""Lines to windows whose other end is a test."""

from collections.abc import Callable


def text_of(message: bytes) -> bytes:
    """The text of a message that a server sends whole."""
    assert message[0] == 0x81
    match message[1]:
        case 126:
            size, text = int.from_bytes(message[2:4]), message[4:]
        case 127:
            size, text = int.from_bytes(message[2:10]), message[10:]
        case size:
            text = message[2:]
    assert len(text) == size
    return text


class Line:
    """Has `hear` called with every text, in the order in which they were sent.

    While it is `slow` it takes none of those that may wait.
    """

    def __init__(self, hear: Callable[[bytes], None]) -> None:
        self._hear = hear
        self.slow = False

    def send(self, message: bytes) -> None:
        self._hear(text_of(message))

    def pass_on(self, frame: bytes) -> bool:
        if not self.slow:
            self._hear(frame)
        return not self.slow

    def begun(self) -> None:
        pass
