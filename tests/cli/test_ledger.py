"""`wholenode ledger` and `wholenode claims` from a saved picture."""

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleet.resources import DrainRecord, HeldNode, Outcome, Phase, PhaseTime
from fleet.view import View
from tests.cli.conftest import Saved, fails, run
from tests.fleet.books import record
from tests.fleet.builders import T0, agreement, at, claim, view


def book(*records: DrainRecord, claims: tuple[Any, ...] = ()) -> View:
    return replace(view(agreement(), *claims), records={one.metadata.uid: one for one in records})


TWO_TEAMS = book(
    record("a", 1500.25, seconds=10),
    record("b", 500.0, seconds=20),
    record("c", 90.0, ns="team-w", to="team-c", agreement="", seconds=30),
    record("d", 7.0, outcome=Outcome.SPARED),
    record("e", 8.0, outcome=Outcome.PENDING),
    claims=(
        claim(phase=Phase.BOUND, phases=(PhaseTime(Phase.BOUND, at(90)),)),
        claim("d", created=300),
    ),
)


def test_the_table_has_rows_a_total_and_waits_in_80_columns(saved: Saved) -> None:
    done = run("ledger", "--from", saved(TWO_TEAMS))
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.output.splitlines()]
    assert lines[0] == ["2026-12-28", "12:10:00Z", "to", "2027-01-04", "12:10:00Z"]
    assert ["team-v", "team-b", "yes", "2", "2", "2", "2000.2", "1", "1"] in lines
    assert ["team-w", "team-c", "(none)", "1", "1", "1", "90", "0", "0"] in lines
    assert ["total", "3", "3", "3", "2090.2", "1", "1"] in lines
    assert ["team-b", "2", "1", "1", "3m15s", "5m"] in lines
    assert max(map(len, done.output.splitlines())) <= 80


def test_long_names_are_cut_in_the_table_and_nowhere_else(saved: Saved) -> None:
    name = "n" * 60
    file = saved(book(record("a", 1.0, ns=name, agreement="y" * 60)))
    assert max(map(len, run("ledger", "--from", file).output.splitlines())) <= 80
    assert name in run("ledger", "--from", file, "-o", "csv").output


@pytest.mark.parametrize(
    ("by", "head", "keys"),
    [
        ("victim", ["victim"], [["team-v"], ["team-w"]]),
        ("beneficiary", ["beneficiary"], [["team-b"], ["team-c"]]),
        ("agreement", ["agreement"], [["team-v/yes"], [""]]),
        ("claim", ["claim"], [["team-b/c"], ["team-c/c"]]),
        (None, ["victim", "beneficiary", "agreement"], [["team-v", "team-b", "team-v/yes"], ["team-w", "team-c", ""]]),
    ],
)
def test_csv_has_stable_columns(saved: Saved, by: str | None, head: list[str], keys: list[list[str]]) -> None:
    done = run("ledger", "--from", saved(TWO_TEAMS), "-o", "csv", *(["--by", by] if by else []))
    rows = list(csv.reader(io.StringIO(done.stdout)))
    assert rows[0] == [*head, "evictions", "jobs", "cards", "lost_gpu_seconds", "spared", "pending"]
    assert [row[: len(head)] for row in rows[1:]] == keys
    assert rows[1][len(head) :] == ["2", "2", "2", "2000.25", "1", "1"]


def test_csv_quotes_what_must_be_quoted(saved: Saved) -> None:
    file = saved(book(record("a", 1.0, job='Job/team-v/with "quotes", and commas/uid')))
    done = run("ledger", "--from", file, "-o", "csv", "--by", "job")
    assert list(csv.reader(io.StringIO(done.stdout)))[1][0] == 'Job/team-v/with "quotes", and commas/uid'


def test_csv_of_the_waits(saved: Saved) -> None:
    done = run("ledger", "--from", saved(TWO_TEAMS), "-o", "csv", "--waits")
    rows = list(csv.reader(io.StringIO(done.stdout)))
    assert rows[0] == ["beneficiary", "claims", "bound", "waiting", "median_wait_seconds", "longest_wait_seconds"]
    assert rows[1:] == [["team-b", "2", "1", "1", "195.0", "300.0"]]


def test_json_has_the_documented_fields(saved: Saved) -> None:
    found = json.loads(run("ledger", "--from", saved(TWO_TEAMS), "-o", "json").stdout)
    page = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text(encoding="utf-8")
    for part in (found, found["rows"][0], found["total"], found["waits"][0]):
        assert [key for key in part if f"`{key}`" not in page] == []
    assert (found["since"], found["until"]) == ("2026-12-28T12:10:00Z", "2027-01-04T12:10:00Z")
    assert found["total"]["lostGpuSeconds"] == 2090.25


@pytest.mark.parametrize(
    ("since", "evictions"), [("10m", 3), ("590s", 3), ("585s", 2), ("1d12h", 3), ("2027-01-04T12:00:25Z", 1)]
)
def test_since_is_a_span_or_a_time(saved: Saved, since: str, evictions: int) -> None:
    found = json.loads(run("ledger", "--from", saved(TWO_TEAMS), "--since", since, "-o", "json").stdout)
    assert found["total"]["evictions"] == evictions


