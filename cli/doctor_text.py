"""What the doctor found, for people and for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cli.tables import WIDTH, table
from fleet.doctor.findings import Finding, Verdict
from fleet.times import clock, format_time

if TYPE_CHECKING:
    from fleet.doctor.checkup import Checkup
    from fleet.doctor.registry import Answer, Report

_INDENT: Final = "  "
_WRAPPER: Final = textwrap.TextWrapper(
    WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False, break_long_words=False
)
_WIDE: Final = 200
"""Evidence longer than this is for programs."""
_ENDS: Final = {
    Verdict.OK: "nothing is wrong",
    Verdict.WARNING: "no problem; look at the warnings",
    Verdict.PROBLEM: "there are problems",
    Verdict.UNKNOWN: "not everything could be checked",
}


def document(report: Report, seen: Checkup, origin: str) -> str:
    """The whole report as one JSON object."""
    findings = [
        {
            "check": answer.check,
            "code": str(one.code),
            "verdict": str(one.verdict),
            "summary": one.summary,
            "evidence": msgspec.to_builtins(one.evidence),
            "fix": one.fix,
            "unread": list(answer.unread),
        }
        for answer in report.answers
        for one in answer.findings
    ]
    whole = {
        "at": format_time(seen.at),
        "cluster": origin,
        "watchedSeconds": _watched(seen),
        "verdict": str(report.verdict),
        "exitCode": report.exit_code,
        "unread": [f"{name}: {why}" for name, why in sorted(seen.missing.items())],
        "skipped": list(report.skipped),
        "findings": findings,
    }
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode()


def _watched(seen: Checkup) -> float:
    return round((seen.at - seen.earlier_at).total_seconds(), 1) if seen.earlier_at is not None else 0.0


def told(report: Report, seen: Checkup, origin: str) -> str:
    """A table of all checks, then what is not ok with its figures and its fix."""
    lines = [f"{origin}, {clock(seen.at)}", ""]
    rows = [(answer.check, str(answer.verdict), _line(answer)) for answer in report.answers]
    lines += table(("CHECK", "VERDICT", "FOUND"), rows)
    for answer in report.answers:
        for one in answer.findings:
            if one.verdict is not Verdict.OK:
                lines += ["", *_finding(answer, one)]
    unread = sorted({line for answer in report.answers for line in answer.unread})
    if unread:
        lines += ["", "Could not be read, so less is known:", *_wrapped(unread)]
    if report.skipped:
        lines += ["", f"Not in a file, so left out: {', '.join(report.skipped)}"]
    lines += ["", f"{report.verdict.upper()}: {_ENDS[report.verdict]} (exit code {report.exit_code})"]
    return "\n".join(lines)


def _line(answer: Answer) -> str:
    bad = [str(one.code) for one in answer.findings if one.verdict is not Verdict.OK]
    return ", ".join(dict.fromkeys(bad)) if bad else answer.findings[0].summary


def _finding(answer: Answer, one: Finding) -> Iterator[str]:
    yield f"{one.verdict.upper()} {answer.check}: {one.code}"
    yield from _wrapped([one.summary])
    figures = ", ".join(f"{key} {_figure(value)}" for key, value in one.evidence.items() if _short(value))
    if figures:
        yield from _wrapped([f"figures: {figures}"])
    if one.fix:
        yield f"{_INDENT}fix:"
        # What may have to be copied is never broken.
        yield from (f"{_INDENT}  {line}" for line in one.fix.splitlines())


def _short(value: Any) -> bool:
    return isinstance(value, str | int | float) and len(str(value)) <= _WIDE


def _figure(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _wrapped(texts: list[str]) -> Iterator[str]:
    for text in texts:
        yield from _WRAPPER.wrap(text)
