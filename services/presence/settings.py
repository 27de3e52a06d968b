"""What the presence service must know."""

from typing import Annotated

from servicekit.settings import ServerSettings, setting
from servicekit.valkey import ValkeySettings


class Settings(ServerSettings, frozen=True, kw_only=True):
    """The presence service's settings."""

    valkey: ValkeySettings
    heartbeat_seconds: Annotated[
        float,
        setting("How often sockets hear a heartbeat.", example="15", gt=0, le=3600),
    ] = 15
    tick_seconds: Annotated[
        float,
        setting(
            "How long changes are gathered once something was told; nothing waits after silence.",
            example="0.016",
            ge=0,
            le=10,
        ),
    ] = 0.016
