"""How often a window may send."""

from gateway.pace import AbuseWatch, TokenBucket


def test_a_bucket_allows_a_burst_and_then_the_rate() -> None:
    """PR13"""
    bucket = TokenBucket(per_second=40, burst=80, now=0)

    at_once = sum(bucket.take(0) for _ in range(200))
    in_a_second = sum(bucket.take(step / 1000) for step in range(1, 1001))
    after_a_pause = sum(bucket.take(60) for _ in range(200))

    assert (at_once, after_a_pause) == (80, 80)
    assert in_a_second in (39, 40)


def test_a_bucket_says_how_long_to_wait() -> None:
    """PR13"""
    bucket = TokenBucket(per_second=4, burst=1, now=0)

    before = bucket.wait(0)
    bucket.take(0)

    assert (before, bucket.wait(0), bucket.wait(0.125), bucket.wait(9)) == (0, 0.25, 0.125, 0)


def seconds_until_abuse(per_second: int, *, for_seconds: int) -> float | None:
    watch = AbuseWatch(now=0)
    for step in range(for_seconds * per_second):
        if watch.count(step / per_second):
            return step / per_second
    return None


def test_over_four_times_the_rate_for_ten_seconds_is_abuse() -> None:
    """PR14"""
    flood = seconds_until_abuse(1000, for_seconds=60)
    just_over = seconds_until_abuse(200, for_seconds=60)

    assert flood is not None
    assert just_over is not None
    assert 10 <= flood < 11
    assert 10 <= just_over < 15


def test_four_times_the_rate_for_ever_is_none() -> None:
    """PR14"""
    assert seconds_until_abuse(160, for_seconds=120) is None


def test_floods_with_pauses_between_are_none() -> None:
    """PR14"""
    watch = AbuseWatch(now=0)

    floods = [watch.count(start + step / 1000) for start in range(0, 60, 3) for step in range(1000)]

    assert not any(floods)
