"""Go-style durations and RFC 3339 times: read and written in one place."""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from fleet.errors import DurationError, TimeError

DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
"""What our custom resources accept as a duration; Go's `time.ParseDuration` without signs and sub-millisecond units."""

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_WHOLE = re.compile(DURATION_PATTERN)
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_SECONDS = 100 * 365 * 86400.0
_DAY_DIGITS = 4


@lru_cache(maxsize=4096)
def parse_duration(text: str) -> timedelta:
    """`1h30m`, `90s`, `500ms` as a timedelta. Raises DurationError."""
    if not _WHOLE.fullmatch(text):
        raise DurationError(f"{text!r} is not a duration: write it like 90s, 10m or 1h30m")
    seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _PART.findall(text))
    if seconds > _MAX_SECONDS:
        raise DurationError(f"{text!r} is longer than 100 years")
    return timedelta(seconds=seconds)


def later(moment: datetime, seconds: float) -> datetime:
    """So many seconds after the moment, 100 years at most: what is worth more is worth that."""
    return moment + timedelta(seconds=min(seconds, _MAX_SECONDS))


def parse_span(text: str) -> timedelta:
    """What a person types: as `parse_duration`, or with days before it (`7d`, `1d12h`). Raises DurationError."""
    days, mark, rest = text.partition("d")
    if not mark:
        days, rest = "0", text
    some_days = days.isascii() and days.isdigit() and len(days) <= _DAY_DIGITS
    if not (some_days and (_WHOLE.fullmatch(rest) or (mark and not rest))):
        raise DurationError(f"{text!r} is not a duration: write it like 90s, 10m, 1h30m, 7d or 1d12h")
    return timedelta(days=int(days)) + (parse_duration(rest) if rest else timedelta(0))


def format_duration(span: timedelta) -> str:
    """A timedelta as a Go-style duration in whole seconds (`1h30m5s`); negative spans are shown as `0s`."""
    seconds = max(0, round(span.total_seconds()))
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    parts = [(hours, "h"), (minutes, "m"), (rest, "s")]
    return "".join(f"{value}{unit}" for value, unit in parts if value) or "0s"


def parse_time(text: str) -> datetime:
    """An RFC 3339 time with zone. Raises TimeError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise TimeError(f"{text!r} is not a time: write it like 2027-03-31T00:00:00Z") from error
    if moment.tzinfo is None:
        raise TimeError(f"{text!r} has no time zone: end it with Z or +08:00")
    return moment


def format_time(moment: datetime) -> str:
    """A time as RFC 3339 in UTC with microseconds, which Kubernetes accepts for `date-time`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def clock(moment: datetime) -> str:
    """A time for a sentence: RFC 3339 in UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
