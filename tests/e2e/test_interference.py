"""What people, machines and clocks do in the middle of a drain, on the real API server, scheduler and controllers."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator

import aiohttp
import pytest

from kwok import helm as tools
from kwok.admin import Object
from kwok.controlplane import ControlPlane
from kwok.faults import Before, Kind
from kwok.product import CONTROLLER, NAMESPACE, Product
from kwok.readings import taints, terminating, uid
from tests.e2e.behind import controller_behind, start_again
from tests.e2e.conftest import running_plane, running_product
from tests.e2e.drains import DEAR, Protected, evictions, going, lent, node_of_name, residents, state, writes_to
from tests.e2e.ground import VACATE, Ground

SETTINGS = {"WHOLENODE_RETRY_AFTER_SECONDS": "1", "WHOLENODE_LEASE_SECONDS": "30"}
CLAIMS = "/apis/wholenode.io/v1alpha1/namespaces/{}/wholenodeclaims"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/wholenode-controller"
SICK = {"key": "example.com/sick", "value": "fan", "effect": "PreferNoSchedule"}
OLDER = {"key": "example.com/older", "effect": "PreferNoSchedule"}


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """One control plane for all tests of this module; each has nodes, pools and a namespace of its own."""
    yield from running_plane(request)


@pytest.fixture(scope="module")
def product(plane: ControlPlane) -> Iterator[Product]:
    """wholenode on it; a claim that gave its nodes back looks for others soon, but avoids those for long."""
    yield from running_product(plane, SETTINGS)


# Foreign hands on the node


async def test_d03_a_taint_of_ours_that_somebody_takes_off_is_not_put_on_again_and_nobody_else_is_stopped(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    (node,) = await lent(ground, 1)
    await residents(ground, node, "kept", annotations=DEAR)
    await residents(ground, node, "slow", term_delay="2s", grace_seconds=10)
    async with controller_behind(plane, product) as between:
        protected = between.fault = Protected("kept")
        await ground.gang("train", 1, annotations=VACATE)
        await ground.until(lambda: going(ground))
        held = len(writes_to(between, node))
        await ground.admin.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": None}})

        await ground.until(lambda: state(ground) == ("Blocked", "TaintRemoved"))
        tried = len(evictions(between))
        protected.names.clear()
        await ground.until(lambda: "slow" not in ground.pods())
        await ground.until(lambda: state(ground)[0] == "Pending" and not ground.marked())

        assert [call for call in writes_to(between, node)[held:] if b"NoSchedule" in call.body] == []
        assert len(evictions(between)) == tried
        assert ground.runs("kept")


async def test_d05_a_taint_that_comes_between_our_read_and_our_write_stays_beside_ours(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    (node,) = await lent(ground, 1)
    path = f"/api/v1/nodes/{node}"
    await ground.admin.patch(path, {"spec": {"taints": [OLDER]}})
    await residents(ground, node, "slow", term_delay="1s", grace_seconds=10)
    async with controller_behind(plane, product) as between:
        both = {"spec": {"taints": [OLDER, SICK]}}
        between.fault = Before(lambda call: call in writes_to(between, node), lambda: ground.admin.patch(path, both))
        await ground.gang("train", 1, annotations=VACATE)
        await ground.until(lambda: going(ground))
        found = [{key: one[key] for key in one if key != "timeAdded"} for one in await taints_now(ground, node)]
        assert [one["key"] for one in found] == [OLDER["key"], SICK["key"], "wholenode.io/claim"]
        assert found[1] == SICK
        assert [call.status for call in writes_to(between, node)][:2] in ([409, 200], [422, 200])

        await ground.until(lambda: state(ground)[0] == "Bound" and not taints(node_of_name(ground, node)))
        assert [one["key"] for one in await taints_now(ground, node)] == [OLDER["key"], SICK["key"]]
    await ground.never_broke_a_rule()


async def taints_now(ground: Ground, node: str) -> list[Object]:
    """Every taint of the node, in its order."""
    found: list[Object] = (await ground.admin.get(f"/api/v1/nodes/{node}"))["spec"].get("taints") or []
    return found


async def test_d06_a_claim_that_is_deleted_while_draining_stops_nobody_and_leaves_the_node_alone(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    """The gang still waits, and has said that it would stop nobody; the claim was changed by hand."""
    (node,) = await lent(ground, 1)
    await residents(ground, node, "kept", annotations=DEAR)
    await residents(ground, node, "slow", term_delay="3s", grace_seconds=10)
    before = (await ground.admin.get(f"/api/v1/nodes/{node}"))["metadata"]["annotations"]
    async with controller_behind(plane, product) as between:
        protected = between.fault = Protected("kept")
        await ground.gang("train", 1)
        await ground.until(lambda: ground.waits("train", "WaitingForNaturalEnd"))
        made = ground.claims()["train"]
        path = f"{CLAIMS.format(ground.namespace)}/{made['metadata']['name']}"
        await ground.admin.patch(path, {"spec": {"policy": "WaitThenEvict"}})
        await ground.until(lambda: going(ground))

        await ground.admin.delete(path)

        await ground.until(lambda: uid(made) not in ground.history.live["claims"])
        await ground.until(lambda: not ground.marked())
        tried, marks = len(evictions(between)), len(writes_to(between, node))
        protected.names.clear()
        await ground.until(lambda: "slow" not in ground.pods() and "train" in ground.claims())
        await ground.until(lambda: ground.waits("train", "WaitingForNaturalEnd"))
        assert (len(evictions(between)), len(writes_to(between, node))) == (tried, marks)
        assert (await ground.admin.get(f"/api/v1/nodes/{node}"))["metadata"]["annotations"] == before
        assert ground.runs("kept")


# Previews, and clocks that run out


async def test_d20_of_a_preview_the_controller_writes_the_claim_and_nothing_else(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    (node,) = await lent(ground, 1)
    await residents(ground, node, "victim-0", "victim-1")
    async with controller_behind(plane, product) as between:
        await ground.gang("train", 1, annotations={"wholenode.io/policy": "Preview"})
        await ground.until(lambda: state(ground) == ("Planned", "Preview"))
        plan = ground.claims()["train"]["status"]["plan"]
        assert (plan["nodes"], plan["victimCount"]) == ([node], 2)
        of_claim = CLAIMS.format(ground.namespace)
        others = [
            (call.method, call.path)
            for call in between.calls
            if call.kind is not Kind.LEASE
            and not call.path.startswith((of_claim, "/apis/events.k8s.io/"))
            and not re.fullmatch(r"/apis/wholenode\.io/v1alpha1/.*(gpupools|drainagreements)/[^/]+/status", call.path)
        ]
        assert others == []
        assert evictions(between) == []
    await ground.delete("train-0")


async def test_d30_d31_after_the_deadline_nobody_is_stopped_though_an_answer_comes_late_and_it_is_told_as_a_failure(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    (node,) = await lent(ground, 1)
    await residents(ground, node, "kept", annotations=DEAR)
    await residents(ground, node, "slow", term_delay="1s", grace_seconds=10)
    async with controller_behind(plane, product) as between:
        protected = between.fault = Protected("kept", late=True)
        await ground.gang("train", 1, annotations=VACATE)
        await ground.until(lambda: going(ground))
        path = f"{CLAIMS.format(ground.namespace)}/{ground.claims()['train']['metadata']['name']}"
        await ground.admin.patch(path, {"spec": {"deadline": "10ms"}})
        await ground.until(lambda: state(ground) == ("Failed", "DeadlineExceeded"))
        await ground.until(lambda: not ground.marked())
        sent = len(evictions(between))
        protected.names.clear()
        protected.told.set()

        def outcomes() -> dict[str, str]:
            mine = [one for one in ground.history.live["records"].values() if in_namespace(one, ground)]
            return {one["spec"]["pod"]: one.get("status", {}).get("outcome", "") for one in mine}

        await ground.until(lambda: outcomes() == {"kept": "Spared", "slow": "Stopped"})
        assert len(evictions(between)) == sent
        assert ground.runs("kept")
        claim = ground.claims()["train"]
        assert {one["type"]: one["status"] for one in claim["status"]["conditions"]} == {
            "NodesHeld": "False", "Bound": "False", "Failed": "True",
        }  # fmt: skip
        text = await metrics(product)
        assert re.search(r'^wholenode_claims\{phase="Failed"\} [1-9]', text, re.MULTILINE)
        assert 'wholenode_claim_decisions_total{phase="Failed",reason="DeadlineExceeded"}' in text
        assert 'wholenode_claim_decisions_total{phase="Bound"' not in text, "this controller has bound none"
        assert [await waited(plane, claim, condition) for condition in ("Failed", "Bound")] == [0, 1]


def in_namespace(item: Object, ground: Ground) -> bool:
    """Whether the object is of the test's namespace."""
    return bool(item["metadata"]["namespace"] == ground.namespace)


