"""When an agreement can be used: windows that begin by a cron schedule in their owner's time zone and last a while.

A window begins at the first moment at which clocks of its zone show the scheduled time or, where they skip it, a later
one; so each scheduled time counts once, however clocks are changed. Its duration is elapsed time.
"""

import calendar
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from fleet.errors import FleetError, WindowError
from fleet.resources import Window
from fleet.times import parse_duration

_SEARCHED_YEARS = 41
"""No date of the calendar stays away longer: 29 February on a given day of the week, around 2100."""

_ZONE = re.compile(r"[A-Z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*")
_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if number}
_DAYS = {name.lower(): (number + 1) % 7 for number, name in enumerate(calendar.day_abbr)}
_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    words: dict[str, int]


_FIELDS = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _DAYS),
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A parsed cron schedule; `times` are those of a matching day, in order. Days of the week: 0 is Sunday.

    `either_day`: both kinds of day are restricted, so that one of them is enough, as in every cron since the first.
    """

    times: tuple[time, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool

    def on(self, day: date) -> bool:
        """Whether windows begin on this date."""
        by_date, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return day.month in self.months and (by_date or by_week if self.either_day else by_date and by_week)


@lru_cache(maxsize=256)
def parse_schedule(text: str) -> Schedule:
    """A cron schedule of five fields: minute, hour, day of month, month, day of week. Raises WindowError."""
    parts = text.split()
    if len(parts) != len(_FIELDS):
        raise WindowError(f"{text!r} has {len(parts)} fields, not 5: minute, hour, day of month, month, day of week")
    minutes, hours, days, months, weekdays = (_values(part, field) for part, field in zip(parts, _FIELDS, strict=True))
    schedule = Schedule(
        tuple(time(hour, minute) for hour in sorted(hours) for minute in sorted(minutes)),
        days,
        months,
        frozenset(day % 7 for day in weekdays),
        either_day=not parts[2].startswith("*") and not parts[4].startswith("*"),
    )
    if next(_dates(schedule, date(2000, 1, 1), 1), None) is None:
        raise WindowError(f"{text!r} never comes: no such date exists")
    return schedule


def _values(text: str, field: _Field) -> frozenset[int]:
    found: set[int] = set()
    for item in text.split(","):
        span, slash, step = item.partition("/")
        first, dash, last = span.partition("-")
        if span == "*":
            low, high = field.low, field.high
        else:
            low = _number(first, field, item)
            high = _number(last, field, item) if dash else (field.high if slash else low)
        if slash and (not _digits(step) or int(step) == 0):
            raise WindowError(f"{item!r} is no {field.name}: a step is a whole number above 0")
        if low > high:
            raise WindowError(f"{item!r} is no {field.name}: the range runs backwards")
        found.update(range(low, high + 1, int(step) if slash else 1))
    return frozenset(found)


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def _number(text: str, field: _Field, item: str) -> int:
    number = field.words.get(text.lower())
    if number is None and _digits(text):
        number = int(text)
    if number is None or not field.low <= number <= field.high:
        raise WindowError(f"{item!r} is no {field.name}: write {field.low} to {field.high}, or *")
    return number


@lru_cache(maxsize=256)
def parse_zone(name: str) -> tzinfo:
    """The time zone of an IANA name. Raises WindowError."""
    if name == "UTC":  # known even where there is no database of time zones
        return UTC
    try:
        if _ZONE.fullmatch(name):
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        pass
    raise WindowError(f"{name!r} is no time zone known here: write an IANA name like Asia/Shanghai or Europe/Berlin")


@lru_cache(maxsize=4096)
def problems(window: Window) -> tuple[str, ...]:
    """What is wrong with the window, in words that begin with the field's name; empty if it is fine."""
    found = []
    try:
        parse_schedule(window.schedule)
    except FleetError as error:
        found.append(f"schedule: {error}")
    try:
        if not parse_duration(window.duration):
            found.append("duration: must be longer than 0s")
    except FleetError as error:
        found.append(f"duration: {error}")
    try:
        parse_zone(window.time_zone)
    except FleetError as error:
        found.append(f"timeZone: {error}")
    return tuple(found)


def usable_from(windows: Iterable[Window], moment: datetime) -> datetime:
    """`moment` if one of the windows is open then, else the start of the next one. Windows must be valid, and some."""
    return min(_usable_from(window, moment) for window in windows)


@lru_cache(maxsize=1024)
def _usable_from(window: Window, moment: datetime) -> datetime:
    since = _latest_start(window, moment)
    if since is not None and moment < since + parse_duration(window.duration):
        return moment
    return next_start(window, moment)


def next_start(window: Window, moment: datetime) -> datetime:
    """When the window begins next, after `moment`; in UTC."""
    schedule, zone = parse_schedule(window.schedule), parse_zone(window.time_zone)
    # A time that clocks skip begins a day late at the most, where they skip a whole day.
    for day in _dates(schedule, moment.astimezone(zone).date() - timedelta(days=1), 1):
        index = _passed(schedule, day, zone, moment)
        if index < len(schedule.times):
            return _begins(datetime.combine(day, schedule.times[index]), zone)
    raise WindowError(f"{window.schedule!r} does not come within {_SEARCHED_YEARS} years")


def _latest_start(window: Window, moment: datetime) -> datetime | None:
    """When the window began last, at `moment` or before; None if it is over since, however that was."""
    schedule, zone = parse_schedule(window.schedule), parse_zone(window.time_zone)
    oldest = (moment - parse_duration(window.duration)).astimezone(zone).date() - timedelta(days=2)
    for day in _dates(schedule, moment.astimezone(zone).date() + timedelta(days=1), -1):
        if day < oldest:
            return None
        index = _passed(schedule, day, zone, moment)
        if index:
            return _begins(datetime.combine(day, schedule.times[index - 1]), zone)
    return None


def _passed(schedule: Schedule, day: date, zone: tzinfo, moment: datetime) -> int:
    """How many of the day's windows have begun by `moment`; later times never begin earlier."""
    return bisect_right(schedule.times, moment, key=lambda at: _begins(datetime.combine(day, at), zone))


def _begins(local: datetime, zone: tzinfo) -> datetime:
    """The first moment (UTC) at which clocks of the zone show this time, or a later one if they skip it."""
    moment = local.replace(tzinfo=zone).astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) == local:
        return moment
    # Skipped: clocks were put forward in the seconds before. Read by the offset after that, it lies before it.
    early = int(local.replace(tzinfo=zone, fold=1).timestamp())
    late = int(moment.timestamp())
    while late - early > 1:
        middle = (early + late) // 2
        if datetime.fromtimestamp(middle, zone).replace(tzinfo=None) < local:
            early = middle
        else:
            late = middle
    return datetime.fromtimestamp(late, UTC)


def _dates(schedule: Schedule, first: date, step: int) -> Iterator[date]:
    """Dates on which windows begin, from `first` on, forwards (step 1) or backwards (-1), as far as is worth it."""
    for offset in range(_SEARCHED_YEARS * 12):
        year, month = divmod(first.year * 12 + first.month - 1 + step * offset, 12)
        length = calendar.monthrange(year, month + 1)[1]
        if month + 1 not in schedule.months:
            continue
        if step > 0:
            days = range(1 if offset else first.day, length + 1)
        else:
            days = range(length if offset else first.day, 0, -1)
        yield from (one for day in days if schedule.on(one := date(year, month + 1, day)))
