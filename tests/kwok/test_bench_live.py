"""The benchmark on a real control plane, as small as it goes: every figure is there; nobody asserts how large it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kwok.bench import speed, throughput


async def test_every_figure_of_a_fleet_is_measured(built: Mapping[str, Path]) -> None:
    assert built
    found = await speed.measure(speed.Size(nodes=10, calls=20, rounds=2, starts=2, lives=4), seed=7)
    by_pod = found["filter"]["by_pod"]
    assert {kind: one["calls"] for kind, one in by_pod.items()} == dict.fromkeys(
        ("small", "small_without_agreement", "whole_node", "cpu"), 20
    )
    # A whole-node pod without a claim is refused everywhere, which takes more words than names.
    assert by_pod["whole_node"]["answer_bytes"] > by_pod["small"]["answer_bytes"]
    for name in ("p50_ms", "p99_ms"):
        assert found["filter"][name] == max(one[name] for one in by_pod.values())
    details = found["details"]
    assert (details["nodes"], details["pods"]) == (10, 80)
    assert details["filter_while_changing"]["calls"] == 20
    assert set(details["rss_mb"]) == {"after_ready", "after_filter_calls"}
    # Made, bound, running, ended, told to go, gone.
    assert (found["events"]["recorded"], found["events"]["events"]) == (24, 48)


async def test_every_arm_binds_all_its_pods(built: Mapping[str, Path]) -> None:
    assert built
    load = throughput.Load(small_nodes=3, big_nodes=1, gpu_pods=20, gpu_rounds=1, cpu_pods=20, cpu_rounds=2)
    said: list[str] = []
    found = await throughput.measure(load, said.append)
    assert len(said) == 5 + 2 * 2
    assert set(found["cpu"]) == {throughput.NONE, throughput.OURS}
    assert set(found["gpu"]) > {throughput.NONE, throughput.OURS, throughput.NOOP_FILTER, throughput.NOOP_BOTH}
    assert [len(found[kind][throughput.OURS]["rounds"]) for kind in ("gpu", "cpu")] == [1, 2]
    assert found["cpu"][throughput.NONE]["ratio"] == {"median": 1.0, "min": 1.0, "max": 1.0}
