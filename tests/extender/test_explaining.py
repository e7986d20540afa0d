"""The explaining route: true answers from caches and fresh facts, clear failures, bounded time; and the gauge."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import msgspec
import pytest
from fastapi import FastAPI

from cluster import facts
from cluster.errors import Forbidden, NotFound, Unavailable
from extender import explaining
from extender.app import probes_app
from extender.explaining import Explainer, WaitingPods, add_explaining
from extender.schema import EXPLAINED
from fleet.objects import Condition, Job, Pod
from fleet.reasons import Reason
from fleet.resources import Accepts
from fleet.why.explanations import Explanation, Kind, Stage, Wait
from tests.extender.asgi import Rig, call
from tests.fleet.builders import claim, job, members, node, owned, pod, pool

SMALL = pool("small", accepts=Accepts.SMALL)
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team-v/workloads"


class FewObjects:
    """An API with the given bodies by path; errors are raised; anything else does not exist."""

    def __init__(self, bodies: Mapping[str, Any]) -> None:
        self.bodies = dict(bodies)
        self.asked: list[tuple[str, Any]] = []

    async def get(self, path: str, query: Any = None) -> bytes:
        self.asked.append((path, query))
        found = self.bodies.get(path, NotFound(f"GET {path}: not found"))
        if isinstance(found, Exception):
            raise found
        if isinstance(found, asyncio.Event):
            await found.wait()
        return found if isinstance(found, bytes) else msgspec.json.encode(found)


def path_of(one: Pod) -> str:
    return f"/api/v1/namespaces/{one.metadata.namespace}/pods/{one.metadata.name}"


def items(*found: Any) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "1"}, "items": list(found)}


def rig_of(*objects: Any, bodies: Mapping[str, Any] | None = None, ready: bool = True) -> tuple[Rig, FastAPI]:
    """An extender whose API server has the pods given, and `bodies` beside them or instead of them."""
    rig = Rig(*objects, ready=ready)
    pods = [one for one in objects if isinstance(one, Pod)]
    events = {f"/api/v1/namespaces/{one.metadata.namespace}/events": items() for one in pods}
    rig.state.api = FewObjects({**{path_of(one): one for one in pods}, **events, **(bodies or {})})  # type: ignore[assignment]
    app = FastAPI()
    add_explaining(app, Explainer(rig.state), EXPLAINED)
    return rig, app


async def ask(app: FastAPI, path: str) -> tuple[int, dict[str, Any]]:
    status, body = await call(app, "GET", f"/v1/explain/{path}")
    answer: dict[str, Any] = json.loads(body)
    return status, answer


async def explained(app: FastAPI, path: str) -> Explanation:
    status, body = await call(app, "GET", f"/v1/explain/{path}")
    assert status == 200, body
    return msgspec.json.decode(body, type=Explanation)


async def test_a_waiting_pod_is_explained_from_the_caches_with_the_schedulers_own_words() -> None:
    one, busy = pod("p", 2), [pod(f"b{index}", on="n1") for index in range(7)]
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    event = {
        "metadata": {"name": "p.1", "namespace": "team-v"},
        "reason": "FailedScheduling",
        "message": message,
        "type": "Warning",
        "series": {"count": 4, "lastObservedTime": "2027-01-04T12:03:00.000000Z"},
    }
    older = {**event, "message": "older", "series": None, "eventTime": "2027-01-04T12:01:00.000000Z"}
    bodies = {"/api/v1/namespaces/team-v/events": items(event, older)}
    rig, app = rig_of(SMALL, node("n1", "small"), *busy, one, bodies=bodies)

    found = await explained(app, "team-v/p")

    assert (found.kind, found.stage, found.reason) == (Kind.NO_PLACE, Stage.CAPACITY, Wait.NOT_ENOUGH)
    assert found.scheduler is not None
    assert found.scheduler.event is not None
    assert (found.scheduler.event.message, found.scheduler.event.count) == (message, 4)
    assert found.unread == ()
    queries = [query for path, query in rig.state.api.asked if path.endswith("/events")]  # type: ignore[attr-defined]
    assert queries[0]["fieldSelector"] == f"involvedObject.uid={one.metadata.uid}"


async def test_the_pod_is_read_afresh_and_so_are_its_containers() -> None:
    body = msgspec.to_builtins(pod("p", on="n1", phase="Pending"))
    body["status"]["containerStatuses"] = [
        {
            "name": "main",
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
            "lastState": {},
        }
    ]
    _, app = rig_of(SMALL, node("n1", "small"), pod("p"), bodies={path_of(pod("p")): body})
    found = await explained(app, "team-v/p")
    assert (found.kind, found.reason) == (Kind.START_FAILED, Wait.CONTAINER)


async def test_a_pod_that_the_caches_have_not_seen_is_explained_too() -> None:
    new = pod("new", 9)
    _, app = rig_of(SMALL, node("n1", "small"), bodies={path_of(new): new, "/api/v1/namespaces/team-v/events": items()})
    assert (await explained(app, "team-v/new")).reason == Wait.NEVER


async def test_the_size_of_a_gang_is_asked_of_its_job() -> None:
    index = {"batch.kubernetes.io/job-completion-index": "0"}
    one = pod("j-0", 8, ns="team-b", owner=owned("Job", "j"), notes=index)
    made: Job = job("j", parallelism=3, completions=3)
    bodies = {"/apis/batch/v1/namespaces/team-b/jobs/j": made}
    _, app = rig_of(pool(), node("n1"), one, bodies=bodies)
    found = await explained(app, "team-b/j-0")
    assert (found.stage, found.reason) == (Stage.GANG, Reason.GANG_INCOMPLETE)
    assert "1 of 3 pods" in found.text


@pytest.mark.parametrize("by", ["annotation", "owner", "job-uid"])
async def test_kueues_workload_is_found_and_quoted(by: str) -> None:
    notes = {"kueue.x-k8s.io/workload": "w"} if by == "annotation" else {}
    one = pod("p", gates=["kueue.x-k8s.io/admission"], notes=notes)
    meta: dict[str, Any] = {"name": "w", "namespace": "team-v"}
    if by == "owner":
        meta["ownerReferences"] = [{"kind": "Pod", "name": "p", "uid": one.metadata.uid}]
    elif by == "job-uid":
        meta["labels"] = {"kueue.x-k8s.io/job-uid": one.metadata.uid}
    condition = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "needs 8 more"}
    workload = {"metadata": meta, "status": {"conditions": [condition]}}
    bodies = {f"{WORKLOADS}/w": workload} if by == "annotation" else {WORKLOADS: items(workload)}
    _, app = rig_of(SMALL, node("n1", "small"), one, bodies=bodies)
    found = await explained(app, "team-v/p")
    assert (found.stage, found.reason) == (Stage.ADMISSION, Wait.QUOTA)
    assert "needs 8 more" in found.text


async def test_what_may_not_be_read_is_said_and_the_rest_is_answered() -> None:
    one = pod("p", gates=["kueue.x-k8s.io/admission"])
    bodies = {WORKLOADS: Forbidden("may not list workloads"), "/api/v1/namespaces/team-v/events": Unavailable("down")}
    _, app = rig_of(SMALL, node("n1", "small"), one, bodies=bodies)
    found = await explained(app, "team-v/p")
    assert found.reason == Reason.FOREIGN_GATE
    assert set(found.unread) == {"events: down", "the Kueue Workload: may not list workloads"}


async def test_facts_that_do_not_come_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "_ASIDE_SECONDS", 0.01)
    _, app = rig_of(SMALL, node("n1", "small"), pod("p"), bodies={"/api/v1/namespaces/team-v/events": asyncio.Event()})
    found = await explained(app, "team-v/p")
    assert found.unread == ("events: no answer in 0 s",)


async def test_a_pod_that_cannot_be_read_is_taken_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explaining, "_READ_SECONDS", 0.01)
    for trouble in (Unavailable("the API server is down"), asyncio.Event()):
        _, app = rig_of(SMALL, node("n1", "small"), pod("p"), bodies={path_of(pod("p")): trouble})
        found = await explained(app, "team-v/p")
        assert found.stage is Stage.SCHEDULER
        assert found.unread[0].startswith("the pod, taken from the cache: ")
        status, answer = await ask(app, "team-v/unknown")
        assert (status, answer["kind"]) == (404, "Status")


async def test_no_such_pod_not_ready_and_nonsense_are_told_apart() -> None:
    _, app = rig_of(node("n1"))
    status, answer = await ask(app, "team-v/nobody")
    assert (status, answer["message"]) == (404, "wholenode: there is no pod team-v/nobody")
    assert (answer["kind"], answer["apiVersion"], answer["code"]) == ("Status", "v1", 404)
    for path in ("../x", "team-v/..%2f", "A/b", "team-v/p%3fwatch=true", "team-v/" + "p" * 254):
        rig, app = rig_of(node("n1"))
        status, answer = await ask(app, path)
        assert status in {400, 404}
        assert rig.state.api.asked == []  # type: ignore[attr-defined]
    _, app = rig_of(node("n1"), pod("p"), ready=False)
    status, answer = await ask(app, "team-v/p")
    assert status == 503
    assert "has not seen the whole cluster yet" in answer["message"]


async def test_an_unread_pod_that_no_cache_knows_is_no_answer() -> None:
    _, app = rig_of(node("n1"), bodies={path_of(pod("p")): Unavailable("the API server is down")})
    status, answer = await ask(app, "team-v/p")
    assert status == 503
    assert "pod team-v/p cannot be read: the API server is down" in answer["message"]


async def test_too_many_questions_at_once_are_turned_away() -> None:
    one = pod("p")
    held = asyncio.Event()
    _, app = rig_of(SMALL, node("n1", "small"), one, bodies={path_of(one): held})
    pending = [asyncio.create_task(ask(app, "team-v/p")) for _ in range(explaining._MAX_WAITING)]
    await asyncio.sleep(0)
    status, answer = await ask(app, "team-v/p")
    assert (status, "too many" in answer["message"]) == (503, True)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


async def test_both_applications_serve_the_route() -> None:
    rig, _ = rig_of(SMALL, node("n1", "small"), pod("p", 9))
    for app in (rig.app, probes_app(rig.state, rig.metrics, rig.desk)):
        assert (await explained(app, "team-v/p")).reason == Wait.NEVER


async def test_the_answer_is_as_the_openapi_document_says() -> None:
    rig, app = rig_of(SMALL, node("n1", "small"), pod("p", 9), pod("busy", 6, on="n1"), pod("q", 4))
    document = json.loads((await call(rig.app, "GET", "/openapi.json"))[1])
    described = document["paths"]["/v1/explain/{namespace}/{pod}"]["get"]["responses"]
    for name, status in (("team-v/p", 200), ("team-v/q", 200), ("team-v/nobody", 404)):
        found, body = await call(app, "GET", f"/v1/explain/{name}")
        assert found == status
        schema = described[str(status)]["content"]["application/json"]["schema"]
        jsonschema.validate(json.loads(body), {**schema, "components": document["components"]})


# The gauge


async def counts(rig: Rig) -> dict[tuple[str, str], int]:
    return dict(await WaitingPods(rig.state).refresh())


async def test_waiting_pods_are_counted_by_kind_and_reason() -> None:
    refused = pod("p0", 4)
    status = msgspec.structs.replace(refused.status, conditions=(Condition("PodScheduled", "False", "Unschedulable"),))
    pods = [msgspec.structs.replace(refused, status=status), *[pod(f"p{index}", 4) for index in (1, 2)], pod("huge", 9)]
    busy = [pod("busy", 6, on="n1"), pod("cpu", 0), pod("gated", gates=["x/y"])]
    own = claim(reason=str(Reason.GANG_INCOMPLETE), message="1 of 2 pods of the gang exist")
    rig = Rig(SMALL, pool(), node("n1", "small"), node("n2"), *pods, *busy, *members(1, size=2), own)
    assert await counts(rig) == {
        ("NoPlace", Wait.NOT_LENT): 1,
        ("NotAttempted", Wait.NOT_LENT): 2,
        ("NotAttempted", Wait.NEVER): 1,
        ("NotAttempted", Reason.FOREIGN_GATE): 1,
        ("NotAttempted", Reason.GANG_INCOMPLETE): 1,
    }


async def test_the_gauge_follows_pods_as_they_come_and_go() -> None:
    rig = Rig(SMALL, node("n1", "small"))
    gauge = WaitingPods(rig.state)
    one = pod("p", 9)
    rig.put(one)
    assert dict(await gauge.refresh()) == {("NotAttempted", Wait.NEVER): 1}
    rig.put(pod("p", 9, on="n1"))
    assert dict(await gauge.refresh()) == {}
    assert gauge._waiting == {}, "pods that run cost a scrape nothing"
    rig.remove(one)
    failed = pod("p", 1, on="n1", phase="Failed")
    status = msgspec.structs.replace(failed.status, reason="OutOfnvidia.com/gpu")
    rig.put(msgspec.structs.replace(failed, status=status))
    assert dict(await gauge.refresh()) == {("StartFailed", Wait.KUBELET): 1}
    rig.remove(one)
    assert dict(await gauge.refresh()) == {}


async def test_the_gauge_is_scraped_with_the_others_and_says_nothing_before_the_caches_are_filled() -> None:
    rig = Rig(SMALL, node("n1", "small"), pod("p", 9))
    line = 'wholenode_waiting_pods_by_reason{kind="NotAttempted",reason="NeverFits"} 1.0'
    assert line in (await call(rig.app, "GET", "/metrics"))[1].decode()
    cold = Rig(SMALL, node("n1", "small"), pod("p", 9), ready=False)
    assert "wholenode_waiting_pods_by_reason{" not in (await call(cold.app, "GET", "/metrics"))[1].decode()
