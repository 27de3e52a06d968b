"""Times on the wire and inside: aware datetimes, protobuf timestamps, microseconds."""

from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp_from_time(time: datetime | None) -> Timestamp | None:
    """The protobuf form of an aware time; None stays None."""
    if time is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp


def time_from_timestamp(stamp: Timestamp) -> datetime:
    """The aware time of a protobuf timestamp."""
    return stamp.ToDatetime(UTC)


def micros_from_time(time: datetime) -> int:
    """Microseconds since 1970."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def time_from_micros(micros: int) -> datetime:
    """The aware time of microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=micros)


def rfc3339(time: datetime) -> str:
    """The time in UTC with milliseconds, e.g. `2026-11-30T10:00:00.123Z`."""
    return time.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
