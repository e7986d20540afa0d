"""The benchmark's own arithmetic, its file, its questions and its stand-ins; nothing here asserts a time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from extender.protocol import ExtenderFilterResult, read_args
from kwok.bench import throughput
from kwok.bench.__main__ import SECTIONS, chosen, main
from kwok.bench.bigfleet import CARDS, BigFleet, small_pod
from kwok.bench.calls import Caller, content_length, filter_bodies, question
from kwok.bench.figures import latency, merged, paired_ratios, percentile, read, spread, write
from kwok.errors import LabError
from kwok.nodes import GPU
from kwok.ports import pick

NAMES = [f"node-{number:03d}" for number in range(100)]


@pytest.mark.parametrize(
    ("part", "expected"), [(0.0, 1), (0.01, 1), (0.5, 50), (0.501, 51), (0.99, 99), (0.991, 100), (1.0, 100)]
)
def test_a_percentile_is_a_value_that_was_measured(part: float, expected: float) -> None:
    assert percentile(list(range(100, 0, -1)), part) == expected


@pytest.mark.parametrize(("values", "part"), [([], 0.5), ([1.0], 1.1), ([1.0], -0.1)])
def test_a_percentile_of_nothing_is_refused(values: list[float], part: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, part)


def test_latency_is_taken_over_all_calls_and_its_spread_over_rounds() -> None:
    found = latency([[0.001] * 98 + [0.1, 0.2], [0.003] * 100])
    assert (found["p50_ms"], found["p99_ms"], found["max_ms"], found["calls"]) == (3.0, 3.0, 200.0, 200)
    assert found["rounds_p50_ms"] == {"median": 2.0, "min": 1.0, "max": 3.0}
    assert found["rounds_p99_ms"]["max"] == 100.0


def test_ratios_are_of_neighbouring_rounds() -> None:
    assert paired_ratios([50.0, 10.0, 30.0], [100.0, 10.0, 40.0]) == {"median": 0.75, "min": 0.5, "max": 1.0}
    with pytest.raises(ValueError, match="zip"):
        paired_ratios([1.0], [1.0, 2.0])
    assert spread([3.14159, 1, 2], 1) == {"median": 2, "min": 1, "max": 3.1}


def test_a_section_replaces_its_own_figures_and_leaves_the_others() -> None:
    known = {
        "main_job": {"a": 1},
        "filter_500": {"p50_ms": 1},
        "speed": {"machine": {"cores": 1}, "fleet_500": {"x": 1}},
    }
    found = {"filter_500": {"p99_ms": 2}, "speed": {"machine": {"cores": 2}}}
    assert merged(known, found) == {
        "main_job": {"a": 1},
        "filter_500": {"p99_ms": 2},
        "speed": {"machine": {"cores": 2}, "fleet_500": {"x": 1}},
    }
    assert merged({}, {"main_job": {}}) == {"main_job": {}}


def test_figures_are_read_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "bench.json"
    assert read(path) == {}
    write(path, {"a": 1})
    write(path, {"b": 2})
    assert read(path) == {"b": 2}
    assert [one.name for one in path.parent.iterdir()] == ["bench.json"]


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_file_that_is_not_ours_is_named_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bench.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LabError, match=r"bench\.json .*--out"):
        read(path)
    assert path.read_text(encoding="utf-8") == text


def test_sections_are_chosen_by_how_they_begin() -> None:
    assert chosen([]) == list(SECTIONS)
    assert chosen(["filter"]) == ["filter_500", "filter_5000"]
    assert chosen(["through", "main"]) == ["main", "throughput"]


def test_an_unknown_section_is_one_line_and_starts_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--only", "speed", "--out", str(tmp_path / "x.json")]) == 1
    line = capsys.readouterr().err
    assert line == f"bench: --only speed: there is no such section; they are {', '.join(SECTIONS)}\n"
    assert not (tmp_path / "x.json").exists()


def test_the_fleet_is_the_same_for_the_same_seed_and_never_overfull() -> None:
    pods = list(BigFleet(50, 7).pod_objects())
    assert pods == list(BigFleet(50, 7).pod_objects())
    assert pods != list(BigFleet(50, 8).pod_objects())
    assert len(pods) == 50 * 8
    used: dict[str, int] = {}
    for pod in pods:
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        used[pod["spec"]["nodeName"]] = used.get(pod["spec"]["nodeName"], 0) + int(limits.get(GPU, 0))
    assert set(used) == set(BigFleet(50, 7).node_names())
    assert max(used.values()) == CARDS
    assert min(used.values()) == 0


def test_questions_differ_in_pod_and_order_but_name_the_same_nodes() -> None:
    pod = small_pod("small", "team-a")
    pod["metadata"]["managedFields"] = [{"manager": "somebody"}]
    bodies = filter_bodies(pod, NAMES, 10, seed=7)
    assert bodies == filter_bodies(pod, NAMES, 10, seed=7)
    asked = [read_args(body) for body in bodies]
    assert len({args.pod.metadata.uid for args in asked}) == 10
    assert len({tuple(args.names()) for args in asked}) == 10
    assert {tuple(sorted(args.names())) for args in asked} == {tuple(NAMES)}
    assert all(b"managedFields" not in body for body in bodies)


def test_a_length_is_read_whatever_its_spelling() -> None:
    assert content_length(b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 12") == 12
    assert content_length(b"HTTP/1.1 200 OK\r\ncontent-length:7\r\nServer: x") == 7
    assert content_length(b"HTTP/1.1 204 No Content") == 0


Start = Callable[[str], int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a module of the benchmark on a free port and returns the port, once somebody listens there."""
    running: list[subprocess.Popen[bytes]] = []
    taken: set[int] = set()

    def begin(module: str) -> int:
        port = pick(taken)
        process = subprocess.Popen([sys.executable, "-m", module, str(port)])
        running.append(process)
        while process.poll() is None:
            try:
                with Caller(port):
                    return port
            except ConnectionRefusedError:
                continue
        raise AssertionError(f"{module} ended with {process.returncode}")

    yield begin
    for process in running:
        process.kill()
        process.wait()


