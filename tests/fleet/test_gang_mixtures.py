"""Gangs of any mixture of pods: each live pod in exactly one, whatever the order, and what belongs is what is there."""

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.cards import finished, terminating
from fleet.gangs import Gang, belongs, candidate_refs, gang_ref, gangs
from fleet.objects import Pod
from fleet.resources import GangRef
from fleet.view import View
from tests.fleet.builders import coscheduling_group, job, owned, pod, pod_group, view
from tests.fleet.gang_kinds import coscheduled, in_tree, jobset_jobs, named, of_job, of_jobset, of_kueue, of_lws

makers = st.sampled_from([named, in_tree, of_kueue, coscheduled, of_lws, of_jobset, of_job])
any_pod = st.builds(
    lambda make, index, ns, cards, uid, going, phase: make(index, cards, ns=ns, uid=uid, going=going, phase=phase),
    makers,
    st.integers(0, 3),
    st.sampled_from(["team-b", "other"]),
    st.sampled_from([0, 1, 8]),
    st.uuids().map(str),
    st.none() | st.just(5.0),
    st.sampled_from([None, None, "Succeeded", "Failed"]),
)
plain = st.builds(
    lambda name, uid, parallel: pod(name, 8, ns="team-b", uid=uid, owner=owned("Job", parallel) if parallel else None),
    st.sampled_from(["a", "b"]),
    st.uuids().map(str),
    st.sampled_from(["", "unordered", "single"]),
)
GROUPS = [pod_group("g", 3), coscheduling_group("g", 2)]
JOBS = [job("g", parallelism=3), job("unordered", parallelism=3), job("single"), *jobset_jobs()]


def as_text(found: dict[str, Gang]) -> list[Any]:
    return sorted(
        (key, gang.size, gang.unsized, [one.metadata.uid for one in gang.pods]) for key, gang in found.items()
    )


@given(st.lists(any_pod | plain, max_size=12, unique_by=lambda one: one.metadata.uid), st.randoms())
def test_every_live_pod_is_in_one_gang_whatever_the_order_and_belongs_there(pods: list[Pod], random: Any) -> None:
    shuffled = random.sample(pods, len(pods))
    seen = view(pods, GROUPS, JOBS)
    assert as_text(dict(seen.gangs)) == as_text(dict(view(shuffled, GROUPS[::-1], JOBS[::-1]).gangs))
    live = [one for one in pods if not finished(one) and not terminating(one)]
    of_pod: dict[str, list[Gang]] = {one.metadata.uid: [] for one in live}
    for key, gang in seen.gangs.items():
        assert key == gang.key
        for one in gang.pods:
            of_pod[one.metadata.uid].append(gang)
    for one in live:
        found = of_pod[one.metadata.uid]
        assert len(found) == 1 or (not found and one.metadata.uid not in seen.requests)
    _check_belonging(live, seen, of_pod)


def _check_belonging(live: Iterable[Pod], seen: View, of_pod: dict[str, list[Gang]]) -> None:
    for one in live:
        refs = candidate_refs(one)
        assert gang_ref(one, seen.jobs) in refs
        for gang in seen.gangs.values():
            said = belongs(one, gang.namespace, gang.ref)
            assert said == (one.metadata.namespace == gang.namespace and gang.ref in refs)
            if gang in of_pod[one.metadata.uid]:
                assert said
            elif said:
                assert gang.ref.kind == "Job", "only of a Job can a pod be a member or not, which its Job decides"


def test_gangs_from_pods_alone_need_nothing_else() -> None:
    assert gangs([pod("p", 8)], {}).popitem()[1].ref == GangRef("Pod", "p", "team-v.p")
