"""The extender as a process in trouble: told to stop under load, an API server that is frozen, long silence."""

import asyncio
import contextlib
import http.client
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.client import connect
from extender.metrics import Metrics
from extender.state import State
from extender.verbs import Verbs
from fleet.board import Refused
from kwok.admin import Admin
from kwok.controlplane import APISERVER, ControlPlane
from kwok.ports import pick
from kwok.testing import Fleet
from tests.cluster.resources import install_resources
from tests.extender.server import until
from tests.extender.test_app import by_name, gpu_pod
from tests.extender.test_process import start

IDLE_SECONDS = 80
"""Longer than other servers keep an idle connection (5 s); kube-scheduler keeps it for 90 s."""
CALLERS = 6


class Caller:
    """One keep-alive connection, as kube-scheduler has one."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._connection.connect()
        self._connection.auto_open = 0  # a connection that was closed is an error, not opened again

    def ask(self, question: Any) -> tuple[Any, bool]:
        """The answer to a filter question, and whether it was the connection's last."""
        self._connection.request("POST", "/v1/filter", json.dumps(question))
        answer = self._connection.getresponse()
        assert answer.status == 200
        return json.loads(answer.read()), answer.getheader("connection") == "close"

    def close(self) -> None:
        self._connection.close()


def readiness(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status
    finally:
        connection.close()


@contextlib.contextmanager
def running(kubeconfig: Path | str, **settings: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process and its port; it has to end with code 0 on SIGTERM, and to have had nothing to complain of."""
    port = pick(set())
    process = start({"WHOLENODE_PORT": str(port), "WHOLENODE_KUBECONFIG": str(kubeconfig), **settings}, port)
    try:
        yield process, port
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert "Traceback" not in errors
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def frozen(control_plane: ControlPlane) -> Iterator[None]:
    """The API server stands still: its connections stay open and nothing comes."""
    pid = control_plane.pids()[APISERVER]
    os.kill(pid, signal.SIGSTOP)
    try:
        stat = Path(f"/proc/{pid}/stat")
        while stat.read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "T":
            time.sleep(0.001)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
async def fleet_of_two(control_plane: ControlPlane, admin: Admin, fleet: Fleet) -> list[str]:
    await install_resources(admin)
    return await fleet.add(2)


@pytest.fixture(scope="module")
def silent_since(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Caller, float]]:
    """A connection that has asked once and is idle while the other tests of this module run."""
    config = tmp_path_factory.mktemp("silent") / "config"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\n"
    )
    with running(config) as (_, port):
        caller = Caller(port)
        caller.ask(by_name(["n1"]))
        yield caller, time.monotonic()
        caller.close()


@pytest.fixture(autouse=True)
def silence_begins_first(silent_since: tuple[Caller, float]) -> None:
    """Make the idle connection before the first test."""


async def until_readiness(port: int, status: int) -> None:
    async with asyncio.timeout(60):
        while True:
            if await asyncio.to_thread(readiness, port) == status:
                return
            await asyncio.sleep(0.02)


async def test_e11_while_the_api_server_stands_still_it_answers_from_memory(
    control_plane: ControlPlane, fleet_of_two: list[str]
) -> None:
    with running(control_plane.kubeconfig) as (_, port):
        await until_readiness(port, 200)
        caller = Caller(port)
        try:
            with frozen(control_plane):
                for question in (by_name(fleet_of_two), by_name(fleet_of_two, gpu_pod(0))):
                    answer, _ = await asyncio.to_thread(caller.ask, question)
                    assert sorted(answer["NodeNames"]) == sorted(fleet_of_two)
                    assert answer["Error"] == ""
        finally:
            caller.close()


async def test_told_to_stop_under_load_it_is_not_ready_answers_all_that_was_asked_and_ends(
    control_plane: ControlPlane, fleet_of_two: list[str]
) -> None:
    question = by_name(fleet_of_two)
    told = threading.Event()

    def keep_calling(port: int) -> tuple[int, int]:
        """As a Service's client, until told that an answer was the last; how often, and what readiness was then."""
        caller = Caller(port)
        calls = 0
        try:
            while True:
                answer, last = caller.ask(question)
                assert sorted(answer["NodeNames"]) == sorted(fleet_of_two)
                calls += told.is_set()
                if last:
                    return calls, readiness(port)
        finally:
            caller.close()

    def come_anew(port: int) -> int:
        """A new connection for each question, for as long as it is ready."""
        calls = 0
        while readiness(port) == 200:
            caller = Caller(port)
            try:
                caller.ask(question)
            finally:
                caller.close()
            calls += 1
        return calls

    with running(control_plane.kubeconfig, WHOLENODE_LEAVE_SECONDS="5") as (process, port):
        await until_readiness(port, 200)
        with ThreadPoolExecutor(CALLERS + 2) as pool:
            callers = [pool.submit(keep_calling, port) for _ in range(CALLERS)]
            anew = [pool.submit(come_anew, port) for _ in range(2)]
            told.set()
            process.send_signal(signal.SIGTERM)
            for one in callers:
                calls, status = one.result(timeout=60)
                assert calls >= 1
                assert status == 503
            assert all(one.result(timeout=60) >= 0 for one in anew)
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
            assert "Traceback" not in errors


async def test_told_to_stop_twice_it_ends_at_once(control_plane: ControlPlane, fleet_of_two: list[str]) -> None:
    with running(control_plane.kubeconfig, WHOLENODE_LEAVE_SECONDS="60") as (process, port):
        await until_readiness(port, 200)
        idle = Caller(port)
        process.send_signal(signal.SIGTERM)
        await until_readiness(port, 503)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        idle.close()
        assert process.returncode == 0, errors
        assert "Traceback" not in errors


@pytest.fixture
async def followed(control_plane: ControlPlane, fleet_of_two: list[str]) -> AsyncIterator[State]:
    """A state that follows the real API server."""
    async with connect(str(control_plane.kubeconfig)) as api:
        state = State(api)
        running_task = asyncio.create_task(state.run())
        await until(lambda: state.not_ready() is None)
        yield state
        running_task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running_task


async def test_a_frozen_api_server_makes_the_memory_too_old_to_be_trusted(
    followed: State,
    control_plane: ControlPlane,
    fleet: Fleet,
    fleet_of_two: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The state's own clock is put forward; everything else is real."""
    verbs = Verbs(followed, Metrics(followed))

    def ask(cards: int) -> Any:
        return json.loads(verbs.filter(json.dumps(by_name(fleet_of_two, gpu_pod(cards))).encode())[1])

    def later(seconds: float) -> None:
        monkeypatch.setattr("extender.state.time", SimpleNamespace(monotonic=lambda: time.monotonic() + seconds))

    assert ask(1)["NodeNames"]
    with frozen(control_plane):
        since = time.monotonic()
        later(141)
        trouble = followed.not_ready()
        assert trouble is not None
        assert "has been silent for 140 s" in trouble
        assert ask(1)["FailedAndUnresolvableNodes"] == dict.fromkeys(fleet_of_two, str(Refused.NOT_READY))
        assert ask(1)["Error"] == ""
        assert ask(0)["NodeNames"] == fleet_of_two
        assert followed.nodes.last_event_at < since
    await fleet.add(1, suffix="x")
    await until(lambda: followed.nodes.last_event_at > since)
    later(0)
    assert ask(1)["NodeNames"]


def test_e12_a_connection_that_was_idle_for_80_s_is_still_there(silent_since: tuple[Caller, float]) -> None:
    caller, since = silent_since
    time.sleep(max(0.0, since + IDLE_SECONDS - time.monotonic()))
    answer, last = caller.ask(by_name(["n1"], gpu_pod(0)))
    assert answer["NodeNames"] == ["n1"]
    assert not last
