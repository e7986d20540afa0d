"""Windows of agreements: cron schedules, time zones, changed clocks; compared with counting minute by minute."""

import functools
import re
import zoneinfo
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet.errors import WindowError
from fleet.resources import Window
from fleet.windows import next_start, parse_schedule, parse_zone, problems, usable_from

BERLIN, SHANGHAI = "Europe/Berlin", "Asia/Shanghai"
MINUTE = timedelta(minutes=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def starts(schedule: str, after: str, count: int = 1, zone: str = "UTC") -> list[str]:
    """The next starts after a UTC time, as UTC texts."""
    moment, found = utc(after), []
    for _ in range(count):
        moment = next_start(Window(schedule, "1h", zone), moment)
        found.append(f"{moment:%Y-%m-%d %H:%M}")
    return found


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("0 22 * * *", ["2027-01-04 22:00", "2027-01-05 22:00"]),
        ("*/20 9-10 * * *", ["2027-01-05 09:00", "2027-01-05 09:20"]),
        ("5/25 13 * * *", ["2027-01-04 13:05", "2027-01-04 13:30"]),
        ("10-30/10,45 12 * * *", ["2027-01-04 12:10", "2027-01-04 12:20"]),
        ("0 0 * * sat,SUN", ["2027-01-09 00:00", "2027-01-10 00:00"]),
        ("0 0 * * 6-7", ["2027-01-09 00:00", "2027-01-10 00:00"]),
        ("0 0 * * 0", ["2027-01-10 00:00", "2027-01-17 00:00"]),
        ("0 0 1 feb-mar *", ["2027-02-01 00:00", "2027-03-01 00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("0 12 4 1 *", ["2028-01-04 12:00", "2029-01-04 12:00"]),
        # Both kinds of day restricted: either is enough. One of them begins with *: both must fit.
        ("0 0 13 * 5", ["2027-01-08 00:00", "2027-01-13 00:00"]),
        ("0 0 */2 * 1", ["2027-01-11 00:00", "2027-01-25 00:00"]),
        ("0 0 29 2 */7", ["2032-02-29 00:00", "2060-02-29 00:00"]),
    ],
)
def test_a_schedule_is_read_as_cron_reads_it(schedule: str, expected: list[str]) -> None:
    assert starts(schedule, "2027-01-04 12:00", 2) == expected


def test_a_schedule_is_read_in_its_own_zone() -> None:
    assert starts("0 22 * * *", "2027-01-04 12:00", zone=SHANGHAI) == ["2027-01-04 14:00"]
    assert starts("0 22 * * *", "2027-07-04 12:00", zone=BERLIN) == ["2027-07-04 20:00"]


def test_a_time_that_clocks_skip_begins_when_they_go_on() -> None:
    assert starts("30 2 * * *", "2027-03-27 12:00", 2, BERLIN) == ["2027-03-28 01:00", "2027-03-29 00:30"]
    # Samoa skipped 30 December 2011 altogether.
    assert starts("0 5 * * *", "2011-12-29 17:00", 2, "Pacific/Apia") == ["2011-12-30 10:00", "2011-12-30 15:00"]


def test_a_time_that_clocks_show_twice_begins_once() -> None:
    assert starts("30 2 * * *", "2027-10-30 12:00", 2, BERLIN) == ["2027-10-31 00:30", "2027-11-01 01:30"]


@pytest.mark.parametrize(
    ("moment", "usable"),
    [
        ("2027-03-27 20:59", "2027-03-27 21:00"),
        ("2027-03-27 21:00", "2027-03-27 21:00"),
        # 9 hours later clocks show 8:00, for they went forward in between: elapsed time counts.
        ("2027-03-28 05:59", "2027-03-28 05:59"),
        ("2027-03-28 06:00", "2027-03-28 20:00"),
    ],
)
def test_a_window_lasts_as_long_as_it_says_whatever_clocks_do(moment: str, usable: str) -> None:
    assert usable_from([Window("0 22 * * *", "9h", BERLIN)], utc(moment)) == utc(usable)


def test_of_several_windows_the_first_to_come_counts() -> None:
    several = [Window("0 22 * * *", "9h"), Window("0 12 * * sat", "2h")]
    assert usable_from(several, utc("2027-01-09 11:00")) == utc("2027-01-09 12:00")
    assert usable_from(several, utc("2027-01-09 15:00")) == utc("2027-01-09 22:00")


def test_windows_that_overlap_leave_no_gap() -> None:
    assert usable_from([Window("0 0 * * *", "30h")], utc("2027-01-09 23:59")) == utc("2027-01-09 23:59")


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ("0 22 * *", "has 4 fields, not 5"),
        ("", "has 0 fields, not 5"),
        ("@daily", "has 1 fields, not 5"),
        ("60 * * * *", "'60' is no minute: write 0 to 59, or *"),
        ("0 24 * * *", "'24' is no hour"),
        ("0 0 0 * *", "'0' is no day of month"),
        ("0 0 * 13 *", "'13' is no month"),
        ("0 0 * * 8", "'8' is no day of week"),
        ("0 0 * * mo", "'mo' is no day of week"),
        ("0 0 * mon *", "'mon' is no month"),
        ("1,,2 * * * *", "'' is no minute"),
        ("1- * * * *", "'1-' is no minute"),
        ("-1 * * * *", "'-1' is no minute"),
        ("*/0 * * * *", "'*/0' is no minute: a step is a whole number above 0"),
        ("*/ * * * *", "'*/' is no minute: a step"),
        ("² * * * *", "'²' is no minute"),
        ("30-10 * * * *", "'30-10' is no minute: the range runs backwards"),
        ("0 0 30 2 *", "never comes: no such date exists"),
        ("0 0 31 4,6,9,11 *", "never comes: no such date exists"),
    ],
)
def test_d35_a_bad_schedule_is_told_in_words(schedule: str, text: str) -> None:
    with pytest.raises(WindowError, match=re.escape(text)) as caught:
        parse_schedule(schedule)
    assert problems(Window(schedule, "1h")) == (f"schedule: {caught.value}",)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "America", "../etc/localtime", "localtime", "berlin", "+08:00"])