async def metrics(product: Product) -> str:
    """What the controller says of itself."""
    url = f"http://127.0.0.1:{product.ports[CONTROLLER]}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.text()


async def waited(plane: ControlPlane, claim: Object, condition: str) -> int:
    """Exit code of a script's way to wait for a claim: `kubectl wait`."""
    meta = claim["metadata"]
    what = ["wait", f"wnc/{meta['name']}", "-n", meta["namespace"], f"--for=condition={condition}", "--timeout=1s"]
    command = [str(tools.kubectl()), "--kubeconfig", str(plane.kubeconfig), *what]
    return (await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)).returncode


async def test_a_controller_that_is_told_to_stop_leaves_the_lease_and_its_successor_goes_on_with_the_held_node(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    """What must not outlive it is its lease, of 30 s here; the node stays held, or others would get in meanwhile."""
    (node,) = await lent(ground, 1)
    await residents(ground, node, "slow", term_delay="2s", grace_seconds=10)
    await ground.gang("train", 1, annotations=VACATE)
    await ground.until(lambda: going(ground))
    held = taints(node_of_name(ground, node))

    await asyncio.to_thread(plane.stop_component, CONTROLLER)

    assert (await ground.admin.get(LEASE))["spec"].get("holderIdentity", "") == ""
    await ground.until(lambda: "slow" not in ground.pods())
    assert taints(node_of_name(ground, node)) == held == [uid(ground.claims()["train"])]
    await start_again(plane, product)
    await ground.until(lambda: ground.bound("train") == {"train-0": node})
    await ground.until(lambda: state(ground)[0] == "Bound" and not taints(node_of_name(ground, node)))
    await ground.never_broke_a_rule()


async def test_a_short_job_has_a_draining_nodes_free_card_and_the_gang_is_not_later_for_it(
    ground: Ground, plane: ControlPlane, product: Product
) -> None:
    """It asks for that, and says that it is done long before the last victim has to be; another small pod waits."""
    (node,) = await lent(ground, 1)
    await residents(ground, node, "slow", term_delay="90s", grace_seconds=90)
    async with controller_behind(plane, product) as between:
        await ground.gang("train", 1, annotations=VACATE)
        await ground.until(lambda: state(ground) == ("Draining", "WaitingForVictimsToEnd"))
        asks = [{"key": "wholenode.io/claim", "operator": "Exists"}]
        run = {"wholenode.io/expected-run": "2s"}
        await ground.pod("short", cards=1, grace_seconds=1, tolerations=asks, annotations=run, duration_seconds=2.0)
        await ground.pod("long", cards=1, grace_seconds=1, tolerations=asks)

        slow = uid(ground.pods()["slow"])
        await ground.until(lambda: ground.bound("short") == {"short": node})
        await ground.until(lambda: ground.pods()["short"]["status"]["phase"] == "Succeeded")
        assert terminating(ground.pods()["slow"]), "the drain was still under way"
        assert ground.bound("train") == {}
        await ground.delete_at_once("slow")
        await ground.until(lambda: ground.bound("train") == {"train-0": node})

        assert {one.evicted_uid for one in evictions(between)} == {slow}
        assert ground.bound("long") == {}
    await ground.delete("long")
