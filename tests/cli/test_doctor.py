"""`wholenode doctor`: what it prints, its exit codes, what it asks a server, and that the page has all of it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.doctor import _scheduler_configs
from cluster.client import Api
from cluster.configs import kueue_config
from fleet.doctor.findings import Code
from fleet.doctor.registry import CHECKS, NAMES
from fleet.hami import ALLOCATED
from fleet.times import parse_time
from fleet.view import View
from tests.cli.conftest import everything, run
from tests.fleet.builders import agreement, at, node, pod, pool, view
from tests.fleet.doctor.pictures import placed
from tests.fleet.shares import shared_node

PAGE = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
OTHER = Path(__file__).with_name("conftest.py")
"""A file that is no configuration."""
EMPTY = {"metadata": {"resourceVersion": "1"}, "items": []}
FORBIDDEN = (403, {"kind": "Status", "message": "not for you", "reason": "Forbidden", "code": 403})


def slow_fleet() -> View:
    """Five nodes; 20 pods were placed in 40 s, a card on each node in turn, and 24 wait."""
    bound = []
    for index in range(20):
        one = placed(f"b{index}", f"big-{index % 5}", chosen=2 * index, bound=2 * index + 2)
        card = f"big-{index % 5}-{index // 5},NVIDIA,24564,100:;"
        notes = {**(one.metadata.annotations or {}), ALLOCATED: card}
        bound.append(msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, annotations=notes)))
    nodes = [shared_node(f"big-{index}", "big") for index in range(5)]
    return view(nodes, bound, [pod(f"w{index}") for index in range(24)], pool(), agreement())


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    from cluster.dumps import write_dump

    monkeypatch.chdir(tmp_path)
    Path("dump.json").write_bytes(write_dump(slow_fleet(), at(40)))
    return "dump.json"


def test_the_example_of_the_page_is_what_it_prints(slow: str) -> None:
    done = run("doctor", "--from", slow)
    assert done.exit_code == 1
    [example] = re.findall(r"^\$ wholenode doctor --from dump.json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert done.output == example


def test_json_has_the_same(slow: str) -> None:
    done = run("doctor", "--from", slow, "--json", "--only", "rate-limits,agreements")
    report = json.loads(done.output)
    assert (done.exit_code, report["exitCode"], report["verdict"]) == (1, 1, "problem")
    assert report["at"] == "2027-01-04T12:00:40.000000Z"
    assert [one["check"] for one in report["findings"]] == ["rate-limits", "agreements"]
    assert set(report["findings"][0]) == {"check", "code", "verdict", "summary", "evidence", "fix", "unread"}
    fields = set(re.findall(r"`(\w+)`", PAGE.split("## The JSON report")[1].split("Names of checks")[0]))
    assert fields >= {*report, *report["findings"][0]}


def test_a_healthy_file_is_zero(tmp_path: Path) -> None:
    from cluster.dumps import write_dump

    path = tmp_path / "dump.json"
    path.write_bytes(write_dump(view(node("n")), at(0)))
    done = run("doctor", "--from", str(path))
    assert done.exit_code == 0, done.output
    assert done.output.endswith("OK: nothing is wrong (exit code 0)\n")


def test_expected_pods_of_kueue_do_not_wait_for_a_scheduler(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    from cluster.dumps import write_dump

    path.write_bytes(write_dump(view(node("n")), at(0)))
    report = json.loads(run("doctor", "--from", str(path), "--json", "--only", "rate-limits").output)
    assert report["findings"][0]["evidence"]["waiting"] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--only", "nonsense"), "'nonsense' is no check; there are: rate-limits"),
        (("--from", "nowhere.json"), "nowhere.json cannot be read"),
        (("--from", "x", "--watch-seconds", "5"), "nothing to watch"),
        (("--scheduler-config", "nowhere.yaml"), "nowhere.yaml cannot be read"),
        (("--scheduler-config", str(OTHER)), "there is no KubeSchedulerConfiguration"),
        (("--kueue-config", str(OTHER)), "there is no Configuration"),
        (("--kubeconfig", "nowhere"), "no kubeconfig at nowhere"),
    ],
)
def test_what_cannot_be_checked_is_one_line_and_two(arguments: tuple[str, ...], words: str) -> None:
    done = run("doctor", *arguments)
    assert done.exit_code == 2
    assert "Traceback" not in done.output
    assert words in done.output.splitlines()[-1]


def served(**lists: Any) -> dict[str, tuple[int, Any]]:
    """A whole cluster with wholenode and nothing beside it."""
    found: dict[str, tuple[int, Any]] = everything(**lists)
    for path in (
        "/api/v1/events",
        "/api/v1/services",
        "/api/v1/configmaps",
        "/apis/apps/v1/deployments",
        "/apis/resource.k8s.io/v1/resourceclaims",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
        *(f"/api/v1/namespaces/{one}/configmaps" for one in ("kube-system", "kueue-system", "hami-system")),
    ):
        found.setdefault(path, (200, EMPTY))
    return found | {"/version": (200, {})}


def ask(cluster: Any, answers: Mapping[str, tuple[int, Any]], *arguments: str) -> tuple[Any, dict[str, Any]]:
    server, options = cluster(answers)
    done = run("doctor", "--json", *arguments, *options)
    return server, json.loads(done.output)


def test_a_cluster_without_kueue_hami_and_configuration(cluster: Any) -> None:
    """The server knows no method but GET: a write would fail."""
    _, report = ask(cluster, served(nodes=[node("n")], gpupools=[pool()]))
    by_check = {one["check"]: (one["verdict"], one["code"]) for one in report["findings"]}
    assert by_check["quota-unit"] == ("ok", "NotUsed")
    assert by_check["preemption"] == ("ok", "NotUsed")
    assert by_check["node-locks"] == ("ok", "NotUsed")
    assert by_check["scheduler-config"] == ("unknown", "NotFound")
    assert report["unread"] == ["leases: the namespace that wholenode runs in was not found"]
    assert report["exitCode"] == 2


def test_nothing_but_get_is_ever_sent(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    send = Api._send

    async def recorded(self: Api, method: str, path: str, **rest: Any) -> bytes:
        sent.append((method, path))
        return await send(self, method, path, **rest)

    monkeypatch.setattr(Api, "_send", recorded)
    ask(cluster, served(nodes=[node("n")], gpupools=[pool()]), "--watch-seconds", "0.01")
    assert {method for method, _ in sent} == {"GET"}
    assert len(sent) >= 20


def test_what_is_forbidden_is_named_where_it_is_missed(cluster: Any) -> None:
    answers = {**served(nodes=[node("n")]), "/api/v1/pods": FORBIDDEN, "/apis/apps/v1/deployments": FORBIDDEN}
    _, report = ask(cluster, answers, "--only", "node-locks", "--only", "taint-writers")
    taints, locks = report["findings"]
    assert (locks["code"], locks["verdict"]) == ("NotRead", "unknown")
    assert locks["unread"] == ["pods: GET /api/v1/pods: not for you"]
    assert taints["verdict"] == "ok"
    assert "deployments: GET /apis/apps/v1/deployments: not for you" in report["unread"]
    assert report["exitCode"] == 2


def test_a_cluster_without_wholenode(cluster: Any) -> None:
    answers = {path: answer for path, answer in served().items() if "wholenode" not in path}
    _, report = ask(cluster, answers, "--only", "wholenode")
    assert [one["code"] for one in report["findings"]] == ["NotInstalled"]
    assert report["exitCode"] == 1


def test_a_server_that_does_not_answer(cluster: Any) -> None:
    server, options = cluster({})
    server.close()
    done = run("doctor", *options)
    assert done.exit_code == 2
    assert done.output.startswith("Error: ")


def test_configurations_and_programs_of_a_cluster_are_found(cluster: Any) -> None:
    config = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nextenders:\n" + (
        "- {urlPrefix: 'https://127.0.0.1', filterVerb: filter, bindVerb: bind, enableHTTPS: true, httpTimeout: 30s,"
        " nodeCacheCapable: true, tlsConfig: {insecure: true}, managedResources: [{name: nvidia.com/gpu}]}\n"
    )
    found = {"metadata": {"name": "hami", "namespace": "gpu"}, "data": {"config.yaml": config}}
    container = {"name": "vgpu-scheduler-extender", "image": "hami", "command": ["scheduler", "--kube-qps=20"]}
    spec = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    program = {"metadata": {"name": "hami-scheduler", "namespace": "gpu"}, "spec": spec}
    answers = served(nodes=[node("n")]) | {
        "/apis/apps/v1/deployments": (200, EMPTY | {"items": [program]}),
        "/api/v1/namespaces/gpu/configmaps": (200, EMPTY | {"items": [found]}),
    }
    _, report = ask(cluster, answers, "--only", "scheduler-config", "--only", "rate-limits")
    rates, config_found = report["findings"]
    assert rates["code"] == "Fine"
    assert {"qps": 20.0, "of": "hami"}.items() <= rates["evidence"]["limits"][0].items()
    assert config_found["code"] == "ExtenderMissing"
    assert config_found["evidence"] == {"source": "ConfigMap gpu/hami", "asked": ["HAMi"]}


def test_an_extender_that_is_not_ready(cluster: Any) -> None:
    labels = {"app.kubernetes.io/component": "extender"}
    meta = {"name": "wholenode-extender", "namespace": "ours", "labels": labels}
    service = {"metadata": meta, "spec": {"ports": [{"name": "https"}, {"name": "health"}]}}
    answers = served(nodes=[node("n")]) | {"/api/v1/services": (200, EMPTY | {"items": [service]})}
    path = "/api/v1/namespaces/ours/services/wholenode-extender:health/proxy/readyz"
    _, silent = ask(cluster, answers, "--only", "scheduler-config")
    assert {one["code"] for one in silent["findings"]} == {"NotFound", "ExtenderSilent"}
    server, ready = ask(cluster, answers | {path: (200, b"ok")}, "--only", "scheduler-config")
    assert {one["code"] for one in ready["findings"]} == {"NotFound"}
    assert path in server.asked


NAMESPACED = {"namespace": "ours", "labels": {"app.kubernetes.io/part-of": "wholenode"}}


def lease(name: str, renewed: datetime) -> dict[str, Any]:
    spec = {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": renewed.isoformat()}
    return {"metadata": {"name": name, "namespace": "ours"}, "spec": spec}


def with_leases(*leases: Any, release: str = "wholenode") -> dict[str, tuple[int, Any]]:
    labels = NAMESPACED["labels"] | {"app.kubernetes.io/component": "controller"}  # type: ignore[operator]
    meta = {"name": f"{release}-controller", "namespace": "ours", "labels": labels}
    program = {"metadata": meta, "spec": {"replicas": 1}, "status": {"readyReplicas": 1}}
    return served(nodes=[node("n")], gpupools=[pool()]) | {
        "/apis/apps/v1/deployments": (200, EMPTY | {"items": [program]}),
        "/api/v1/configmaps": (200, EMPTY | {"items": [{"metadata": {"name": "c", **NAMESPACED}}]}),
        "/apis/coordination.k8s.io/v1/namespaces/ours/leases": (200, EMPTY | {"items": [*leases]}),
    }


def stale(report: dict[str, Any]) -> bool:
    return any(one["code"] == "LeaseStale" for one in report["findings"])


@pytest.mark.parametrize("apart_seconds", [-3600, 3600])
def test_ages_go_by_the_clock_of_the_cluster(cluster: Any, monkeypatch: pytest.MonkeyPatch, apart_seconds: int) -> None:
    """Whoever asks has a clock of his own: it makes neither a lease stale nor one fresh."""
    theirs = datetime.now(UTC) + timedelta(seconds=apart_seconds)
    monkeypatch.setattr(
        BaseHTTPRequestHandler, "date_time_string", lambda *_: format_datetime(theirs.replace(microsecond=0), True)
    )
    _, held = ask(cluster, with_leases(lease("wholenode-controller", theirs)), "--only", "wholenode")
    assert not stale(held)
    assert abs((parse_time(held["at"]) - theirs).total_seconds()) < 60
    _, lost = ask(cluster, with_leases(lease("wholenode-controller", datetime.now(UTC))), "--only", "wholenode")
    assert stale(lost) == (apart_seconds > 0)


def test_leases_of_others_in_our_namespace_are_not_ours(cluster: Any) -> None:
    """`wn` is a release whose objects are named otherwise than wholenode."""
    now = datetime.now(UTC)
    old = lease("ingress-controller", now - timedelta(days=9))
    for release in ("wholenode", "wn"):
        answers = with_leases(old, lease(f"{release}-controller", now), release=release)
        assert not stale(ask(cluster, answers, "--only", "wholenode")[1])
    assert stale(ask(cluster, with_leases(old), "--only", "wholenode")[1])


def test_a_file_that_is_no_configuration_by_its_size_is_not_read(tmp_path: Path) -> None:
    big = tmp_path / "big.yaml"
    big.write_text("kind: KubeSchedulerConfiguration\n" + "#" * 1024 * 1024, encoding="utf-8")
    done = run("doctor", "--scheduler-config", str(big))
    assert (done.exit_code, done.output) == (2, f"Error: {big} is larger than 1 MiB: that is no configuration\n")


@pytest.mark.parametrize("empty", ["resources:\n", "resources:\n  transformations:\n  - {input: x, multiplyBy: }\n"])
def test_an_empty_part_of_kueues_configuration_is_left_out(empty: str) -> None:
    """As Kubernetes has it: what is null is not given."""
    assert kueue_config(f"apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n{empty}") is not None


def test_a_file_whose_name_is_no_text_is_read(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.yaml")
    Path(name).write_text("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n")
    (found,) = _scheduler_configs(Path(name))
    assert found.source.encode()


def test_watching_looks_twice(cluster: Any) -> None:
    server, report = ask(cluster, served(nodes=[node("n")], gpupools=[pool()]), "--watch-seconds", "0.01")
    assert server.asked.count("/api/v1/pods") == 2
    [policy] = [one for one in report["findings"] if one["check"] == "placement-policy"]
    assert [one["from"] for one in policy["evidence"]["trend"]][-2:] == ["watching", "now"]


@pytest.mark.parametrize("check", CHECKS, ids=NAMES)
def test_every_check_has_its_section(check: Any) -> None:
    [section] = re.findall(rf"^## {check.name}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert check.asks in section.replace("\n", " ")
    assert "*How it is measured*" in section
    assert "*Fix*" in section or check.name == "wholenode"


def test_every_code_has_its_row_and_no_other() -> None:
    sections = PAGE.split("## rate-limits")[1]
    rows = re.findall(r"^\| `(\w+)` \| (ok|warning|problem|unknown) \|", sections, re.MULTILINE)
    special = {"Fine", "NotUsed", "NotRead"}
    assert len(rows) == len({code for code, _ in rows})
    assert {code for code, _ in rows} == {str(one) for one in Code} - special
    assert all(f"`{one}`" in PAGE for one in special)
