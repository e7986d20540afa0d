"""Leader election: one leader at a time, a frozen one notices before it writes, a lost one is replaced."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cluster.client import Api, connect
from cluster.errors import AlreadyExists, Conflict, Forbidden, LeaseLost, NotFound, Unavailable
from cluster.lease import LeaseElector
from kwok.controlplane import ControlPlane
from tests.cluster.virtual_time import run


class LeaseServer:
    """The Lease object of one API server.

    `down` loses requests, `answers_lost` loses answers to writes only, `hangs_seconds` is how long it says nothing.
    """

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.down = False
        self.answers_lost = False
        self.hangs_seconds = 0.01
        self.writers: list[str] = []

    async def get(self, path: str, query: Any = None) -> bytes:
        await self._reach()
        if self.lease is None:
            raise NotFound(path)
        return json.dumps(self.lease).encode()

    async def create(self, path: str, body: bytes, *, urgent: bool = False) -> bytes:
        assert urgent
        await self._reach()
        if self.lease is not None:
            raise AlreadyExists(path)
        return self._store(body)

    async def replace(self, path: str, body: bytes, *, urgent: bool = False) -> bytes:
        assert urgent
        await self._reach()
        if self.lease is None:
            raise NotFound(path)
        if json.loads(body)["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflict(path)
        return self._store(body)

    async def _reach(self) -> None:
        await asyncio.sleep(self.hangs_seconds)
        if self.down:
            raise Unavailable("connection refused")

    def _store(self, body: bytes) -> bytes:
        self.version += 1
        self.lease = json.loads(body)
        assert self.lease is not None
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        self.writers.append(self.lease["spec"]["holderIdentity"])
        if self.answers_lost:
            raise Unavailable("the answer was lost")
        return json.dumps(self.lease).encode()


def elector(server: LeaseServer, identity: str, **options: Any) -> LeaseElector:
    clock = options.pop("clock", None) or (lambda: asyncio.get_running_loop().time())
    return LeaseElector(server, "ns", "lead", identity, clock=clock, **options)  # type: ignore[arg-type]


def now() -> float:
    return asyncio.get_running_loop().time()


def test_one_of_two_leads_and_the_other_follows_when_it_lets_go() -> None:
    async def play() -> None:
        server = LeaseServer()
        first, second = elector(server, "a"), elector(server, "b")
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        holding = asyncio.create_task(first.hold())
        await asyncio.sleep(60)
        assert first.is_valid()
        assert not waiting.done()
        holding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await holding
        await first.release()
        assert not first.is_valid()
        released = now()
        await waiting
        assert now() - released <= 4
        assert second.is_valid()

    run(play())


def test_c06_a_holder_lost_for_good_is_replaced_within_the_lease_and_five_seconds() -> None:
    async def play() -> None:
        server = LeaseServer()
        first, second = elector(server, "a"), elector(server, "b")
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        holding = asyncio.create_task(first.hold())
        await asyncio.sleep(30)
        holding.cancel()
        died = now()
        await waiting
        assert 10 < now() - died <= 20

    run(play())


def test_c05_a_frozen_holder_is_invalid_before_another_may_lead() -> None:
    """Its clock goes on while it does not run: is_valid is false from the renew deadline on, without any answer."""

    async def play() -> None:
        server = LeaseServer()
        first, second = elector(server, "a"), elector(server, "b")
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        while not waiting.done():
            await asyncio.sleep(0.1)
            assert not (first.is_valid() and second.is_valid())
        with pytest.raises(LeaseLost, match=r"taken over by b|renewed"):
            await first.hold()
        assert not first.is_valid()
        assert server.writers[-1] == "b"

    run(play())


def test_a_holder_that_cannot_reach_the_server_gives_up_at_the_renew_deadline() -> None:
    async def play() -> None:
        server = LeaseServer()
        first = elector(server, "a")
        await first.acquire()
        server.down = True
        started = now()
        with pytest.raises(LeaseLost, match="could not be renewed"):
            await first.hold()
        assert 9 < now() - started <= 11

    run(play())


def test_a_short_outage_does_not_end_the_lease() -> None:
    async def play() -> None:
        server = LeaseServer()
        first = elector(server, "a")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        server.down = True
        await asyncio.sleep(6)
        server.down = False
        await asyncio.sleep(60)
        assert first.is_valid()
        holding.cancel()

    run(play())


def test_renewals_whose_answers_are_lost_do_not_end_the_lease() -> None:
    async def play() -> None:
        server = LeaseServer()
        first = elector(server, "a")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        server.answers_lost = True
        await asyncio.sleep(3)
        server.answers_lost = False
        await asyncio.sleep(60)
        assert first.is_valid()
        holding.cancel()

    run(play())


def test_an_acquisition_whose_answer_was_lost_is_recognised_as_ours() -> None:
    async def play() -> None:
        server = LeaseServer()
        first = elector(server, "a")
        server.answers_lost = True
        waiting = asyncio.create_task(first.acquire())
        await asyncio.sleep(0.5)
        server.answers_lost = False
        await waiting
        assert now() < 5

    run(play())


def test_a_candidate_whose_request_hangs_asks_again_after_as_long_as_a_leader_would_be_believed() -> None:
    async def play() -> None:
        server = LeaseServer()
        server.hangs_seconds = 60
        waiting = asyncio.create_task(elector(server, "a").acquire())
        await asyncio.sleep(1)
        server.hangs_seconds = 0.01
        await waiting
        assert now() < 15

    run(play())


def test_the_same_name_in_an_earlier_process_is_somebody_else() -> None:
    async def play() -> None:
        server = LeaseServer()
        await elector(server, "a").acquire()
        again = elector(server, "a")
        waiting = asyncio.create_task(again.acquire())
        await asyncio.sleep(10)
        assert not waiting.done()
        await waiting
        assert now() >= 15

    run(play())


def test_a_lease_that_was_given_to_another_is_lost_at_the_next_renewal_and_left_alone() -> None:
    async def play() -> None:
        server = LeaseServer()
        first = elector(server, "a")
        await first.acquire()
        assert server.lease is not None
        server.lease["spec"]["holderIdentity"] = "b"
        server.lease["metadata"]["resourceVersion"] = "99"
        with pytest.raises(LeaseLost, match="taken over by b"):
            await first.hold()
        assert not first.is_valid()
        assert now() < 5
        assert server.writers == ["a"]

    run(play())


def test_a_lease_counts_from_when_it_was_asked_for_not_from_the_answer() -> None:
    class Slow(LeaseServer):
        async def _reach(self) -> None:
            await asyncio.sleep(3)

    async def play() -> None:
        first = elector(Slow(), "a")
        await first.acquire()
        assert now() == pytest.approx(6)
        holding = asyncio.create_task(first.hold())
        await asyncio.sleep(6.5)  # asked for again at 8, answered at 11
        holding.cancel()
        await asyncio.sleep(17.9 - now())
        assert first.is_valid()
        await asyncio.sleep(0.2)
        assert not first.is_valid()

    run(play())


def test_a_record_of_our_name_that_we_did_not_write_is_somebody_elses() -> None:
    async def play() -> None:
        server = LeaseServer()
        first, namesake = elector(server, "a"), elector(server, "a")
        server.answers_lost = True
        waiting = asyncio.create_task(first.acquire())
        await asyncio.sleep(0.5)
        server.answers_lost = False
        assert server.lease is not None
        server.lease["spec"]["renewTime"] = "2027-01-01T00:00:00.000000Z"
        await asyncio.sleep(10)
        assert not waiting.done()
        assert not namesake.is_valid()
        await waiting

    run(play())


def test_a_deleted_lease_is_lost() -> None:
    async def play() -> None:
        server = LeaseServer()
        first = elector(server, "a")
        await first.acquire()
        server.lease = None
        with pytest.raises(LeaseLost, match="deleted"):
            await first.hold()
        assert not first.is_valid()

    run(play())


def test_no_right_to_the_lease_is_said_at_once() -> None:
    class Forbidding(LeaseServer):
        async def get(self, path: str, query: Any = None) -> bytes:
            raise Forbidden("leases is forbidden")

    async def play() -> None:
        with pytest.raises(Forbidden):
            await elector(Forbidding(), "a").acquire()

    run(play())


@pytest.mark.parametrize(
    "times", [{"renew_deadline_seconds": 15}, {"renew_seconds": 10}, {"renew_seconds": 0}, {"lease_seconds": 3}]
)
def test_times_that_could_let_two_lead_are_refused(times: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="renew_seconds < renew_deadline_seconds < lease_seconds"):
        elector(LeaseServer(), "a", **times)


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[Api]:
    async with connect(str(control_plane.kubeconfig)) as client:
        yield client


@pytest.mark.parametrize("taken_over", [False, True])
def test_it_lets_go_although_a_renewal_was_under_way_when_it_was_told_to_stop(taken_over: bool) -> None:
    """The renewal was stored and its answer never came: the version it knows is an old one. What is another's stays."""

    async def play() -> None:
        server = LeaseServer()
        first = elector(server, "a", renew_seconds=2)
        await first.acquire()
        server.answers_lost = True
        holding = asyncio.create_task(first.hold())
        await asyncio.sleep(3)
        assert len(server.writers) == 2
        holding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await holding
        server.answers_lost = False
        if taken_over:
            server.lease["spec"]["holderIdentity"] = "b"
        await first.release()
        assert not first.is_valid()
        assert server.lease["spec"]["holderIdentity"] == ("b" if taken_over else "")

    run(play())


async def test_the_real_api_server_takes_the_records_and_hands_over(api: Api) -> None:
    name = f"lease-{uuid.uuid4().hex[:8]}"
    first = LeaseElector(api, "default", name, "a", lease_seconds=3, renew_seconds=0.2)
    second = LeaseElector(api, "default", name, "b", lease_seconds=3, renew_seconds=0.2)
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    waiting = asyncio.create_task(second.acquire())
    path = f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{name}"
    made = json.loads(await api.get(path))["metadata"]["resourceVersion"]
    watch = {"watch": "true", "fieldSelector": f"metadata.name={name}", "resourceVersion": made}
    async with contextlib.aclosing(api.stream(path.rsplit("/", 1)[0], watch)) as renewals:
        assert "MODIFIED" in (await anext(renewals)).decode()
    assert not waiting.done()
    holding.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await holding
    await first.release()
    await waiting
    record = json.loads(await api.get(path))["spec"]
    assert (record["holderIdentity"], record["leaseTransitions"]) == ("b", 1)
    await api.delete(path)
