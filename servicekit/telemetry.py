"""What a process tells about itself: logs on stderr, Prometheus metrics on their port."""

import hashlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from prometheus_client import CollectorRegistry, Histogram, start_http_server

from servicekit.settings import CannotListen, host_and_port

Log = structlog.stdlib.BoundLogger


def configure_logs(service: str, level: str) -> None:
    """Makes every log line of this process one JSON object on stderr, its service named.

    Called once, before anything logs.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # Without local variables: they may hold what must not be logged.
        structlog.processors.ExceptionRenderer(
            structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        ),
        _service(service),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(ensure_ascii=False),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


def logger(name: str) -> Log:
    """The log of a module."""
    log: Log = structlog.stdlib.get_logger(name)
    return log


def pseudonym(account_id: str) -> str:
    """What logs call an account: the same word each time, which does not tell whose it is."""
    # Ids have 131 random bits: a plain hash cannot be searched.
    return hashlib.sha256(account_id.encode()).hexdigest()[:16]


def _service(service: str) -> structlog.typing.Processor:
    def add(
        _logger: object, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        event["service"] = service
        return event

    return add


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.rpc_seconds = Histogram(
            "gesso_rpc_seconds",
            "Time that answering a call took, by method and gRPC status code.",
            ["method", "code"],
            registry=self.registry,
        )


@contextmanager
def metrics_served(metrics: Metrics, listen: str | None) -> Iterator[None]:
    """Serves the metrics at `/metrics` of `listen` inside the block; does nothing for None."""
    if listen is None:
        yield
        return
    host, port = host_and_port(listen)
    try:
        server, thread = start_http_server(port, addr=host, registry=metrics.registry)
    except OSError as error:
        raise CannotListen(listen, error.strerror or str(error)) from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