def test_d35_a_bad_time_zone_is_told_in_words(zone: str) -> None:
    (problem,) = problems(Window("0 22 * * *", "9h", zone))
    assert problem == f"timeZone: {zone!r} is no time zone known here: write an IANA name like {SHANGHAI} or {BERLIN}"


def test_d35_a_bad_duration_is_told_in_words() -> None:
    assert problems(Window("0 22 * * *", "0s")) == ("duration: must be longer than 0s",)
    (problem,) = problems(Window("0 22 * * *", "nine hours"))
    assert problem.startswith("duration: 'nine hours' is not a duration")


def test_utc_is_known_where_there_is_no_database_of_time_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(key: str) -> ZoneInfo:
        raise zoneinfo.ZoneInfoNotFoundError(f"No time zone found with key {key}")

    monkeypatch.setattr("fleet.windows.ZoneInfo", none)
    for cached in (parse_zone, problems):
        cached.cache_clear()
    try:
        assert problems(Window("0 22 * * *", "9h")) == ()
        assert "no time zone known here" in problems(Window("0 22 * * *", "9h", BERLIN))[0]
    finally:
        for cached in (parse_zone, problems):
            cached.cache_clear()


class Wanted(NamedTuple):
    """A schedule as text and as what it means, made apart from the code that reads it."""

    text: str
    minutes: set[int]
    hours: set[int]
    days: set[int] | None
    months: set[int]
    weekdays: set[int] | None

    def matches(self, local: datetime) -> bool:
        """Days of the week: 0 is Sunday. None: any."""
        by_date = self.days is None or local.day in self.days
        by_week = self.weekdays is None or (local.weekday() + 1) % 7 in self.weekdays
        either = self.days is not None and self.weekdays is not None
        day = (local.day in (self.days or ()) or by_week) if either else (by_date and by_week)
        return day and local.minute in self.minutes and local.hour in self.hours and local.month in self.months


def chosen(low: int, high: int) -> st.SearchStrategy[set[int]]:
    return st.sets(st.integers(low, high), min_size=1, max_size=5)


def listed(values: set[int] | None) -> str:
    return "*" if values is None else ",".join(map(str, sorted(values)))