@pytest.mark.parametrize("since", ["", "7", "d", "-1d", "1.5d", "7days", "99999d", "yesterday", "2027-01-04", "1d7"])
def test_a_since_that_cannot_be_read_is_a_usage_error(saved: Saved, since: str) -> None:
    fails(run("ledger", "--from", saved(TWO_TEAMS), "--since", since), 2, "--since")


def test_a_namespace_sees_its_own(saved: Saved) -> None:
    found = json.loads(run("ledger", "--from", saved(TWO_TEAMS), "-n", "team-w", "-o", "json").stdout)
    assert [row["victim"] for row in found["rows"]] == ["team-w"]
    assert found["waits"] == []


def test_waits_alone_are_for_csv(saved: Saved) -> None:
    fails(run("ledger", "--from", saved(TWO_TEAMS), "--waits"), 2, "--output csv")
    fails(run("ledger", "--since", "2999-01-01T00:00:00Z", "--from", saved(TWO_TEAMS)), 2, "in the future")
    fails(run("ledger", "-n", "A"), 2, "is no name")


def test_nobody_was_stopped(saved: Saved) -> None:
    assert "nobody was stopped" in run("ledger", "--from", saved(view())).output


# Claims


def test_claims_are_listed_oldest_first_with_what_they_cost(saved: Saved) -> None:
    held = claim(
        "late",
        created=300,
        phase=Phase.DRAINING,
        held=[HeldNode("n1", "u", T0)],
        node_names="n1",
        reason="StoppingVictims",
        lost_gpu_seconds=12.5,
    )
    file = saved(view(held, claim("early", nodes=3, reason="AgreementMissing"), claim("other", ns="team-c")))
    lines = run("claims", "--from", file).output.splitlines()
    assert [line.split()[1] for line in lines] == ["CLAIM", "early", "other", "late"]
    assert lines[1].split() == ["team-b", "early", "Pending", "AgreementMissing", "wants", "3", "train", "0", "10m"]
    assert lines[3].split() == ["team-b", "late", "Draining", "StoppingVictims", "n1", "train", "12.5", "5m"]
    assert max(map(len, lines)) <= 80
    mine = run("claims", "-n", "team-c", "--from", file).output.splitlines()
    assert [line.split()[1] for line in mine] == ["CLAIM", "other"]


def test_a_claim_that_is_over_wants_nothing(saved: Saved) -> None:
    over = claim("over", phase=Phase.ROLLED_BACK, nodes=2, reason="BeneficiaryGone")
    lines = run("claims", "--from", saved(view(over))).output.splitlines()
    assert lines[1].split() == ["team-b", "over", "RolledBack", "BeneficiaryGone", "train", "0", "10m"]


def test_claims_as_json(saved: Saved) -> None:
    (found,) = json.loads(run("claims", "--from", saved(view(claim(nodes=2, reason="X"))), "-o", "json").stdout)
    assert (found["name"], found["nodesWanted"], found["ageSeconds"], found["nodes"]) == ("c", 2, 600.0, [])
    assert found["gang"] == {"kind": "Gang", "name": "train"}


def test_no_claims(saved: Saved) -> None:
    file = saved(view())
    assert run("claims", "--from", file).output == "no claims\n"
    assert run("claims", "--from", file, "-n", "x").output == "no claims in namespace x\n"


def test_dump_needs_a_cluster(tmp_path: Path) -> None:
    fails(run("dump", "--kubeconfig", str(tmp_path / "none")), 1, "no kubeconfig at")


RECORDS = "/apis/wholenode.io/v1alpha1/{}drainrecords"
CLAIMS = "/apis/wholenode.io/v1alpha1/{}wholenodeclaims"


def items(things: Any) -> tuple[int, Any]:
    return 200, {"metadata": {"resourceVersion": "1"}, "items": msgspec.to_builtins(list(things))}


def just_now() -> float:
    """Seconds from T0 to a minute ago: a running cluster is asked for its present."""
    return (datetime.now(UTC) - T0).total_seconds() - 60


def test_a_tenant_needs_rights_in_its_own_namespace_alone(cluster: Any) -> None:
    mine = "namespaces/team-v/"
    server, options = cluster(
        {
            RECORDS.format(mine): items([record("a", 5.0, seconds=just_now())]),
            CLAIMS.format(mine): items([claim("c", ns="team-v", created=just_now())]),
        }
    )
    found = json.loads(run("ledger", "-n", "team-v", *options, "-o", "json").stdout)
    assert (found["total"]["lostGpuSeconds"], found["waits"][0]["claims"]) == (5.0, 1)
    assert sorted(server.asked) == [RECORDS.format(mine), CLAIMS.format(mine)]


def test_who_may_not_list_claims_still_gets_the_losses(cluster: Any) -> None:
    no = (403, {"kind": "Status", "message": "user u cannot list claims", "reason": "Forbidden", "code": 403})
    _, options = cluster({RECORDS.format(""): items([record("a", 5.0, seconds=just_now())]), CLAIMS.format(""): no})
    done = run("ledger", *options)
    assert done.exit_code == 0, done.output
    assert "not read: " in done.output
    assert "user u cannot list claims" in done.output
    fails(run("claims", *options), 1, "cannot list claims")
    _, options = cluster({CLAIMS.format(""): items([claim()])})
    assert "team-b" in run("claims", *options).output
    fails(run("ledger", *options), 1, "is it installed?")
