"""The examples of docs/plan.md and docs/ledger.md are what the commands print."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.dumps import write_dump
from fleet.names import EXPECTED_RUN
from fleet.preview import NotChosen
from fleet.resources import HeldNode, Outcome, Phase, PhaseTime
from fleet.view import View
from tests.cli.conftest import run
from tests.fleet.books import record
from tests.fleet.builders import T0, agreement, at, claim, node, pod, ref, view

DOCS = Path(__file__).parents[2] / "docs"


def fleet() -> View:
    """Five nodes: one free, three that may be vacated, one whose owner has not agreed."""
    training = {"gang": "llm", "size": 2}
    return view(
        [node(f"big-{index}") for index in range(6)],
        node("big-6", cordoned=True),
        [pod(f"sweep-{index}", on="big-1", started=-1800 - index) for index in range(3)],
        pod("sweep-9", 2, on="big-2", started=-600, notes={EXPECTED_RUN: "2h"}),
        [pod(f"llm-{index}", 4, on=f"big-{3 + index}", started=-7200, **training) for index in range(2)],
        pod("web", on="big-5", ns="team-w"),
        agreement("nights"),
    )


def ledger() -> View:
    """Two drains of yesterday, one of today that is not over."""
    of_nine = {"of": "train-9-51c09d6e", "outcome": Outcome.PENDING}
    records = (
        *(record(f"sweep-{index}", 1830.5, of="train-7-298c2dab", seconds=-80_000) for index in range(3)),
        record("web-1", 60.0, ns="team-w", to="team-c", of="eval-3b793f58", agreement="any-time", seconds=-70_000),
        record("sweep-7", 900.0, of="train-7-298c2dab", seconds=-80_000, outcome=Outcome.SPARED),
        record("sweep-8", 400.0, seconds=580, **of_nine),
    )
    done: dict[str, Any] = {"phase": Phase.BOUND, "phases": (PhaseTime(Phase.BOUND, at(-79_700)),)}
    quick: dict[str, Any] = {"phase": Phase.BOUND, "phases": (PhaseTime(Phase.BOUND, at(-69_960)),)}
    draining: dict[str, Any] = {"phase": Phase.DRAINING, "reason": "StoppingVictims", "node_names": "big-1"}
    claims = (
        claim(
            "train-7-298c2dab",
            gang=ref("train-7"),
            created=-80_600,
            reason="GangBound",
            node_names="big-1,big-2",
            lost_gpu_seconds=5491.5,
            **done,
        ),
        claim(
            "eval-3b793f58",
            ns="team-c",
            gang=ref("eval"),
            created=-70_000,
            reason="GangBound",
            node_names="big-4",
            lost_gpu_seconds=60.0,
            **quick,
        ),
        claim("train-9-51c09d6e", gang=ref("train-9"), held=[HeldNode("big-1", "u", T0)], created=60, **draining),
        claim("train-10-77ab02c1", gang=ref("train-10"), created=300, nodes=4, reason="AgreementMissing"),
    )
    return replace(view(claims), records={one.metadata.uid: one for one in records})


EXAMPLES = [
    ("plan.md", fleet, "plan -n team-b --nodes 3 --pool big --from dump.json"),
    ("plan.md", fleet, "plan -n team-b --nodes 1 --policy WaitThenEvict --patience 10m --from dump.json --all"),
    ("ledger.md", ledger, "ledger --since 7d --from dump.json"),
    ("ledger.md", ledger, "ledger --since 7d --by victim --output csv --from dump.json"),
    ("ledger.md", ledger, "claims --from dump.json"),
]


@pytest.mark.parametrize(("page", "seen", "typed"), EXAMPLES, ids=[f"{page}: {typed}" for page, _, typed in EXAMPLES])
def test_the_example_is_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, seen: Any, typed: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dump.json").write_bytes(write_dump(seen(), at(600)))
    done = run(*typed.split())
    assert done.exit_code == 0, done.output
    told = done.output.replace("\r\n", "\n")
    assert f"```text\n$ wholenode {typed}\n{told}```\n" in (DOCS / page).read_text(encoding="utf-8")


def test_every_reason_of_a_plans_own_is_explained() -> None:
    page = (DOCS / "plan.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", page.partition("## Why not a node")[2].partition("\n## ")[0], re.MULTILINE)
    assert sorted(rows) == sorted(NotChosen)