@st.composite
def schedules(draw: st.DrawFn) -> Wanted:
    minutes, hours = draw(chosen(0, 59)), draw(chosen(0, 23))
    days, weekdays = draw(st.none() | chosen(1, 31)), draw(st.none() | chosen(0, 6))
    months = draw(st.just(set(range(1, 13))) | chosen(1, 12).map(lambda some: some | {3, 4, 10, 11, 12}))
    text = " ".join(listed(field) for field in (minutes, hours, days, months, weekdays))
    return Wanted(text, minutes, hours, days, months, weekdays)


CHANGES = [
    (BERLIN, "2027-03-28 01:00"),
    (BERLIN, "2027-10-31 01:00"),
    ("America/New_York", "2027-03-14 07:00"),
    ("America/New_York", "2027-11-07 06:00"),
    ("Australia/Lord_Howe", "2027-10-02 15:30"),
    ("Australia/Lord_Howe", "2027-04-03 15:00"),
    ("America/St_Johns", "2006-10-29 02:31"),
    ("Pacific/Apia", "2011-12-30 10:00"),
    ("America/Havana", "2027-03-14 05:00"),
    (SHANGHAI, "2027-01-04 12:00"),
    ("UTC", "2028-02-29 00:00"),
]
"""Zones, and when their clocks are changed (UTC), if they are: by an hour, by half an hour, by a day, at midnight."""

BEFORE, AFTER = timedelta(days=4), timedelta(days=3)


@functools.cache
def clock_steps(zone: str, middle: str) -> list[tuple[datetime, tuple[datetime, ...]]]:
    """For each minute around a change: the local minutes that clocks reach then and have not reached before."""
    reached, steps = None, []
    moment = utc(middle) - BEFORE - AFTER
    while moment <= utc(middle) + AFTER + AFTER:
        local = moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        fresh: list[datetime] = []
        if reached is not None:
            while reached < local:
                reached += MINUTE
                fresh.append(reached)
        reached = local if reached is None else max(reached, local)
        steps.append((moment, tuple(fresh)))
        moment += MINUTE
    return steps


def counted(wanted: Wanted, change: tuple[str, str]) -> list[datetime]:
    """All starts around a change of clocks, found minute by minute."""
    return [moment for moment, fresh in clock_steps(*change) if any(wanted.matches(local) for local in fresh)]


around_a_change = {
    "wanted": schedules(),
    "change": st.sampled_from(CHANGES),
    "off": st.timedeltas(-AFTER, AFTER).map(lambda off: timedelta(seconds=round(off.total_seconds()))),
}
NIGHTLY = Wanted("30 2 * * *", {30}, {2}, None, set(range(1, 13)), None)


@settings(max_examples=150)
@given(**around_a_change)
@example(wanted=NIGHTLY, change=CHANGES[0], off=timedelta(0))
@example(wanted=NIGHTLY, change=CHANGES[1], off=timedelta(minutes=-31))
def test_the_next_start_is_the_first_one_found_by_counting(
    wanted: Wanted, change: tuple[str, str], off: timedelta
) -> None:
    zone, middle = change
    moment = utc(middle) + off
    known = next((one for one in counted(wanted, change) if one > moment), None)
    try:
        found = next_start(Window(wanted.text, "1m", zone), moment)
    except WindowError:
        assert known is None
        return
    assert found > moment
    assert found == known if known else found > utc(middle) + AFTER + AFTER


@settings(max_examples=150)
@given(**around_a_change, minutes=st.integers(1, 60 * 24 * 3))
@example(wanted=NIGHTLY, change=CHANGES[0], off=timedelta(minutes=59), minutes=60)
def test_a_window_is_open_if_one_found_by_counting_is(
    wanted: Wanted, change: tuple[str, str], off: timedelta, minutes: int
) -> None:
    zone, middle = change
    moment, window = utc(middle) + off, Window(wanted.text, f"{minutes}m", zone)
    if problems(window):
        return
    begun = [one for one in counted(wanted, change) if moment - minutes * MINUTE < one <= moment]
    usable = usable_from([window], moment)
    assert (usable == moment) is bool(begun)
    if not begun:
        assert usable == next_start(window, moment)
