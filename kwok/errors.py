"""The error of the test fleet: one line for people, no traceback on the command line."""

from __future__ import annotations

import re
from pathlib import Path

TROUBLE = re.compile(r"^[EF]\d{4} |error|fatal|panic|fail|cannot|unknown flag|not defined|in use", re.IGNORECASE)


class LabError(RuntimeError):
    """What went wrong, where, and what to do about it, in one line; `wholenode lab` prints it and exits with 1."""


def last_lines(log: Path, count: int = 3) -> str:
    """Return the last `count` telling lines of a log file, joined by ` | `; empty if there is no such file.

    Telling are those that speak of trouble, or any but empty ones if none does: some programs end with their usage.
    """
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if TROUBLE.search(line)] or lines
    return " | ".join(telling[-count:])
