"""The reflector's promise: whatever happens to lists and watches, it ends equal to the truth, and says every change."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.errors import Forbidden, NotFound
from cluster.reflector import Reflector
from fleet.objects import Pod
from tests.cluster.scripted_api import ScriptedApi
from tests.cluster.virtual_time import run

NAMES = ("a", "b", "c", "d", "e")


class Mirror:
    """What somebody knows who only listens."""

    def __init__(self, reflector: Reflector[Pod]) -> None:
        self.objects: dict[str, str] = {}
        self.changes: list[tuple[str | None, str | None]] = []
        reflector.listeners.append(self.hear)

    def hear(self, old: Pod | None, new: Pod | None) -> None:
        assert old is not None or new is not None
        self.changes.append((old.metadata.uid if old else None, new.metadata.uid if new else None))
        if old is None:
            assert new is not None
            assert new.metadata.uid not in self.objects
        else:
            assert self.objects[old.metadata.uid] == old.metadata.resource_version
        if new is None:
            assert old is not None
            del self.objects[old.metadata.uid]
        else:
            assert old is None or old.metadata.uid == new.metadata.uid
            assert old is None or int(old.metadata.resource_version) < int(new.metadata.resource_version)
            self.objects[new.metadata.uid] = new.metadata.resource_version


def known(reflector: Reflector[Pod]) -> dict[str, str]:
    return {uid: pod.metadata.resource_version for uid, pod in reflector.store.items()}


def true(api: ScriptedApi) -> dict[str, str]:
    return {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in api.truth.values()}


def pod(item: dict[str, Any]) -> Pod:
    return msgspec.convert(item, Pod)


@contextlib.asynccontextmanager
async def following(api: ScriptedApi, **options: Any) -> AsyncIterator[Reflector[Pod]]:
    reflector: Reflector[Pod] = Reflector(api, "/api/v1/pods", Pod, **options)  # type: ignore[arg-type]
    task = asyncio.create_task(reflector.run())
    try:
        await reflector.synced.wait()
        yield reflector
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def settle() -> None:
    """Let everything that is due, and every pause before a retry, pass in virtual time."""
    await asyncio.sleep(120)


action = st.one_of(
    st.tuples(st.sampled_from(["create", "update", "delete", "recreate", "own", "late"]), st.sampled_from(NAMES)),
    st.tuples(
        st.sampled_from(["cut", "end", "gone", "gone-in-stream", "say-gone", "repeat", "bookmark", "step", "pause"]),
        st.just(""),
    ),
    st.tuples(st.sampled_from(["fail-lists", "compact-pages", "apply-late"]), st.just("")),
)


class Play:
    """Plays one script of actions against a server and a reflector."""

    def __init__(self, api: ScriptedApi, reflector: Reflector[Pod]) -> None:
        self.api = api
        self.reflector = reflector
        self.late: list[Pod] = []

    def _write(self, name: str) -> dict[str, Any]:
        return self.api.update(name) if name in self.api.truth else self.api.create(name)

    async def do(self, what: str, name: str) -> None:
        api = self.api
        present = name in api.truth
        simple: dict[str, Callable[[], object]] = {
            "cut": api.cut,
            "end": api.end,
            "gone": lambda: api.compact(within_stream=False),
            "gone-in-stream": lambda: api.compact(within_stream=True),
            "say-gone": api.say_gone,
            "repeat": api.repeat_last,
            "bookmark": api.bookmark,
            "own": lambda: self.reflector.apply(pod(self._write(name))),
            "late": lambda: self.late.append(pod(self._write(name))),
            "create": lambda: None if present else api.create(name),
            "update": lambda: api.update(name) if present else None,
            "delete": lambda: api.delete(name) if present else None,
            "recreate": lambda: api.recreate(name) if present else None,
        }
        timed: dict[str, Callable[[], Awaitable[None]]] = {
            "step": lambda: asyncio.sleep(0),
            "pause": lambda: asyncio.sleep(1),
        }
        if what in simple:
            simple[what]()
        elif what in timed:
            await timed[what]()
        elif what == "fail-lists":
            api.failing_lists = 2
        elif what == "compact-pages":
            api.compacts_between_pages = True
        elif what == "apply-late":
            for item in self.late:
                self.reflector.apply(item)
            self.late.clear()


@settings(max_examples=300)
@given(before=st.integers(0, 5), script=st.lists(action, max_size=40))
def test_c08_any_order_of_events_gaps_and_cuts_ends_equal_to_the_truth(
    before: int, script: list[tuple[str, str]]
) -> None:
    async def play() -> None:
        api = ScriptedApi()
        for name in NAMES[:before]:
            api.create(name)
        reflector: Reflector[Pod] = Reflector(api, "/api/v1/pods", Pod)  # type: ignore[arg-type]
        mirror = Mirror(reflector)
        task = asyncio.create_task(reflector.run())
        stage = Play(api, reflector)
        for what, name in script:
            await stage.do(what, name)
        await settle()
        await stage.do("apply-late", "")
        assert known(reflector) == true(api)
        assert mirror.objects == known(reflector)
        for name in NAMES:
            found = reflector.find("ns", name)
            assert (found.metadata.uid if found else None) == api.truth.get(name, {}).get("metadata", {}).get("uid")
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    run(play())


def test_c08_after_410_vanished_objects_are_told_as_deletions() -> None:
    async def play() -> None:
        api = ScriptedApi()
        for number in range(10):
            api.create(f"p{number}")
        async with following(api) as reflector:
            mirror = Mirror(reflector)
            mirror.objects = known(reflector)
            api.cut()
            for number in range(4):
                api.delete(f"p{number}")
            api.compact(within_stream=True)
            await settle()
            assert known(reflector) == true(api)
            assert sorted(old or "" for old, new in mirror.changes if new is None) == [
                "uid-1",
                "uid-2",
                "uid-3",
                "uid-4",
            ]

    run(play())


def test_same_name_under_a_new_uid_is_a_deletion_and_an_addition() -> None:
    async def play() -> None:
        api = ScriptedApi()
        api.create("web-0")
        async with following(api) as reflector:
            mirror = Mirror(reflector)
            mirror.objects = known(reflector)
            api.recreate("web-0")
            await settle()
            assert mirror.changes == [("uid-1", None), (None, "uid-2")]

    run(play())


def test_c14_a_late_answer_to_our_own_write_does_not_bring_a_deleted_object_back() -> None:
    async def play() -> None:
        api = ScriptedApi()
        async with following(api) as reflector:
            answer = pod(api.create("a"))
            api.delete("a")
            await settle()
            reflector.apply(answer)
            assert reflector.store == {}

    run(play())


def test_our_own_write_shows_before_the_watch_brings_it_and_is_told_once() -> None:
    async def play() -> None:
        api = ScriptedApi()
        async with following(api) as reflector:
            mirror = Mirror(reflector)
            reflector.apply(pod(api.create("a")))
            assert known(reflector) == true(api)
            await settle()
            assert mirror.changes == [(None, "uid-1")]

    run(play())


def test_c14_a_watch_event_older_than_our_own_write_does_not_turn_it_back() -> None:
    async def play() -> None:
        api = ScriptedApi()
        async with following(api) as reflector:
            mirror = Mirror(reflector)
            await settle()
            reflector.apply(pod(api.create("a")))
            reflector.apply(pod(api.update("a")))
            await settle()
            assert known(reflector) == true(api)
            assert mirror.changes == [(None, "uid-1"), ("uid-1", "uid-1")]

    run(play())


def test_an_object_we_made_while_a_list_was_on_its_way_is_not_told_as_deleted() -> None:
    class Meanwhile(ScriptedApi):
        reflector: Reflector[Pod] | None = None

        async def get(self, path: str, query: Any = None) -> bytes:
            answer = await super().get(path, query)
            if self.reflector is not None:
                self.reflector.apply(pod(self.create("ours")))
                self.reflector = None
            return answer

    async def play() -> None:
        api = Meanwhile()
        async with following(api) as reflector:
            mirror = Mirror(reflector)
            await settle()
            api.reflector = reflector
            api.say_gone()
            await settle()
            assert mirror.changes == [(None, "uid-1")]

    run(play())


def test_an_object_the_filter_stops_accepting_leaves_the_store() -> None:
    async def play() -> None:
        api = ScriptedApi()
        api.create("a")
        wanted = {"a"}
        async with following(api, accept=lambda one: one.metadata.name in wanted) as reflector:
            mirror = Mirror(reflector)
            mirror.objects = known(reflector)
            wanted.clear()
            api.update("a")
            await settle()
            assert reflector.store == {}
            assert mirror.changes == [("uid-1", None)]

    run(play())


def test_an_object_that_does_not_fit_its_type_is_left_out_and_the_others_stay() -> None:
    async def play() -> None:
        api = ScriptedApi()
        api.create("a")
        api.create("b")
        api.truth["b"]["spec"] = {"priority": "high"}
        async with following(api) as reflector:
            assert set(reflector.store) == {"uid-1"}
            api.truth["a"]["spec"] = {"priority": "low"}
            api.update("a")
            await settle()
            assert reflector.store == {}

    run(play())


def test_a_server_restored_from_a_backup_is_believed() -> None:
    async def play() -> None:
        api = ScriptedApi()
        api.create("a")
        api.create("b")
        async with following(api) as reflector:
            for _ in range(5):
                api.update("a")
            await settle()
            del api.truth["b"]
            api.version = 3
            api.truth["a"]["metadata"]["resourceVersion"] = "2"
            api._history.clear()
            api.say_gone()
            await settle()
            assert known(reflector) == {"uid-1": "2"}

    run(play())


def test_no_right_to_list_ends_the_run() -> None:
    class Forbidding(ScriptedApi):
        async def get(self, path: str, query: Any = None) -> bytes:
            raise Forbidden("pods is forbidden")

    async def play() -> None:
        reflector: Reflector[Pod] = Reflector(Forbidding(), "/api/v1/pods", Pod)  # type: ignore[arg-type]
        with pytest.raises(Forbidden):
            await reflector.run()
        assert not reflector.synced.is_set()

    run(play())


def test_a_server_that_refuses_for_a_moment_after_its_restart_is_followed_on() -> None:
    class Restarted(ScriptedApi):
        refusing = False

        async def get(self, path: str, query: Any = None) -> bytes:
            if self.refusing:
                raise Forbidden("pods is forbidden")
            return await super().get(path, query)

    async def play() -> None:
        api = Restarted()
        api.create("a")
        async with following(api) as reflector:
            api.refusing = True
            api.say_gone()
            await settle()
            api.create("b")
            api.refusing = False
            await settle()
            assert set(known(reflector)) == {"uid-1", "uid-2"}

    run(play())


class Sometimes(ScriptedApi):
    """A server that need not serve the kind."""

    served = False
    refusals = 0

    def _refuse(self) -> None:
        if not self.served:
            self.refusals += 1
            raise NotFound("the server could not find the requested resource")

    async def get(self, path: str, query: Any = None) -> bytes:
        self._refuse()
        return await super().get(path, query)

    async def stream(self, path: str, query: Any) -> Any:
        self._refuse()
        async for line in super().stream(path, query):
            yield line


def test_a_kind_that_need_not_be_served_is_synced_and_empty_and_asked_for_now_and_then_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play() -> None:
        api = Sometimes()
        async with following(api, optional=True) as reflector:
            assert reflector.store == {}
            reflector.last_event_at = 0
            await asyncio.sleep(3600)
            assert 300 <= api.refusals <= 361
            assert reflector.last_event_at > 0

    run(play())
    assert caplog.records == []


def test_a_kind_that_comes_goes_and_comes_back_is_followed() -> None:
    async def play() -> None:
        api = Sometimes()
        async with following(api, optional=True) as reflector:
            mirror = Mirror(reflector)
            api.served = True
            api.create("a")
            await settle()
            assert known(reflector) == true(api)
            api.create("b")
            await asyncio.sleep(1)
            assert known(reflector) == true(api)
            api.served = False
            api.cut()
            await asyncio.sleep(1)
            assert reflector.store == mirror.objects == {}
            assert reflector.find("ns", "a") is None
            api.served = True
            api.recreate("a")
            await settle()
            assert known(reflector) == mirror.objects == true(api)

    run(play())


def test_a_kind_that_must_be_served_is_not_taken_for_empty(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        api = Sometimes()
        reflector: Reflector[Pod] = Reflector(api, "/api/v1/pods", Pod)  # type: ignore[arg-type]
        task = asyncio.create_task(reflector.run())
        await settle()
        assert not reflector.synced.is_set()
        assert "are the CRDs installed" in caplog.text
        api.served = True
        await settle()
        assert reflector.synced.is_set()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    run(play())


def test_a_watch_that_ends_at_once_is_not_asked_for_in_a_hot_loop() -> None:
    class Ending(ScriptedApi):
        watches = 0

        async def stream(self, path: str, query: Any) -> Any:
            Ending.watches += 1
            return
            yield b""

    async def play() -> None:
        async with following(Ending()):
            await asyncio.sleep(10)
        assert Ending.watches <= 100

    run(play())
