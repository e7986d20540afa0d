"""The stand-in of HAMi as it runs: its ledger, its lock, its limit, its webhook, its command line."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kwok import probe
from kwok.controlplane import ControlPlane
from kwok.hami.bucket import Bucket
from kwok.hami.devices import (
    ALLOCATED,
    BIND_PHASE,
    BOOKED_NODE,
    CORDON,
    LOCK,
    REGISTER,
    TO_ALLOCATE,
    read_register,
)
from kwok.hami.ledger import Ledger
from kwok.hami.nodes import shared_nodes
from kwok.hami.plugin import Plugin
from kwok.hami.rules import Used
from kwok.hami.run import Hami
from kwok.hami.webhook import RefusedError, mutated, review
from tests.kwok.hamis import TENTH, Scene, Store, a_pod, limits

# The ledger


def booked(name: str, node: str, devices: str, **status: Any) -> dict[str, Any]:
    pod = a_pod(name, TENTH, notes={BOOKED_NODE: node, ALLOCATED: devices})
    pod["status"] = status
    return pod


A_TENTH = "GPU-n-000-0,NVIDIA,2456,10:;"


def test_h06_only_an_end_gives_cards_back() -> None:
    ledger, pod = Ledger(), booked("p", "n-000", A_TENTH, phase="Running")
    ledger.add_pod(pod)
    assert ledger.usage("n-000") == {"GPU-n-000-0": Used(1, 2456, 10)}
    going = copy.deepcopy(pod)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ledger.change_pod(going)
    assert ledger.usage("n-000"), "a terminating pod is counted"
    bare = copy.deepcopy(pod)
    bare["metadata"]["annotations"] = {}
    ledger.change_pod(bare)
    assert ledger.usage("n-000"), "the loss of its annotations gives nothing back"
    ledger.change_pod(booked("p", "n-000", A_TENTH, phase="Succeeded"))
    assert not ledger.usage("n-000")
    ledger.change_pod(pod)
    ledger.drop_pod(pod)
    assert not ledger.usage("n-000")


async def test_h05_h10_a_booking_outlives_the_refusal_that_comes_after_it() -> None:
    scene = Scene(2)
    pod = scene.arrives(a_pod("p", limits(8, cores=100)))
    (first,) = (await scene.filter(pod))["NodeNames"]
    second = await scene.filter(scene.arrives(a_pod("q", limits(8, cores=100))))
    assert second["NodeNames"] != [first], "the cards of a pod that was never bound are taken"
    (again,) = (await scene.filter(pod))["NodeNames"]
    assert again == first, "asked anew, its own booking does not stand in its way"
    scene.ledger.drop_pod(pod)
    assert not scene.ledger.usage(first)


def test_after_a_restart_the_annotations_are_the_ledger_but_terminating_pods_are_forgotten() -> None:
    ledger = Ledger()
    going = booked("going", "n-000", "GPU-n-000-1,NVIDIA,2456,10:;", phase="Running")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    for pod in (booked("stays", "n-000", A_TENTH, phase="Running"), going, a_pod("by-hand", TENTH)):
        ledger.add_pod(pod)
    assert list(ledger.usage("n-000")) == ["GPU-n-000-0"]


def test_h12_the_largest_init_container_counts_until_all_have_run() -> None:
    pod = booked("p", "n", "GPU-a,NVIDIA,24564,100:;GPU-a,NVIDIA,2456,10:;")
    pod["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": limits(1, cores=100)}}]
    ledger = Ledger()
    ledger.add_pod(pod)
    assert ledger.usage("n") == {"GPU-a": Used(1, 24564, 100)}
    pod["status"] = {"conditions": [{"type": "Initialized", "status": "True"}]}
    ledger.change_pod(pod)
    assert ledger.usage("n") == {"GPU-a": Used(1, 2456, 10)}, "the card stays with the containers"


def test_a_node_takes_its_bookings_along_and_a_cordon_is_seen_with_the_next_register_only() -> None:
    (node,) = shared_nodes(1, prefix="n")
    ledger = Ledger()
    ledger.put_node(node)
    ledger.add_pod(booked("p", "n-000", A_TENTH))
    node["metadata"]["annotations"][CORDON] = "GPU-n-000-3"
    ledger.put_node(node)
    assert not ledger.nodes["n-000"].cordoned
    node["status"]["allocatable"]["nvidia.com/gpu"] = "0"
    ledger.put_node(node)
    assert not ledger.nodes["n-000"].devices, "no shares offered: no cards"
    ledger.drop_node("n-000")
    assert not ledger.bookings


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["Running", "Failed", "going", "gone"])), max_size=20))
def test_the_ledger_kept_by_changes_is_the_ledger_of_what_is_left(steps: list[tuple[int, str]]) -> None:
    kept, living = Ledger(), {}
    for number, what in steps:
        pod = booked(f"p{number}", "n", f"GPU-{number},NVIDIA,100,1:;", phase=what)
        living.pop(number, None)
        if what == "gone":
            kept.drop_pod(pod)
            continue
        kept.change_pod(pod)
        if what != "Failed":
            living[number] = pod
    assert sorted(kept.usage("n")) == sorted(f"GPU-{number}" for number in living)


# Binding


async def test_bind_locks_the_node_until_the_device_plugin_has_served_the_pod() -> None:
    scene = Scene(1)
    first, second = (scene.arrives(a_pod(name, TENTH)) for name in ("first", "second"))
    for pod in (first, second):
        await scene.filter(pod)
    assert await scene.bind(first, "n-000") == ""
    assert scene.store.notes("n-000")[LOCK].endswith(",team,first")
    assert scene.store.notes("first")[BIND_PHASE] == "allocating"
    assert "locked by team/first" in await scene.bind(second, "n-000")
    assert scene.store.bound == ["first on n-000"]
    assert len(scene.ledger.bookings) == 2, "the loser's booking stays"

    first["spec"]["nodeName"] = "n-000"
    plugin = Plugin(scene.store, allocate_seconds=0)
    plugin.see("MODIFIED", first)
    await plugin.idle()
    assert LOCK not in scene.store.notes("n-000")
    notes = scene.store.notes("first")
    assert (notes[BIND_PHASE], notes[TO_ALLOCATE]) == ("success", ";")
    assert await scene.bind(second, "n-000") == ""


@pytest.mark.parametrize(("age", "holder", "opens"), [(1, "alive", False), (301, "alive", True), (1, "gone", True)])
async def test_h11_a_lock_is_taken_over_when_it_is_old_or_its_pod_is_gone(
    age: int, holder: str, *, opens: bool
) -> None:
    scene = Scene(1)
    scene.arrives(a_pod("alive", TENTH))
    pod = scene.arrives(a_pod("p", TENTH))
    taken_at = datetime.now(UTC) - timedelta(seconds=age)
    scene.store.notes("n-000")[LOCK] = f"{taken_at:%Y-%m-%dT%H:%M:%SZ},team,{holder}"
    assert (await scene.bind(pod, "n-000") == "") is opens


async def test_a_pod_that_is_gone_before_it_is_bound_leaves_neither_lock_nor_booking() -> None:
    scene = Scene(1)
    pod = scene.arrives(a_pod("p", TENTH))
    await scene.filter(pod)
    del scene.store.objects["/api/v1/namespaces/team/pods/p"]
    assert "cannot bind" in await scene.bind(pod, "n-000")
    assert LOCK not in scene.store.notes("n-000")
    assert not scene.ledger.bookings


# The client's limit


def test_h15_ten_calls_at_once_and_then_five_a_second() -> None:
    now = 0.0
    bucket = Bucket(5, 10, clock=lambda: now)
    waits = [bucket.reserve() for _ in range(15)]
    assert waits == pytest.approx([0.0] * 10 + [0.2, 0.4, 0.6, 0.8, 1.0])
    now = 1.0
    assert bucket.reserve() == pytest.approx(0.2), "the five of that second are spoken for"
    now = 100.0
    assert [bucket.reserve() for _ in range(11)] == [0.0] * 10 + [pytest.approx(0.2)]


@pytest.mark.parametrize(("rate", "burst"), [(0, 10), (5, 0)])
def test_a_limit_that_lets_nothing_through_is_refused(rate: float, burst: int) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Bucket(rate, burst)


async def test_h15_a_pod_costs_nine_calls() -> None:
    scene = Scene(1)
    made: list[str] = []
    inner = scene.store.call

    async def counted(method: str, path: str, body: Any = None, *, patch: str | None = None) -> Any:
        made.append(method)
        return await inner(method, path, body, patch=patch)

    scene.store.call = counted  # type: ignore[method-assign]
    pod = scene.arrives(a_pod("p", TENTH))
    await scene.filter(pod)
    await scene.bind(pod, "n-000")
    await scene.extender.told()
    assert sorted(made) == ["GET"] * 3 + ["PATCH"] * 3 + ["POST"] * 3


# The webhook


def test_h04_the_webhook_adds_a_card_to_a_wish_for_memory_and_all_cores_to_whole_cards() -> None:
    part = mutated(a_pod("p", limits(memory=3000)), "hami-scheduler")
    assert part is not None
    assert part["containers"][0]["resources"]["limits"] == limits(1, memory=3000)
    assert part["schedulerName"] == "hami-scheduler"
    whole = mutated(a_pod("p", limits(8)), "hami-scheduler")
    assert whole is not None
    assert whole["containers"][0]["resources"]["limits"] == limits(8, cores=100)
    assert mutated(a_pod("p", {"cpu": "1"}), "hami-scheduler") is None
    elsewhere = a_pod("p", limits(8))
    elsewhere["spec"]["schedulerName"] = "volcano"
    assert mutated(elsewhere, "hami-scheduler") is None


def test_the_webhook_turns_away_a_pod_with_a_node_and_a_privileged_one() -> None:
    placed, mighty = a_pod("p", TENTH), a_pod("q", TENTH)
    placed["spec"]["nodeName"] = "n-000"
    mighty["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    for pod in (placed, mighty):
        with pytest.raises(RefusedError):
            mutated(pod, "hami-scheduler")


def test_the_webhook_answers_in_the_version_it_was_asked_in() -> None:
    asked = {"apiVersion": "admission.k8s.io/v1beta1", "request": {"uid": "u", "object": a_pod("p", limits(8))}}
    answer = review(asked, "hami-scheduler")
    assert (answer["apiVersion"], answer["response"]["uid"]) == ("admission.k8s.io/v1beta1", "u")
    (change,) = json.loads(base64.b64decode(answer["response"]["patch"]))
    assert change["value"]["containers"][0]["resources"]["limits"] == limits(8, cores=100)
    asked["request"]["object"]["spec"]["nodeName"] = "n-000"  # type: ignore[index]
    refused = review(asked, "hami-scheduler")["response"]
    assert (refused["allowed"], refused["status"]["message"]) == (False, "pod has node assigned")


# The program


@pytest.mark.parametrize("flags", [[], ["--port=1"], ["--port=1", "--kubeconfig=x", "--webhook-port=2"]])
def test_a_wrong_command_line_is_refused_in_one_line(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    run = subprocess.run([sys.executable, "-m", "kwok.hami", *flags], capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "Traceback" not in run.stderr


def test_the_stores_nodes_carry_what_hami_reads() -> None:
    (node,) = shared_nodes(1, prefix="n", sick=(2,))
    store = Store(node)
    assert [one.health for one in read_register(store.notes("n-000")[REGISTER])] == [True, True, False, *[True] * 5]


def a_real_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hami:
    monkeypatch.setenv("WHOLENODE_HAMI_SCHEDULER", "/opt/hami/scheduler")
    plane = ControlPlane()
    plane.root = tmp_path
    return Hami(plane, gpu_policy="spread", kube_qps=5, kube_burst=10)


def test_a_real_scheduler_is_started_with_the_same_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hami = a_real_one(monkeypatch, tmp_path)
    program, *flags = hami.command()
    assert program == "/opt/hami/scheduler"
    assert {f"--http_bind=127.0.0.1:{hami.port}", "--kube-qps=5", "--gpu-scheduler-policy=spread"} <= set(flags)
    assert f"--cert_file={tmp_path / 'hami' / 'webhook.crt'}" in flags
    devices = yaml.safe_load((tmp_path / "hami-devices.yaml").read_text(encoding="utf-8"))
    assert devices["nvidia"]["resourceCoreName"] == "nvidia.com/gpucores"
    (hook,) = hami.webhook("team")["webhooks"]
    assert hook["clientConfig"]["url"] == f"https://127.0.0.1:{hami.port}/webhook"
    assert hami.entry()["urlPrefix"] == f"https://127.0.0.1:{hami.port}"


def test_a_real_scheduler_is_ready_when_it_answers_a_question(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hami = a_real_one(monkeypatch, tmp_path)
    asked = []
    answers = [(None, "refused"), (200, '{"NodeNames": []}')]

    def answer(method: str, port: int, path: str, *_: object) -> tuple[int | None, str]:
        asked.append((method, port, path))
        return answers[len(asked) - 1]

    monkeypatch.setattr(probe, "request", answer)
    monkeypatch.setattr(Hami, "running", lambda _: True)
    asyncio.run(hami.ready())
    assert asked == [("POST", hami.port, "/filter")] * 2


def test_the_bookings_of_a_real_one_are_read_from_its_metrics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hami = a_real_one(monkeypatch, tmp_path)
    text = (
        'hami_gpu_shared_count{node="n-1"} 1\n'
        'hami_vgpu_memory_allocated_bytes{namespace="team",node="n-1",pod="a",zone="vGPU"} 2.5e+09\n'
        'hami_vgpu_memory_allocated_bytes{pod="b",node="n-2",namespace="team"} 1\n'
    )
    monkeypatch.setattr(probe, "request", lambda *_: (200, text))
    assert hami.booked() == {"team/a": "n-1", "team/b": "n-2"}
