"""`wholenode plan` from a saved picture: what may be typed, what is shown, that it is always the same, how it fails."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.plan_text import told
from cluster.dumps import read_dump, write_dump
from fleet.actions import Timing
from fleet.preview import preview
from fleet.resources import Accepts, Policy
from fleet.view import View
from fleet.wishes import Wish, made_up
from tests.cli.conftest import Saved, everything, fails, run
from tests.fleet.builders import agreement, at, claim, members, node, pod, pool, view

GANG = ("-n", "team-b", "--nodes", "2")


def fleet() -> View:
    """One free node, three that may be vacated, one whose owner has not agreed, two that are out of the question."""
    return view(
        pool(),
        pool("small", accepts=Accepts.SMALL),
        node("big-free"),
        [[node(f"big-{index}"), pod(f"v{index}", 2, on=f"big-{index}", started=-900 * index)] for index in range(3)],
        [node("big-w"), pod("w", on="big-w", ns="team-w")],
        node("big-cordoned", cordoned=True),
        node("small-0", "small"),
        agreement("nights"),
        members(2),
    )


def test_the_text_names_nodes_victims_costs_and_why_not_the_others(saved: Saved) -> None:
    done = run("plan", *GANG, "--pool", "big", "--from", saved(fleet()))
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    for words in (
        "2 whole nodes of pool big, policy Wait",
        "as of 2027-01-04 12:10:00Z",
        "NOW: waits | WaitingForNaturalEnd",
        "IF IT MIGHT STOP OTHERS NOW: takes 2 nodes and stops 1 pod | NodesChosen",
        "nodes big-free, big-0",
        "1200 GPU-seconds of work lost",
        "team-v nights 1 2 1 1200",
        "big-1 1 3000",
        "1 AgreementMissing big-w would have to agree: team-w",
        "1 Cordoned big-cordoned",
        "1 InAnotherPool small-0 pool small",
        "a DrainAgreement of team-w (1 node)",
    ):
        assert words in text, done.output
    assert max(map(len, done.output.splitlines())) <= 80


def test_o09_twice_on_the_same_picture_is_the_same_byte_for_byte_and_nothing_is_written(
    saved: Saved, tmp_path: Path
) -> None:
    file = saved(fleet())
    before = Path(file).read_bytes()
    for options in ((), ("--all",), ("-o", "json"), ("--dry-run",)):
        first, second = (run("plan", *GANG, "--from", file, *options) for _ in range(2))
        assert first.exit_code == 0, first.output
        assert first.stdout_bytes == second.stdout_bytes
    assert Path(file).read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["dump.json"]


def test_d20_a_preview_of_a_made_up_gang_leaves_the_picture_as_it_was() -> None:
    seen = fleet()
    preview(made_up(seen, Wish("team-b", 2, policy=Policy.WAIT_THEN_EVICT), at(600)), at(600), Timing())
    assert seen == fleet()


def test_a_picture_from_a_file_and_the_one_in_memory_have_the_same_plan(saved: Saved) -> None:
    seen, file = fleet(), saved(fleet())
    at_once = preview(made_up(seen, Wish("team-b", 2), at(600)), at(600), Timing())
    assert run("plan", *GANG, "--from", file).output == told(at_once, file) + "\n"
    piped = run("plan", *GANG, "--from", "-", given=Path(file).read_bytes())
    assert piped.output == told(at_once, "standard input") + "\n"


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["", "team-v", "team-w"]), st.booleans(), st.integers(-999, 0)), max_size=6),
    st.integers(1, 3),
    st.sampled_from(list(Policy)),
)
def test_a_picture_that_went_through_a_file_has_the_same_plan(
    rows: list[tuple[str, bool, int]], nodes: int, policy: Policy
) -> None:
    things: list[Any] = [agreement(), claim(policy=Policy.WAIT), members(1)]
    for index, (tenant, cordoned, started) in enumerate(rows):
        things.append(node(f"n{index}", cordoned=cordoned))
        if tenant:
            things.append(pod(f"p{index}", on=f"n{index}", ns=tenant, started=started))
    seen = view(things)
    again = read_dump(write_dump(seen, at(600))).view
    wish = Wish("team-b", nodes, policy=policy)
    plans = [preview(made_up(one, wish, at(600)), at(600), Timing()) for one in (seen, again)]
    assert plans[0] == plans[1]


def test_all_gives_every_other_node_a_line(saved: Saved) -> None:
    done = run("plan", *GANG, "--from", saved(fleet()), "--all")
    lines = [line.split() for line in done.output.splitlines()]
    told = {line[0]: line[1] for line in lines if len(line) > 3 and line[0].startswith(("big-", "small-"))}
    assert {"big-2", "big-w", "big-cordoned", "small-0"} <= set(told)
    assert told["big-w"] == "AgreementMissing"


def test_json_has_the_documented_fields_and_every_node_once(saved: Saved) -> None:
    done = run("plan", *GANG, "--from", saved(fleet()), "-o", "json")
    found = json.loads(done.stdout)
    page = (Path(__file__).parents[2] / "docs" / "plan.md").read_text(encoding="utf-8")
    for part in (found, found["claim"], found["ifAllowed"], found["ifAllowed"]["teams"][0]):
        assert [key for key in part if f"`{key}`" not in page] == []
    assert [key for key in found["ifAllowed"]["others"][0] if f"`{key}`" not in page] == []
    decision = found["ifAllowed"]
    names = [*decision["nodes"], *(one["node"] for one in decision["others"])]
    assert sorted(names) == sorted(fleet().nodes)
    assert decision["victims"][0]["name"] == "v0"
    assert found["now"]["takes"] is False
    assert found["at"] == "2027-01-04T12:10:00Z"


def test_a_pod_can_be_named_in_every_usual_way(saved: Saved) -> None:
    file = saved(fleet())
    texts = {
        run("plan", *typed, "--from", file).output
        for typed in (["team-b/train-0"], ["-n", "team-b", "train-1"], ["pod/train-0", "-n", "team-b"])
    }
    (text,) = texts
    assert text.startswith("Plan for a gang of team-b (train): 2 whole nodes, policy Wait\n")


def test_another_time_may_be_asked_for(saved: Saved) -> None:
    file = saved(fleet())
    later = run("plan", *GANG, "--from", file, "--at", "2027-01-04T13:00:00Z")
    assert "2027-01-04 13:00:00Z" in later.output
    assert "7200 GPU-seconds of work lost" in " ".join(later.output.split())


def test_a_list_without_a_time_needs_one(tmp_path: Path) -> None:
    path = tmp_path / "kubectl.json"
    path.write_text('{"kind": "List", "items": []}', encoding="utf-8")
    fails(run("plan", "a/b", "--from", str(path)), 1, "--at", "kubectl.json")
    fails(run("plan", "a/b", "--from", str(path), "--at", "2027-01-04T13:00:00Z"), 1, "there is no pod a/b")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ([], "-n NAMESPACE --nodes NUMBER"),
        (["-n", "team-b"], "-n NAMESPACE --nodes NUMBER"),
        (["--nodes", "2"], "-n NAMESPACE --nodes NUMBER"),
        (["team-b/p", "--nodes", "2"], "--nodes is for made-up gangs"),
        (["team-b/p", "--expected-run", "2h"], "--expected-run is for made-up gangs"),
        (["p"], "NAMESPACE/POD"),
        (["a/b/c"], "NAMESPACE/POD"),
        (["-n", "Team", "--nodes", "2"], "is no name of a namespace"),
        ([*GANG, "--patience", "7d"], "--patience: '7d' is not a duration"),
        ([*GANG, "--expected-run", "long"], "--expected-run: 'long' is not a duration"),
        ([*GANG, "--topology-key", "a b"], "no key of a node label"),
        ([*GANG, "--at", "noon"], "--at"),
        ([*GANG, "--kubeconfig", "x"], "not both"),
        ([*GANG, "--nodes", "0"], "--nodes"),
        ([*GANG, "--policy", "Evict"], "--policy"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(saved: Saved, typed: list[str], words: str) -> None:
    fails(run("plan", *typed, "--from", saved(fleet())), 2, words)


def test_a_time_without_a_file_is_a_usage_error() -> None:
    fails(run("plan", *GANG, "--at", "2027-01-04T13:00:00Z"), 2, "--at needs --from")


def test_what_there_is_no_plan_for_is_one_line(saved: Saved) -> None:
    file = saved(fleet())
    fails(run("plan", "team-b/none", "--from", file), 1, "there is no pod team-b/none", file)
    fails(run("plan", "team-v/v0", "--from", file), 1, "less than a node")
    fails(run("plan", *GANG, "--pool", "none", "--from", file), 1, "there is no pool none")
    fails(run("plan", *GANG, "--from", file + ".none"), 1, "cannot be read: No such file")
    fails(run("plan", *GANG, "--from", str(Path(file).parent)), 1, "cannot be read: Is a directory")
    fails(run("plan", *GANG, "--from", "-", given=b"{}"), 1, "its kind must be List")


def test_the_object_and_field_that_cannot_be_read_are_named(saved: Saved) -> None:
    file = Path(saved(fleet()))
    file.write_bytes(file.read_bytes().replace(b'"nodeName":"big-w"', b'"nodeName":7'))
    fails(run("plan", *GANG, "--from", str(file)), 1, "Pod team-w/w: spec.nodeName")


def test_a_setting_that_cannot_be_read_is_named(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHOLENODE_COOL_DOWN_SECONDS", "soon")
    fails(run("plan", *GANG, "--from", saved(fleet())), 1, "WHOLENODE_COOL_DOWN_SECONDS")


def test_no_kubeconfig_is_one_line(tmp_path: Path) -> None:
    fails(run("plan", *GANG, "--kubeconfig", str(tmp_path / "none")), 1, "no kubeconfig at")


WORDS = [b'"', b"{", b"}", b"[", b"]", b",", b"null", b"-1", b'"x"', b"9e999", b"2027-01-04T12:00:00", b"99999999999"]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(0, 40), st.sampled_from(WORDS))
def test_a_damaged_file_is_a_plan_or_one_line(start: int, length: int, instead: bytes) -> None:
    whole = write_dump(fleet(), at(600))
    begin = start % len(whole)
    done = run("plan", *GANG, "--from", "-", given=whole[:begin] + instead + whole[begin + length :])
    if done.exit_code:
        fails(done, 1)


def listed(seen: View) -> dict[str, tuple[int, Any]]:
    """An API server that has the picture's nodes, pods, pools and agreements."""
    return everything(
        nodes=list(seen.nodes.values()),
        pods=list(seen.pods.values()),
        gpupools=list(seen.pools),
        drainagreements=list(seen.agreements),
    )


