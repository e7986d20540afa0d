"""The demonstration's view: readable without colour, and coloured only where it is a map."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kwok.landings import Seen
from kwok.scene import Scene
from kwok.screen import Picture, frame, styled

SCENE = Scene(nodes=2, small_nodes=0)
HELD = [{"key": "wholenode.io/claim"}]
NODES = [
    {"metadata": {"name": "big-000", "labels": {}}, "spec": {}},
    {"metadata": {"name": "big-001", "labels": {}}, "spec": {"taints": HELD}},
]
PODS = [
    Seen("a", "team-a", "1", 1, "big-000", 1.0),
    Seen("b", "team-a", "2", 1, "big-001", 1.0, deleting_at=2.0),
]
CLAIM = {
    "metadata": {"name": "big-0-x"},
    "spec": {"gang": {"name": "big-0"}},
    "status": {"phase": "Draining", "nodeNames": "big-001", "reason": "WaitingForVictimsToEnd", "message": "1 of 1 ox"},
}


def lines() -> list[str]:
    return frame(Picture("t", NODES, PODS, [CLAIM], 1.0), SCENE)


def test_the_map_says_everything_in_letters() -> None:
    text = "\n".join(lines())
    assert "big-000    o......." in text
    assert "big-001   [x.......]" in text
    assert "14 of 16 cards free, 0 whole nodes free" in text


def test_colour_is_for_the_map_alone() -> None:
    shown = styled(lines()).splitlines()
    assert any("[blue]o[/]" in line for line in shown)
    (claim,) = [line for line in shown if "Draining" in line]
    assert "[/]" not in claim


@pytest.mark.parametrize("options", [["--jobs", "0"], ["--stock-seconds", "nan"], ["--out", "/dev/null/x"]])
def test_options_that_cannot_be_meant_are_one_line_before_anything_starts(options: list[str], tmp_path: Path) -> None:
    out = [] if "--out" in options else ["--out", str(tmp_path / "demo.json")]
    found = subprocess.run(
        [sys.executable, "-m", "kwok.demo", *options, *out], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 1
    assert len(found.stderr.splitlines()) == 1
    assert found.stderr.startswith("demo: ")
