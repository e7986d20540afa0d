"""Workloads and nodes: the same seed gives the same objects, and the objects say what was declared."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwok.admin import path_of, plural
from kwok.nodes import GPU, GPU_MEMORY, is_ready, make_nodes
from kwok.stages import DURATION, STUCK, TERM_DELAY
from kwok.workloads import GANG, GANG_SIZE, Group, Mix, Shape, generate, go_duration, make_job, make_pod

SHAPES: tuple[Shape, ...] = ("pod", "job", "share", "gang", "gang-job")


@st.composite
def groups(draw: st.DrawFn, index: int) -> Group:
    low = draw(st.floats(0.01, 1000))
    timed = draw(st.booleans())
    return Group(
        name=f"g{index}",
        shape=draw(st.sampled_from(SHAPES)),
        count=draw(st.integers(0, 6)),
        cards=draw(st.integers(1, 8)),
        size=draw(st.integers(1, 4)),
        seconds_from=low if timed else None,
        seconds_to=low + draw(st.floats(0, 1000)) if timed else None,
        namespaces=tuple(draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, unique=True))),
        priority_class=draw(st.none() | st.just("high")),
        stuck=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )


@st.composite
def mixes(draw: st.DrawFn) -> Mix:
    return Mix(tuple(draw(groups(index)) for index in range(draw(st.integers(0, 3)))), shuffle=draw(st.booleans()))


@given(mixes(), st.integers())
def test_the_same_seed_gives_the_same_objects(mix: Mix, seed: int) -> None:
    assert json.dumps(generate(mix, seed)) == json.dumps(generate(mix, seed))


@given(mixes(), st.integers())
def test_counts_names_and_run_times_are_as_declared(mix: Mix, seed: int) -> None:
    made = generate(mix, seed)
    expected = sum(group.count * (group.size if group.shape == "gang" else 1) for group in mix.groups)
    assert len(made) == expected
    assert len({path_of(manifest) for manifest in made}) == expected
    by_name = {group.name: group for group in mix.groups}
    for manifest in made:
        group = by_name[manifest["metadata"]["name"].split("-")[0]]
        assert manifest["metadata"]["namespace"] in group.namespaces
        pod = manifest["spec"]["template"] if manifest["kind"] == "Job" else manifest
        notes = pod["metadata"]["annotations"]
        assert (DURATION in notes) == (group.seconds_from is not None)
        if group.seconds_from is not None and group.seconds_to is not None:
            assert group.seconds_from - 0.001 <= float(notes[DURATION][:-1]) <= group.seconds_to + 0.001
        assert (notes.get(TERM_DELAY) == STUCK) >= (group.stuck == 1)
        assert (GANG in notes) == group.shape.startswith("gang")
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        assert limits[GPU] == ("1" if group.shape == "share" else str(group.cards))
        assert (GPU_MEMORY in limits) == (group.shape == "share")


@given(st.integers(), st.integers(1, 5), st.integers(2, 6))
def test_a_gang_stays_together(seed: int, count: int, size: int) -> None:
    gang = Group("gang", "gang", count, size=size)
    made = generate(Mix((gang, Group("single", "pod", 5))), seed)
    seen: list[str] = []
    for manifest in made:
        name = manifest["metadata"]["annotations"].get(GANG)
        if name is not None:
            assert manifest["metadata"]["annotations"][GANG_SIZE] == str(size)
            seen.append(name)
    assert all(len(set(seen[start : start + size])) == 1 for start in range(0, len(seen), size))


def test_different_seeds_differ() -> None:
    mix = Mix((Group("a", "pod", 20, seconds_from=1, seconds_to=100),))
    assert generate(mix, 1) != generate(mix, 2)


@pytest.mark.parametrize(
    "wrong",
    [{"count": -1}, {"cards": 0}, {"size": 0}, {"namespaces": ()}, {"seconds_from": 1.0},
     {"seconds_from": 2.0, "seconds_to": 1.0}, {"seconds_from": 0.0, "seconds_to": 1.0}, {"stuck": 1.5}],
)  # fmt: skip
def test_a_group_that_cannot_be_meant_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="group g"):
        Group(**{"name": "g", "shape": "pod", "count": 1, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(("seconds", "text"), [(3, "3s"), (1.5, "1.5s"), (0.05, "0.05s"), (100, "100s")])
def test_durations_are_go_style(seconds: float, text: str) -> None:
    assert go_duration(seconds) == text


def test_a_queued_job_starts_suspended() -> None:
    job = make_job("j", "team", pods=3, cards=8, queue="research", priority_class="high", gang=("j", 3))
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "research"}
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (3, 3)
    assert job["spec"]["template"]["metadata"]["annotations"] == {GANG: "j", GANG_SIZE: "3"}
    assert job["spec"]["template"]["spec"]["priorityClassName"] == "high"


def test_a_pod_without_cards_asks_for_none() -> None:
    assert make_pod("p", cards=0)["spec"]["containers"][0]["resources"]["limits"] == {}


def test_nodes_carry_their_cards() -> None:
    [first, second] = make_nodes(2, 8, "big", {"pool": "big"})
    assert [first["metadata"]["name"], second["metadata"]["name"]] == ["big-000", "big-001"]
    assert first["status"]["allocatable"] == {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: "8"}
    assert first["metadata"]["labels"]["pool"] == "big"
    assert is_ready(first)
    shared = make_nodes(1, 8, shares_per_card=10)[0]["status"]["capacity"]
    assert (shared[GPU], shared[GPU_MEMORY]) == ("80", str(8 * 24564))
    assert GPU not in make_nodes(1, 0)[0]["status"]["capacity"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Pod", "pods"),
        ("GPUPool", "gpupools"),
        ("PriorityClass", "priorityclasses"),
        ("DrainAgreement", "drainagreements"),
        ("MutatingAdmissionPolicy", "mutatingadmissionpolicies"),
        ("ClusterQueue", "clusterqueues"),
        ("Ingress", "ingresses"),
    ],
)
def test_plurals(kind: str, name: str) -> None:
    assert plural(kind) == name
