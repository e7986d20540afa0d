"""Tables of plain text that fit in 80 columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

WIDTH: Final = 80
_GAP: Final = "  "
_LEAST: Final = 8


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str] = (),
    indent: str = "",
    *,
    cut: bool = True,
) -> list[str]:
    """Lines of a table; columns named in `right` are aligned there. What is too wide is cut with `…`, if `cut`."""
    cells = [list(heads), *(list(row) for row in rows)]
    widths = _widths(cells, WIDTH - len(indent)) if cut else [max(map(len, one)) for one in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        texts = [
            _cut(text, width).rjust(width) if head in right else _cut(text, width).ljust(width)
            for text, width, head in zip(row, widths, heads, strict=True)
        ]
        lines.append((indent + _GAP.join(texts)).rstrip())
    return lines


def _widths(cells: Sequence[Sequence[str]], room: int) -> list[int]:
    """As wide as each column needs; while that is too much for a line, the widest gives way."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    while sum(widths) + len(_GAP) * (len(widths) - 1) > room and max(widths) > _LEAST:
        widths[widths.index(max(widths))] -= 1
    return widths


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def number(value: float) -> str:
    """GPU-seconds and such: one digit after the point, none where it would say nothing."""
    return f"{value:.1f}".removesuffix(".0")