def test_the_echo_answers_as_many_bytes_as_asked_on_one_connection(start: Start) -> None:
    port = start("kwok.bench.echo")
    with Caller(port) as caller:
        for size in (0, 1, 100_000, 3):
            assert caller.call(question(port, f"/{size}", b"y" * 200_000))[1] == b"x" * size
        assert len(caller.time([question(port, "/5", b""), question(port, "/6", b"")], 7)) == 7


def test_the_extender_that_does_nothing_speaks_the_protocol(start: Start) -> None:
    port = start("kwok.bench.noop")
    body = filter_bodies(small_pod("small", "team-a"), NAMES, 1, seed=7)[0]
    with Caller(port) as caller:
        answer = msgspec.json.decode(caller.call(question(port, "/filter", body))[1], type=ExtenderFilterResult)
        assert answer.node_names is not None
        assert sorted(answer.node_names) == NAMES
        assert (answer.failed_nodes, answer.error) == ({}, "")
        assert json.loads(caller.call(question(port, "/prioritize", body))[1]) == []


def test_a_refused_call_is_said(start: Start) -> None:
    port = start("kwok.bench.noop")
    with Caller(port) as caller, pytest.raises(LabError, match="500"):
        caller.call(question(port, "/filter", b"{}"))


def configuration(*verbs: str) -> str:
    extender: dict[str, Any] = {"urlPrefix": "http://ours", "nodeCacheCapable": True, "weight": 130}
    extender |= {f"{verb}Verb": verb for verb in verbs}
    return yaml.safe_dump({"kind": "KubeSchedulerConfiguration", "parallelism": 3, "extenders": [extender]})


def extender_of(config: str | None) -> dict[str, Any]:
    assert config is not None
    loaded = yaml.safe_load(config)
    assert loaded["parallelism"] == 3
    (extender,) = loaded["extenders"]
    return dict(extender)


def test_verbs_are_changed_and_nothing_else() -> None:
    less = extender_of(throughput.with_verbs(configuration("filter", "prioritize", "preempt"), ("filter",)))
    assert less == {"urlPrefix": "http://ours", "nodeCacheCapable": True, "filterVerb": "filter"}
    more = extender_of(throughput.with_verbs(configuration("filter"), ("filter", "prioritize"), "http://other"))
    assert more["urlPrefix"] == "http://other"
    assert (more["prioritizeVerb"], more["weight"]) == ("prioritize", 1)


@pytest.mark.parametrize(
    ("shipped", "other", "setting"),
    [
        (("filter", "prioritize", "preempt"), "wholenode_filter", "filter"),
        (("filter", "preempt"), "wholenode_filter_prioritize", "scores"),
    ],
)
def test_arms_hold_the_shipped_configuration_and_the_other_packing(
    shipped: tuple[str, ...], other: str, setting: str
) -> None:
    config = configuration(*shipped)
    arms = throughput.arms(config, "http://other", "http://noop")
    assert list(arms) == ["no_extender", "wholenode", other, "noop_filter", "noop_filter_prioritize"]
    assert arms["no_extender"] is None
    assert arms["wholenode"] == config
    assert throughput.other_packing(config).setting == setting
    alike = {name: throughput.verbs_of(text) for name, text in arms.items() if text is not None}
    assert alike[other] ^ alike["wholenode"] == {"prioritize"}
    assert extender_of(arms[other])["urlPrefix"] == "http://other"
    assert extender_of(arms["noop_filter"])["urlPrefix"] == "http://noop"
