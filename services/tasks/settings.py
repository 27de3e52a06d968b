"""What the tasks service and its workers must know."""

from datetime import timedelta
from typing import Annotated

from servicekit.postgres import DatabaseSettings
from servicekit.settings import ServerSettings, ServiceSettings, WrongSettings, setting
from services.tasks.domain.terms import Terms


class Settings(ServerSettings, frozen=True, kw_only=True):
    """The tasks service's settings."""

    database: DatabaseSettings
    waiting_per_account: Annotated[
        int, setting("At most so many tasks of an account wait.", example="100", ge=1)
    ] = 100
    alive_seconds: Annotated[
        float,
        setting(
            "How long a stream may be silent before it says that it is there.", example="15", gt=0
        ),
    ] = 15
    poll_seconds: Annotated[
        float,
        setting("How often streams look for news that nobody told them.", example="5", gt=0),
    ] = 5


class WorkerSettings(ServiceSettings, frozen=True, kw_only=True):
    """A tasks worker's settings."""

    database: DatabaseSettings
    concurrency: Annotated[
        int, setting("How many tasks the worker does at once.", example="3", ge=1, le=100)
    ] = 3
    running_per_account: Annotated[
        int, setting("At most so many tasks of an account run at once.", example="5", ge=1)
    ] = 5
    lease_seconds: Annotated[
        float, setting("How long a task stays with a worker that is silent.", example="45", gt=0)
    ] = 45
    renew_seconds: Annotated[
        float,
        setting("How often a lease is renewed; less than half of it.", example="15", gt=0),
    ] = 15
    attempts: Annotated[
        int, setting("How often a task may be lost with its worker.", example="3", ge=1)
    ] = 3
    timeout_seconds: Annotated[
        float, setting("How long a model may take for a text.", example="480", gt=0)
    ] = 480
    flush_seconds: Annotated[
        float, setting("How long text is gathered before it is stored.", example="0.05", gt=0)
    ] = 0.05
    poll_seconds: Annotated[
        float,
        setting("How often to look for work that nobody told of.", example="5", gt=0),
    ] = 5

    def __post_init__(self) -> None:
        if not self.renew_seconds < self.lease_seconds / 2:
            line = (
                "GESSO_TASKS_WORKER_RENEW_SECONDS must be less than half of "
                f"GESSO_TASKS_WORKER_LEASE_SECONDS, which is {self.lease_seconds:g}, so that one "
                f"failed renewal loses nothing. Example: {self.lease_seconds / 3:g}"
            )
            raise WrongSettings([line])

    def terms(self) -> Terms:
        """On what terms the worker claims tasks."""
        return Terms(
            lease=timedelta(seconds=self.lease_seconds),
            running_per_account=self.running_per_account,
            attempts=self.attempts,
        )
