"""What the generation service and its workers must know."""

import os
import socket
from typing import Annotated

from servicekit.objects import ObjectSettings
from servicekit.postgres import DatabaseSettings
from servicekit.settings import (
    ADDRESS,
    ServerSettings,
    ServiceSettings,
    WrongSettings,
    setting,
)
from services.generation.domain.prices import CHANNELS
from services.generation.domain.scaling import TARGET_JOBS_PER_WORKER, Limits

CanvasAddress = Annotated[
    str,
    setting("Where canvas is.", example="dns:///gesso-canvas:50051", shared=True),
]

LongJobTimeoutSeconds = Annotated[
    int,
    setting(
        "How long a job may take whose kind takes long: pictures, animations, videos.",
        example="1800",
        ge=1,
        le=86_400,
    ),
]
LONG_JOB_TIMEOUT_SECONDS = 1_800

GenerationAddress = Annotated[
    str,
    setting("Where generation is.", example="dns:///gesso-generation:50053", shared=True),
]
TargetJobsPerWorker = Annotated[
    int,
    setting("How many jobs one worker is meant to have.", example="2", ge=1, le=1_000),
]


class Settings(ServerSettings, frozen=True, kw_only=True):
    """The generation service's settings."""

    database: DatabaseSettings
    canvas_address: CanvasAddress
    backlog_limit: Annotated[
        int, setting("At most so many jobs of an account wait.", example="100", ge=1)
    ] = 100
    running_limit: Annotated[
        int,
        setting(
            "At most so many jobs of an account are worked on, or next in line for it.",
            example="4",
            ge=1,
        ),
    ] = 4
    channel_limits: Annotated[
        str,
        setting(
            "At most so many jobs of a provider's channel are worked on at once; of a channel that "
            "is not named any number.",
            example="studio=8",
            pattern=r"^([a-z0-9-]+=[1-9][0-9]{0,5}(,[a-z0-9-]+=[1-9][0-9]{0,5})*)?$",
        ),
    ] = ""
    retention_days: Annotated[
        int,
        setting(
            "How long jobs are kept that are over, and their requests answered again.",
            example="30",
            ge=1,
        ),
    ] = 30
    sweep_seconds: Annotated[
        float, setting("How often what is older is forgotten.", example="60", gt=0)
    ] = 60
    poll_seconds: Annotated[
        float,
        setting(
            "How often, up to twice as long, to look for work that nobody said anything of.",
            example="1",
            gt=0,
            le=60,
        ),
    ] = 1
    delivery_lease_seconds: Annotated[
        float,
        setting(
            "How long a delivery to a canvas may take before another process takes it.",
            example="15",
            gt=0,
            le=3600,
        ),
    ] = 15
    delivery_pause_seconds: Annotated[
        float,
        setting(
            "How long after a canvas did not answer it is asked again; twice as long each time, "
            "up to a minute.",
            example="0.5",
            gt=0,
            le=60,
        ),
    ] = 0.5
    scaler_listen: Annotated[
        str | None,
        setting(
            "host:port at which KEDA asks how many workers are needed, without a token; not "
            "served if not set.",
            example="0.0.0.0:50063",
            pattern=ADDRESS,
        ),
    ] = None
    # The controller's own setting: who scales by the one or the other means the same.
    controller_target_jobs_per_worker: TargetJobsPerWorker = TARGET_JOBS_PER_WORKER
    generation_mode: Annotated[
        str,
        setting(
            "Who carries jobs out: workers, by the queue, or the service itself while who asks "
            "waits (inline), to look into things on one machine.",
            example="inline",
            shared=True,
            pattern="^(queue|inline)$",
        ),
    ] = "queue"
    # A worker's own setting: carried out here or there, a job may take as long.
    worker_long_job_timeout_seconds: LongJobTimeoutSeconds = LONG_JOB_TIMEOUT_SECONDS
    objects_url: Annotated[
        str | None,
        setting(
            "Where files are kept; needed if generation is inline.",
            example="file:///var/lib/gesso/objects",
            shared=True,
            pattern="^(file|s3|gs|az)://",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.generation_mode == "inline" and self.objects_url is None:
            line = (
                "GESSO_OBJECTS_URL is not set: inline generation keeps files there. "
                "Example: GESSO_OBJECTS_URL=file:///var/lib/gesso/objects"
            )
            raise WrongSettings([line])

    def capacities(self) -> dict[str, int]:
        """How many jobs may be worked on at once, by channels that have a limit.

        Raises `WrongSettings` for a channel that is not there.
        """
        pairs = (limit.split("=") for limit in self.channel_limits.split(",") if limit)
        limits = {name: int(number) for name, number in pairs}
        unknown = ", ".join(limits.keys() - set(CHANNELS))
        if unknown:
            there = ", ".join(CHANNELS)
            line = f"GESSO_GENERATION_CHANNEL_LIMITS names {unknown}; the channels are {there}."
            raise WrongSettings([line])
        return limits


class WorkerSettings(ServiceSettings, frozen=True, kw_only=True):
    """The settings of a worker."""

    objects: ObjectSettings
    canvas_address: CanvasAddress
    generation_address: GenerationAddress
    id: Annotated[
        str | None,
        setting(
            "What the worker is called, unlike any other; made of host and process if not set.",
            example="worker-1",
            pattern=r"^\S{1,200}$",
        ),
    ] = None
    concurrency: Annotated[
        int, setting("How many jobs to work on at once.", example="4", ge=1, le=100)
    ] = 4
    poll_interval_ms: Annotated[
        int,
        setting(
            "How long one claim waits for work before the next, in milliseconds.",
            example="1000",
            ge=1,
            le=30_000,
        ),
    ] = 1_000
    lease_seconds: Annotated[
        int,
        setting(
            "How long a job is ours without a sign of life; renewed after a third of it, at most "
            "30 seconds.",
            example="600",
            ge=1,
            le=3_600,
        ),
    ] = 600
    job_timeout_seconds: Annotated[
        int, setting("How long a job may take.", example="900", ge=1, le=86_400)
    ] = 900
    long_job_timeout_seconds: LongJobTimeoutSeconds = LONG_JOB_TIMEOUT_SECONDS

    def worker_id(self) -> str:
        """What the worker is called."""
        return self.id or f"{socket.gethostname()}-{os.getpid()}"


class ControllerSettings(ServiceSettings, frozen=True, kw_only=True):
    """The settings of the controller."""

    generation_address: GenerationAddress
    min_workers: Annotated[
        int, setting("At least so many workers run.", example="1", ge=1, le=1_000)
    ] = 1
    max_workers: Annotated[
        int, setting("At most so many workers run.", example="8", ge=1, le=1_000)
    ] = 8
    target_jobs_per_worker: TargetJobsPerWorker = TARGET_JOBS_PER_WORKER
    poll_interval_ms: Annotated[
        int,
        setting(
            "How often the queue is looked at, in milliseconds.",
            example="10000",
            ge=10,
            le=3_600_000,
        ),
    ] = 10_000
    scale_down_idle_rounds: Annotated[
        int,
        setting(
            "After so many looks in a row at a queue without work, one worker is stopped at each.",
            example="6",
            ge=1,
            le=100_000,
        ),
    ] = 6
    service_template: Annotated[
        str,
        setting(
            "The systemd unit of a worker, `{}` its number.",
            example="gesso-generation-worker@{}.service",
            pattern=r"^[A-Za-z0-9][A-Za-z0-9:_.\-]*@\{\}\.service$",
        ),
    ] = "gesso-generation-worker@{}.service"
    dry_run: Annotated[
        bool,
        setting("Whether workers are not started and stopped, but only logged.", example="true"),
    ] = False
    supervisor: Annotated[
        str | None,
        setting(
            "The socket of a `gesso up`, which says so itself and runs the workers then; systemd "
            "runs them if not set.",
            example="/run/gesso/control",
            pattern="^/",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.min_workers > self.max_workers:
            line = (
                f"GESSO_GENERATION_CONTROLLER_MIN_WORKERS: {self.min_workers} is more than "
                f"GESSO_GENERATION_CONTROLLER_MAX_WORKERS, which is {self.max_workers}. "
                f"Example: {self.max_workers}"
            )
            raise WrongSettings([line])

    def limits(self) -> Limits:
        """How many workers there may be, and how much each takes."""
        return Limits(
            min_workers=self.min_workers,
            max_workers=self.max_workers,
            jobs_per_worker=self.target_jobs_per_worker,
            idle_rounds=self.scale_down_idle_rounds,
        )
