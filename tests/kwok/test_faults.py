"""The proxy at which requests are counted and spoiled, between a client and the real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import yaml

from kwok.admin import Admin, APIError
from kwok.controlplane import ControlPlane
from kwok.faultproxy import Proxy, proxy
from kwok.faults import Before, Fault, Kill, Kind, Refuse, Trouble, Troubles, kind_of, refusal
from kwok.kubeconfig import leading_to
from kwok.workloads import make_pod

SECONDS = 30.0


@pytest.fixture
async def between(control_plane: ControlPlane) -> AsyncIterator[Proxy]:
    """A proxy with every right."""
    async with proxy(control_plane.kubeconfig) as made:
        yield made


@pytest.fixture
async def client(between: Proxy, control_plane: ControlPlane) -> AsyncIterator[Admin]:
    """A client that reaches the API server through it only, without credentials of its own."""
    async with Admin(control_plane.kubeconfig) as made, aiohttp.ClientSession(between.url) as session:
        await made.session.close()
        made._session = session
        yield made


def config_map(name: str, namespace: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}


def path_in(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps" + (f"/{name}" if name else "")


@pytest.mark.parametrize(
    ("method", "path", "query", "kind"),
    [
        ("GET", "/api/v1/pods", {}, Kind.READ),
        ("GET", "/api/v1/pods", {"watch": "1"}, Kind.WATCH),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/b", {}, Kind.LEASE),
        ("POST", "/apis/events.k8s.io/v1/namespaces/a/events", {}, Kind.EVENT),
        ("PUT", "/apis/wholenode.io/v1alpha1/gpupools/a/status", {}, Kind.UPKEEP),
        ("PUT", "/apis/wholenode.io/v1alpha1/namespaces/a/wholenodeclaims/b/status", {}, Kind.WRITE),
        ("POST", "/apis/wholenode.io/v1alpha1/namespaces/a/drainrecords", {}, Kind.WRITE),
        ("POST", "/api/v1/namespaces/a/pods/b/eviction", {}, Kind.WRITE),
        ("PATCH", "/api/v1/nodes/a", {}, Kind.WRITE),
        ("DELETE", "/api/v1/namespaces/a/pods/b", {}, Kind.WRITE),
    ],
)
def test_what_a_request_is_follows_from_method_and_path(
    method: str, path: str, query: dict[str, str], kind: Kind
) -> None:
    assert kind_of(method, path, query) is kind


def test_a_kubeconfig_that_leads_elsewhere_keeps_the_user_and_is_the_owners_only(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    path = leading_to("http://127.0.0.1:1", control_plane.kubeconfig, tmp_path / "through.kubeconfig")
    before, after = (yaml.safe_load(one.read_text(encoding="utf-8")) for one in (control_plane.kubeconfig, path))
    assert after["clusters"][0]["cluster"] == {"server": "http://127.0.0.1:1"}
    assert {**after, "clusters": None} == {**before, "clusters": None}
    assert path.stat().st_mode & 0o077 == 0


async def test_writes_are_counted_in_order_and_carry_what_became_of_them(
    client: Admin, between: Proxy, namespace: str
) -> None:
    await client.create(config_map("one", namespace))
    await client.list(path_in(namespace))
    with pytest.raises(APIError, match="AlreadyExists"):
        await client.create(config_map("one", namespace))
    assert [(call.number, call.method, call.status) for call in between.writes()] == [
        (1, "POST", 201),
        (2, "POST", 409),
    ]
    between.begin()
    await client.delete(path_in(namespace, "one"))
    assert [(call.number, call.stored) for call in between.writes()] == [(1, True)]


async def test_a_watch_comes_through_as_it_happens(client: Admin, admin: Admin, namespace: str) -> None:
    async with asyncio.timeout(SECONDS):
        watching = client.watch(path_in(namespace), fieldSelector="metadata.name=one")
        first = asyncio.ensure_future(anext(watching))
        await admin.create(config_map("one", namespace))
        assert (await first)[0] == "ADDED"
        await admin.delete(path_in(namespace, "one"))
        assert (await anext(watching))[0] == "DELETED"
        await watching.aclose()


async def test_a_kill_comes_right_before_the_write_is_sent_or_right_after_it_is_stored(
    client: Admin, between: Proxy, admin: Admin, namespace: str
) -> None:
    for word, stored in (("before", False), ("after", True)):
        struck: list[int] = []
        between.begin(Kill(2, lambda struck=struck: struck.append(len(between.writes())), stored=stored))
        await client.create(config_map(f"{word}-1", namespace))
        with pytest.raises((aiohttp.ClientError, APIError)):
            await client.create(config_map(f"{word}-2", namespace))
        await client.create(config_map(f"{word}-3", namespace))
        assert struck == [2]
        names = {one["metadata"]["name"] for one in await admin.list(path_in(namespace))}
        assert (f"{word}-2" in names) is stored


async def test_c12_what_was_sent_is_stored_though_the_sender_is_gone(
    client: Admin, between: Proxy, admin: Admin, namespace: str
) -> None:
    sender = asyncio.ensure_future(client.create(config_map("orphan", namespace)))

    async def gone() -> None:
        sender.cancel()

    between.fault = Before(lambda call: call.kind is Kind.WRITE, gone)
    with pytest.raises(asyncio.CancelledError):
        await sender
    await between.carried_out()
    found = await admin.wait_for(path_in(namespace, "orphan"), lambda one: one is not None, SECONDS)
    assert found is not None


async def test_refusals_look_like_the_api_servers(client: Admin, between: Proxy, namespace: str) -> None:
    cause = ("DisruptionBudget", "The disruption budget web needs 1 healthy pods and has 1 currently")
    answers = [refusal(429, "TooManyRequests", "no", cause=cause)]
    answers += [refusal(429, "TooManyRequests", "later", retry_after=3)]
    between.fault = fault = Refuse(lambda call: call.kind is Kind.WRITE, answers.pop, times=2)
    async with client.session.post(path_in(namespace), json=config_map("one", namespace)) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (429, "3")
    with pytest.raises(APIError) as caught:
        await client.create(config_map("one", namespace))
    assert caught.value.body["details"]["causes"] == [{"reason": cause[0], "message": cause[1]}]
    await client.create(config_map("one", namespace))
    assert [call.number for call in fault.refused] == [1, 2]


@pytest.mark.parametrize("trouble", list(Trouble))
async def test_each_trouble_meets_the_write_of_its_number_only(
    client: Admin, between: Proxy, admin: Admin, namespace: str, trouble: Trouble
) -> None:
    happened: list[str] = []
    troubles = Troubles(
        {2: trouble}, lambda: happened.append("gap"), lambda: happened.append("restart"), pause_seconds=0.0
    )
    between.begin(troubles)
    failed: list[int] = []
    for number in (1, 2, 3):
        try:
            await client.create(config_map(f"map-{number}", namespace))
        except (APIError, aiohttp.ClientError) as error:
            failed.append(getattr(error, "status", 0))
    assert [(call.number, met) for call, met in troubles.met] == [(2, trouble)]
    refused = {"409": [409], "429": [429], "429 without Retry-After": [429], "500": [500], "answer lost": [0]}
    assert failed == refused.get(trouble, [])
    stored = {one["metadata"]["name"] for one in await admin.list(path_in(namespace))} & {"map-1", "map-2", "map-3"}
    assert len(stored) == (2 if failed and failed != [0] else 3)
    assert happened == {Trouble.WATCH_GAP: ["gap"], Trouble.RESTART: ["restart"]}.get(trouble, [])


async def test_c08_a_watch_is_ended_with_410_or_cut(client: Admin, between: Proxy, namespace: str) -> None:
    async with asyncio.timeout(SECONDS):
        for end, expected in ((between.expire_watches, APIError), (between.cut_watches, aiohttp.ClientError)):
            await client.create(config_map(end.__name__.replace("_", "-"), namespace))
            watching = client.watch(path_in(namespace))
            await anext(watching)
            end()
            with pytest.raises(expected) as caught:
                async for _ in watching:
                    pass
            assert getattr(caught.value, "status", 410) == 410


async def test_c07_what_is_held_back_comes_when_it_is_let_go(
    client: Admin, between: Proxy, admin: Admin, namespace: str
) -> None:
    async with asyncio.timeout(SECONDS):
        watching = client.watch(path_in(namespace), fieldSelector="metadata.name=one")
        first = asyncio.ensure_future(anext(watching))
        await admin.create(config_map("one", namespace))
        await first
        between.hold(watches_only=True)
        second = asyncio.ensure_future(anext(watching))
        await admin.delete(path_in(namespace, "one"))
        assert "one" not in {one["metadata"]["name"] for one in await client.list(path_in(namespace))}
        assert not second.done()

        between.hold()
        listing = asyncio.ensure_future(client.list(path_in(namespace)))
        await admin.list(path_in(namespace))
        assert not listing.done()

        between.let_go()
        assert (await second)[0] == "DELETED"
        await listing
        await watching.aclose()


async def test_while_it_is_unreachable_connections_are_cut(client: Admin, between: Proxy, namespace: str) -> None:
    between.unreachable = True
    with pytest.raises(aiohttp.ClientError):
        await client.list(path_in(namespace))
    between.unreachable = False
    await client.list(path_in(namespace))


async def test_an_eviction_tells_whose_it_is(client: Admin, between: Proxy, namespace: str) -> None:
    pod = await client.create(make_pod("victim", namespace, cards=0))
    body = {
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "victim", "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": pod["metadata"]["uid"]}},
    }  # fmt: skip
    await client.request("POST", f"/api/v1/namespaces/{namespace}/pods/victim/eviction", body)
    (call,) = [one for one in between.calls if one.evicts]
    assert call.stored
    assert call.evicted_uid == pod["metadata"]["uid"]
    assert await Fault().after(call)
