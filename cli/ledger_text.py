"""The ledger as a table, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from cli.tables import number, table
from fleet.accounts import Account, By, Sums, Waits
from fleet.times import format_duration

_FIGURES: Final = ("evictions", "jobs", "cards", "lost_gpu_seconds", "spared", "pending")
_WAITS: Final = ("beneficiary", "claims", "bound", "waiting", "median_wait_seconds", "longest_wait_seconds")
_HEADS: Final = ("PODS", "JOBS", "CARDS", "LOST GPU-S", "SPARED", "PENDING")
_WAIT_HEADS: Final = ("BENEFICIARY", "CLAIMS", "BOUND", "WAITING", "MEDIAN WAIT", "LONGEST")
_NONE: Final = "(none)"


def as_table(found: Account, unread: tuple[str, ...] = ()) -> str:
    """Losses with a totals row, then waits; 80 columns, long names are cut."""
    lines = [f"{_at(found.since)} to {_at(found.until)}"]
    if found.rows:
        heads = tuple(str(one).upper() for one in found.by)
        rows = [(*_keys(found.by, row.key), *_figures(row.sums)) for row in found.rows]
        total = ("total", *("" for _ in found.by[1:]), *_figures(found.total))
        lines += ["", *table((*heads, *_HEADS), [*rows, total], right=set(_HEADS))]
    else:
        lines += ["", "nobody was stopped"]
    if found.waits:
        rows = [_wait(one) for one in found.waits]
        lines += ["", *table(_WAIT_HEADS, rows, right=set(_WAIT_HEADS[1:]))]
    lines += [f"not read: {what}" for what in unread]
    return "\n".join(lines)


def _keys(by: tuple[By, ...], key: tuple[str, ...]) -> Iterator[str]:
    """Beside the victim's own column the agreement goes without its namespace: that is the victim's."""
    for one, text in zip(by, key, strict=True):
        short = text.partition("/")[2] if one is By.AGREEMENT and By.VICTIM in by else text
        yield short or _NONE


def _figures(sums: Sums) -> tuple[str, ...]:
    lost = number(sums.lost_gpu_seconds)
    return (str(sums.evictions), str(sums.jobs), str(sums.cards), lost, str(sums.spared), str(sums.pending))


def _wait(one: Waits) -> tuple[str, ...]:
    spans = (format_duration(timedelta(seconds=span)) for span in (one.median_seconds, one.longest_seconds))
    return (one.beneficiary, str(one.claims), str(one.bound), str(one.waiting), *spans)


def as_csv(found: Account, *, waits: bool = False) -> str:
    """RFC 4180; the columns of one kind of rows are always the same. No totals: a sheet adds up by itself."""
    out = io.StringIO()
    writer = csv.writer(out)
    if waits:
        writer.writerow(_WAITS)
        for one in found.waits:
            spans = (one.median_seconds, one.longest_seconds)
            writer.writerow((one.beneficiary, one.claims, one.bound, one.waiting, *spans))
    else:
        writer.writerow((*map(str, found.by), *_FIGURES))
        for row in found.rows:
            writer.writerow((*row.key, *(getattr(row.sums, figure) for figure in _FIGURES)))
    return out.getvalue()


class _Figures(msgspec.Struct, rename="camel"):
    evictions: int
    jobs: int
    cards: int
    lost_gpu_seconds: float
    spared: int
    pending: int

    @classmethod
    def of(cls, sums: Sums) -> _Figures:
        return cls(*(getattr(sums, figure) for figure in _FIGURES))


class _Waits(msgspec.Struct, rename="camel"):
    beneficiary: str
    claims: int
    bound: int
    waiting: int
    median_wait_seconds: float
    longest_wait_seconds: float


def as_json(found: Account, unread: tuple[str, ...] = ()) -> str:
    """`{since, until, by, rows, total, waits, notRead}`; a row has its keys beside its figures."""
    names = tuple(map(str, found.by))
    rows = [dict(zip(names, row.key, strict=True)) | msgspec.to_builtins(_Figures.of(row.sums)) for row in found.rows]
    waits = [
        _Waits(one.beneficiary, one.claims, one.bound, one.waiting, one.median_seconds, one.longest_seconds)
        for one in found.waits
    ]
    document = {
        "since": found.since.astimezone(UTC),
        "until": found.until.astimezone(UTC),
        "by": names,
        "rows": rows,
        "total": _Figures.of(found.total),
        "waits": waits,
        "notRead": unread,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def _at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