def test_a_running_cluster_is_asked_by_lists_alone_and_its_dump_has_the_same_plan(cluster: Any) -> None:
    server, options = cluster(listed(fleet()))
    live = json.loads(run("plan", *GANG, *options, "-o", "json").stdout)
    dump = run("dump", *options)
    assert dump.exit_code == 0, dump.output
    saved = run("plan", *GANG, "--from", "-", "--at", live["at"], "-o", "json", given=dump.stdout_bytes)
    assert json.loads(saved.stdout) == live
    assert live["now"]["reason"] == "WaitingForNaturalEnd"
    assert len(set(server.asked)) * 2 == len(server.asked)


def test_what_may_not_be_listed_is_said_or_ends_it(cluster: Any) -> None:
    no = (403, {"kind": "Status", "message": "user u cannot list these", "reason": "Forbidden", "code": 403})
    answers = listed(fleet())
    _, options = cluster({**answers, "/apis/scheduling.x-k8s.io/v1alpha1/podgroups": no})
    done = run("plan", *GANG, *options)
    assert (done.exit_code, "not read GET /apis/" in " ".join(done.stdout.split())) == (0, True), done.output
    assert run("dump", *options).stderr.startswith("not read: ")
    _, options = cluster({**answers, "/api/v1/nodes": no})
    fails(run("plan", *GANG, *options), 1, "cannot list these", "with your own rights")
    fails(run("dump", *options), 1, "cannot list these")
    del answers["/apis/wholenode.io/v1alpha1/gpupools"]
    _, options = cluster(answers)
    fails(run("plan", *GANG, *options), 1, "is it installed?")
