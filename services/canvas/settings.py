"""What the canvas service must know."""

from typing import Annotated

from servicekit.objects import ObjectSettings
from servicekit.postgres import DatabaseSettings
from servicekit.settings import ServerSettings, setting
from services.canvas.domain.limits import Limits


class Settings(ServerSettings, frozen=True, kw_only=True):
    """The canvas service's settings."""

    database: DatabaseSettings
    objects: ObjectSettings
    presence_address: Annotated[
        str,
        setting("Where presence is.", example="dns:///gesso-presence:50054", shared=True),
    ]
    max_canvases: Annotated[
        int, setting("At most so many canvases an account.", example="1000", ge=1)
    ] = 1_000
    max_assets: Annotated[
        int, setting("At most so many assets an account.", example="2000", ge=1)
    ] = 2_000
    max_json_bytes: Annotated[
        int, setting("At most so many bytes of canvases an account.", example="268435456", ge=1)
    ] = 256 * 1024 * 1024

    receipt_days: Annotated[
        int,
        setting("How long a request may be repeated and is answered.", example="30", ge=30),
    ] = 30
    change_hours: Annotated[
        int, setting("How long changes can be asked for.", example="24", ge=24)
    ] = 24
    sweep_seconds: Annotated[
        float, setting("How often what is older is forgotten.", example="60", gt=0)
    ] = 60

    def limits(self) -> Limits:
        """The limits of an account."""
        return Limits(
            canvases=self.max_canvases, assets=self.max_assets, json_bytes=self.max_json_bytes
        )
