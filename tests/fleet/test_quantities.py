"""Quantities, durations and times: read as Kubernetes and Go write them, and nothing else."""

from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity  # type: ignore[import-untyped]

from fleet.errors import DurationError, FleetError, QuantityError, TimeError
from fleet.quantities import amount, count, milli
from fleet.times import format_duration, format_time, parse_duration, parse_time

SUFFIXES = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "E2", "e-2"]
valid = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "+"]),
    st.one_of(st.integers(0, 10**6).map(str), st.decimals(0, 9999, places=3).map(str)),
    st.sampled_from(SUFFIXES),
)


@given(valid)
def test_valid_quantities_mean_what_the_official_client_reads(text: str) -> None:
    exact = Decimal(parse_quantity(text))
    assert amount(text) == int(exact.to_integral_value(ROUND_CEILING))
    assert milli(text) == int((exact * 1000).to_integral_value(ROUND_CEILING))
    if exact == exact.to_integral_value():
        assert count(text) == int(exact)
    else:
        with pytest.raises(QuantityError, match="whole number"):
            count(text)


@given(st.integers(0, 2**63))
def test_plain_numbers_are_themselves(number: int) -> None:
    assert count(number) == count(str(number)) == amount(number) == number
    assert milli(number) == number * 1000


@pytest.mark.parametrize(
    "text",
    [
        "9" * 200_000,
        "8GB",
        "8gi",
        "8K",
        "8ki",
        "0x8",
        "1e",
        "1e1234",
        "--1",
        "1_000",
        "٣",
        "NaN",
        "Infinity",
        "1 Gi",
        "Gi",
        ".",
        "+",
    ],
)
def test_garbage_is_refused_with_a_hint(text: str) -> None:
    for read in (count, amount, milli):
        with pytest.raises(QuantityError, match="write for example 8, 500m or 64Gi"):
            read(text)


@pytest.mark.parametrize("text", ["", " ", "8 ", " 8", "8\n", "abc", "1.2.3"])
def test_spaces_and_words_are_refused(text: str) -> None:
    test_garbage_is_refused_with_a_hint(text)


@given(st.text(max_size=8))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (count, amount, milli):
        try:
            read(text)
        except QuantityError:
            continue


def test_halves_of_the_smallest_units_are_rounded_up() -> None:
    assert milli("1u") == 1
    assert amount("1.5") == 2
    assert milli("250m") == 250
    assert amount("64Gi") == 64 * 2**30


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m5s", 5405), ("500ms", 0.5), ("1.5h", 5400), ("0s", 0), ("1m1ms", 60.001)],
)
def test_durations_are_written_the_go_way(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "90", "s", "90 s", "-5s", "1d", "90s\n", "1h-5m", "5µs", "1.s", "1e3s", "٣s"])
def test_other_durations_are_refused_with_a_hint(text: str) -> None:
    with pytest.raises(DurationError, match="write it like 90s"):
        parse_duration(text)


def test_a_duration_is_bounded() -> None:
    assert parse_duration("876000h") == timedelta(days=36500)
    for text in ("876001h", "9" * 400 + "h"):
        with pytest.raises(DurationError, match="100 years"):
            parse_duration(text)


@given(st.integers(0, 10**7))
def test_durations_are_read_as_they_were_written(seconds: int) -> None:
    assert parse_duration(format_duration(timedelta(seconds=seconds))) == timedelta(seconds=seconds)


def test_a_negative_span_is_shown_as_nothing() -> None:
    assert format_duration(timedelta(seconds=-3)) == "0s"
    assert format_duration(timedelta(hours=1, minutes=30, seconds=5)) == "1h30m5s"


@given(st.integers(0, 10**16))
def test_times_are_read_as_they_were_written(microseconds: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    assert parse_time(format_time(moment)) == moment


def test_times_carry_a_zone() -> None:
    assert parse_time("2027-03-31T08:00:00+08:00") == datetime(2027, 3, 31, tzinfo=UTC)
    with pytest.raises(TimeError, match="no time zone"):
        parse_time("2027-03-31T00:00:00")
    with pytest.raises(TimeError, match="is not a time"):
        parse_time("tomorrow")
    assert issubclass(TimeError, FleetError)
