"""What the gateway must know."""

from typing import Annotated

from servicekit.objects import ObjectSettings
from servicekit.postgres import DatabaseSettings
from servicekit.settings import ServerSettings, setting
from servicekit.valkey import ValkeySettings


class Settings(ServerSettings, frozen=True, kw_only=True):
    """The gateway's settings."""

    database: DatabaseSettings
    objects: ObjectSettings
    valkey: ValkeySettings
    canvas_address: Annotated[
        str, setting("Where canvas is.", example="dns:///gesso-canvas:50051", shared=True)
    ]
    tasks_address: Annotated[
        str, setting("Where tasks is.", example="dns:///gesso-tasks:50052", shared=True)
    ]
    generation_address: Annotated[
        str, setting("Where generation is.", example="dns:///gesso-generation:50053", shared=True)
    ]
    presence_address: Annotated[
        str, setting("Where presence is.", example="dns:///gesso-presence:50054", shared=True)
    ]
    allowed_origins: Annotated[
        str,
        setting(
            "Origins of pages that may change things with a session cookie, separated by commas.",
            example="https://canvas.example.com",
            pattern=r"^https?://[^\s,/]+(,https?://[^\s,/]+)*$",
        ),
    ]
    trusted_proxies: Annotated[
        str,
        setting(
            "Addresses of proxies whose X-Forwarded-For and -Proto are believed, separated by "
            "commas.",
            example="10.0.0.0/8",
        ),
    ] = ""
    signup_grant_credits: Annotated[
        int,
        setting(
            "Credits that a new account gets.", example="1000", shared=True, ge=0, le=1_000_000_000
        ),
    ] = 1000
    tries_per_minute: Annotated[
        int,
        setting(
            "How often a minute sign-in may be tried from one address and for one account.",
            example="20",
            ge=1,
        ),
    ] = 20
    canvas_streams: Annotated[
        int,
        setting(
            "Over how many streams edits go to canvas; each may be at another instance.",
            example="4",
            ge=1,
            le=64,
        ),
    ] = 4
    generation_mode: Annotated[
        str,
        setting(
            "Whether pictures are queued, or made while who asks waits (inline).",
            example="inline",
            shared=True,
            pattern="^(queue|inline)$",
        ),
    ] = "queue"
    generation_worker_long_job_timeout_seconds: Annotated[
        int,
        setting(
            "How long an order may take that is carried out at once.",
            example="1800",
            shared=True,
            ge=1,
            le=86_400,
        ),
    ] = 1_800
    realtime_recheck_seconds: Annotated[
        float,
        setting(
            "How often it is looked again whether an open window may still be there.",
            example="60",
            gt=0,
            le=3600,
        ),
    ] = 60
    realtime_ping_seconds: Annotated[
        float,
        setting(
            "How often an open window is asked whether it is there; without an answer for as "
            "long it is gone.",
            example="15",
            gt=0,
            le=3600,
        ),
    ] = 15

    def inline_seconds(self) -> float | None:
        """How long an order may take that is carried out at once; None if orders are queued."""
        is_inline = self.generation_mode == "inline"
        return self.generation_worker_long_job_timeout_seconds if is_inline else None

    def origins(self) -> frozenset[str]:
        """The allowed origins."""
        return frozenset(self.allowed_origins.split(","))

    def secure(self) -> bool:
        """Whether pages are served over https, so that the cookie is for https only."""
        return all(origin.startswith("https://") for origin in self.origins())
