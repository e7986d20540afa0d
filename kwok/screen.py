"""The live view of the demonstration as plain text: the fleet as a map of cards, and each claim's phase and reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kwok.landings import PodWatch, Report, Seen
from kwok.scene import Scene

FREE, SMALL, ENDING, WHOLE = ".", "o", "x", "W"
LEGEND = (
    f"card: {FREE} free  {SMALL} single-card job  {ENDING} ending  {WHOLE} whole-node job"
    "   node: [held] (open to its job)"
)
_COLUMNS = 5
_CARDS = re.compile(f"([{re.escape(FREE + SMALL + ENDING + WHOLE)}]{{2,}})")
_MAP_LINE = re.compile(r"(small|big)-\d{3} ")
_STYLES = {SMALL: "blue", ENDING: "yellow", WHOLE: "bold green"}


@dataclass(frozen=True)
class Picture:
    """What one frame shows."""

    title: str
    nodes: Sequence[Mapping[str, Any]]
    pods: Sequence[Seen]
    claims: Sequence[Mapping[str, Any]]
    seconds: float


def holders(watch: PodWatch) -> list[Seen]:
    """Pods that hold cards now."""
    return [one for one in watch.pods.values() if one.bound_at is not None and one.gone_at is None]


def frame(picture: Picture, scene: Scene) -> list[str]:
    """The lines of one frame; no line depends on colour."""
    cards: dict[str, str] = {}
    for pod in sorted(picture.pods, key=lambda one: one.bound_at or 0.0):
        letter = WHOLE if pod.cards >= scene.cards else ENDING if pod.deleting_at is not None else SMALL
        cards[pod.node] = cards.get(pod.node, "") + letter * pod.cards
    cells = [_cell(node, cards.get(node["metadata"]["name"], ""), scene.cards) for node in picture.nodes]
    rows = -(-len(cells) // _COLUMNS)
    busy = sum(len(text) for text in cards.values())
    total = scene.nodes * scene.cards
    untouched = scene.nodes - len(cards)
    lines = [
        f"{picture.title}  t={picture.seconds:5.1f} s   "
        f"{total - busy} of {total} cards free, {untouched} whole nodes free",
        "",
    ]
    lines += ["  ".join(cells[row::rows]) for row in range(rows)]
    lines += ["", LEGEND, ""]
    return lines + [_claim_line(claim) for claim in picture.claims]


def styled(lines: Iterable[str]) -> str:
    """The same lines with rich's colour tags around the letters of the map."""
    return "\n".join(_paint(line) if _is_map(line) else line.replace("[", "\\[") for line in lines)


def _is_map(line: str) -> bool:
    return _MAP_LINE.match(line) is not None


def _paint(line: str) -> str:
    parts = _CARDS.split(line)
    return "".join(_colour(part) if _CARDS.fullmatch(part) else part.replace("[", "\\[") for part in parts)


def _colour(cards: str) -> str:
    return "".join(f"[{_STYLES[card]}]{card}[/]" if card in _STYLES else card for card in cards)


def _cell(node: Mapping[str, Any], held: str, cards: int) -> str:
    taints = [taint["key"] for taint in node["spec"].get("taints", [])]
    text = held[:cards].ljust(cards, FREE)
    label = "wholenode.io/claim" in node["metadata"].get("labels", {})
    left, right = ("(", ")") if label else ("[", "]") if "wholenode.io/claim" in taints else (" ", " ")
    return f"{node['metadata']['name']:<9} {left}{text}{right}"


def _claim_line(claim: Mapping[str, Any]) -> str:
    status = claim.get("status", {})
    where = status.get("nodeNames", "") or "-"
    name = claim["spec"].get("gang", {}).get("name", claim["metadata"]["name"])
    phase, reason, message = (status.get(key, "") for key in ("phase", "reason", "message"))
    return f"{name:<8} {phase or 'New':<13} {where:<9} {reason:<24} {message}"[:150].rstrip()


def table(report: Report) -> list[str]:
    """The closing table: job, node, wait, victims, lost GPU-seconds, right node?"""
    lines = [f"{'job':<18} {'node':<10} {'wait':>8} {'victims':>8} {'lost GPU-s':>11}  right node?"]
    for one in report.landings:
        wait = f"{one.wait_seconds:.2f} s" if one.wait_seconds is not None else "-"
        right = "yes" if one.right else "NO" if one.node else "not landed"
        lines.append(
            f"{one.job:<18} {one.node or '-':<10} {wait:>8} {one.victims:>8} {one.lost_gpu_seconds:>11.1f}  {right}"
        )
    return lines
