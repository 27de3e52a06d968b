"""What the gateway counts."""

from prometheus_client import CollectorRegistry, Histogram


class HttpMetrics:
    """Metrics of requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = Histogram(
            "gesso_http_seconds",
            "Time that answering a request took, by method, route and status.",
            ["method", "route", "status"],
            registry=registry,
        )
