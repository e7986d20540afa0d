"""`wholenode why`: what may be typed, where it asks, what it prints, and how it fails."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from cli.main import main
from cli.why_text import told
from fleet.names import EXPECTED_RUN
from fleet.objects import Condition
from fleet.resources import Accepts
from fleet.why.explain import explain
from fleet.why.explanations import Event, Explanation, Told
from tests.cli.conftest import everything
from tests.fleet.builders import at, claim, members, node, pod, pool, view

NOW = at(600)
PROXY = "/api/v1/namespaces/wholenode-system/services/wholenode-extender:{}/proxy"
ANSWER = msgspec.json.encode(explain(view(pool("small", accepts=Accepts.SMALL), pod("p", 9)), pod("p", 9), Told(), NOW))
NO_POD = {"kind": "Status", "message": "wholenode: there is no pod team-v/p", "reason": "NotFound", "code": 404}


def why(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["why", *arguments])


def fails(done: Result, code: int, *words: str) -> None:
    """One clear line, that exit code, no traceback."""
    assert done.exit_code == code, done.output
    assert done.output.count("\n") == 1, done.output
    assert done.output.startswith("why: ")
    assert "Traceback" not in done.output
    for word in words:
        assert word in done.output


@pytest.mark.parametrize(
    "typed",
    [
        ["team-v/p"],
        ["-n", "team-v", "p"],
        ["-n", "team-v", "pod/p"],
        ["pods/p", "-n", "team-v"],
        ["-n", "team-v", "team-v/p"],
    ],
)
def test_a_pod_can_be_named_in_every_usual_way(serve: Any, typed: list[str]) -> None:
    server = serve({"/v1/explain/team-v/p": (200, ANSWER)})
    done = why(*typed, "--url", server.url)
    assert (done.exit_code, server.asked) == (0, ["/v1/explain/team-v/p"]), done.output
    assert done.output.startswith("team-v/p waits, not attempted yet | stage Capacity | NeverFits\n")


@pytest.mark.parametrize(
    "typed", [["p"], ["a/b/c"], ["/p"], ["-n", "x", "y/p"], ["a/b", "--direct", "--url", "http://x"], []]
)
def test_what_cannot_be_meant_is_a_usage_error(typed: list[str]) -> None:
    done = why(*typed)
    assert (done.exit_code, "Usage:" in done.output, "Traceback" in done.output) == (2, True, False)


def test_json_is_the_extenders_own(serve: Any) -> None:
    server = serve({"/v1/explain/team-v/p": (200, ANSWER)})
    done = why("team-v/p", "--url", server.url + "/", "-o", "json")
    assert json.loads(done.output) == json.loads(ANSWER)


def test_an_extender_that_says_no_or_is_none(serve: Any) -> None:
    server = serve({"/v1/explain/team-v/p": (404, NO_POD), "/v1/explain/team-v/web": (200, b"<html>")})
    fails(why("team-v/p", "--url", server.url), 3, "there is no pod team-v/p")
    fails(why("team-v/q", "--url", server.url), 5, "is that address an extender?")
    fails(why("team-v/web", "--url", server.url), 5, "not an explanation")
    busy = {"kind": "Status", "message": "wholenode: the extender has not seen the whole cluster yet", "code": 503}
    fails(why("team-v/p", "--url", serve({"/v1/explain/team-v/p": (503, busy)}).url), 5, "not seen the whole cluster")
    fails(why("team-v/p", "--url", "http://127.0.0.1:1"), 5, "cannot be asked", "--direct")
    wrong = why("team-v/p", "--url", "nonsense")
    assert (wrong.exit_code, "write http://HOST:PORT" in wrong.output) == (2, True)


@pytest.mark.parametrize("name", ["team-b/..", "team-b/NINE?x", "../p", "a b/p"])
def test_what_is_no_name_is_refused_before_anybody_is_asked(name: str) -> None:
    for way in ("--direct", "--url=http://127.0.0.1:1"):
        done = why(name, way)
        assert (done.exit_code, "is no name of a namespace or pod" in done.output) == (2, True)


def test_the_default_way_is_the_service_proxy_on_the_plain_port(cluster: Any) -> None:
    server, options = cluster({PROXY.format("http") + "/v1/explain/team-v/p": (200, ANSWER)})
    done = why("team-v/p", *options)
    assert (done.exit_code, len(server.asked)) == (0, 1), done.output
    no_port = {"kind": "Status", "message": 'no service port "http" found', "code": 503}
    tls = {PROXY.format("http") + "/v1/explain/team-v/p": (503, no_port)}
    server, options = cluster({**tls, PROXY.format("health") + "/v1/explain/team-v/p": (200, ANSWER)})
    assert why("team-v/p", *options).exit_code == 0


def test_another_release_is_named_by_its_service(cluster: Any) -> None:
    path = "/api/v1/namespaces/gpu/services/mine:http/proxy/v1/explain/team-v/p"
    _, options = cluster({path: (200, ANSWER)})
    assert why("team-v/p", *options, "--service", "gpu/mine").exit_code == 0
    assert why("team-v/p", *options, "--service", "gpu").exit_code == 2


def test_what_the_service_proxy_may_answer_instead(cluster: Any) -> None:
    path = PROXY.format("http") + "/v1/explain/team-v/p"
    _, options = cluster({path: (404, NO_POD)})
    fails(why("team-v/p", *options), 3, "there is no pod team-v/p")
    _, options = cluster({path: (403, {"kind": "Status", "message": "user u may not", "code": 403})})
    fails(why("team-v/p", *options), 4, "services/proxy", "--direct")
    _, options = cluster({})
    fails(why("team-v/p", *options), 5, "--service", "--direct")


def test_no_kubeconfig_is_one_line(tmp_path: Path) -> None:
    fails(why("team-v/p", "--kubeconfig", str(tmp_path / "none")), 5, "no kubeconfig at")


def test_the_direct_way_reads_the_cluster_with_the_callers_rights(cluster: Any) -> None:
    small = pool("small", accepts=Accepts.SMALL)
    busy = [pod(f"b{index}", on="n1") for index in range(7)]
    answers = everything(nodes=[node("n1", "small")], pods=[pod("p", 2), *busy], gpupools=[small])
    _, options = cluster(answers)
    done = why("team-v/p", "--direct", *options, "-o", "json")
    assert done.exit_code == 0, done.output
    found = msgspec.json.decode(done.output.encode(), type=Explanation)
    assert (found.stage, found.reason, found.numbers["cardsFree"]) == ("Capacity", "NotEnoughCards", 1)


def test_the_direct_way_says_which_right_is_missing(cluster: Any) -> None:
    answers = everything()
    no = (403, {"kind": "Status", "message": "user u cannot list nodes", "reason": "Forbidden", "code": 403})
    _, options = cluster({**answers, "/api/v1/nodes": no})
    fails(why("team-v/p", "--direct", *options), 4, "cannot list nodes", "without it the extender does")
    _, options = cluster({**answers, "/api/v1/namespaces/team-v/pods/p": no})
    fails(why("team-v/p", "--direct", *options), 4, "You may not read that pod")
    del answers["/api/v1/namespaces/team-v/pods/p"]
    _, options = cluster(answers)
    fails(why("team-v/p", "--direct", *options), 3, "there is no pod team-v/p")
    answers = everything()
    del answers["/apis/wholenode.io/v1alpha1/gpupools"]
    _, options = cluster(answers)
    fails(why("team-v/p", "--direct", *options), 5, "is it installed?")


# Text


def test_the_text_fits_80_columns_and_says_times_twice() -> None:
    seen = view(node("n1"), pod("a-long-name-of-a-pod", 3, on="n1", notes={EXPECTED_RUN: "90m"}), members(1), claim())
    one = members(1)[0]
    refused = Condition("PodScheduled", "False", "Unschedulable", "0/1 nodes are available. " * 6)
    one = msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, conditions=(refused,)))
    answer = explain(seen, one, Told(failed_scheduling=Event("FailedScheduling", "x"), unread=("events: no",)), NOW)
    text = told(answer, NOW + timedelta(seconds=30))
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert lines[0] == "team-b/train-0 waits, attempted, no place | stage Capacity | NotEnoughCards"
    assert "in 1h19m30s (2027-01-04 13:30:00Z)" in " ".join(text.split())
    assert "  since      10m30s ago (2027-01-04 12:00:00Z)" in lines
    assert "  not read   events: no" in lines
    assert any(line.startswith("  scheduler  0/1 nodes are available.") for line in lines)


def test_no_line_is_longer_than_80_columns_wherever_words_end() -> None:
    for length in range(1, 40):
        refused = Condition("PodScheduled", "False", "Unschedulable", "x" * length + " abc" * 60)
        one = msgspec.structs.replace(
            members(1)[0], metadata=msgspec.structs.replace(members(1)[0].metadata, name="n" * length)
        )
        one = msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, conditions=(refused,)))
        text = told(explain(view(node("n1"), pod("a" * length, 3, on="n1")), one, Told(), NOW), NOW)
        assert max(len(line) for line in text.splitlines()) <= 80


def test_pods_that_do_not_wait_take_two_lines() -> None:
    answer = explain(view(node("n1"), pod("p", on="n1")), pod("p", on="n1"), Told(), NOW)
    assert told(answer, NOW).splitlines()[:2] == ["team-v/p does not wait | Running", "  It runs on node n1."]
