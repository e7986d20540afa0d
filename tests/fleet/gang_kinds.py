"""Members of every kind of gang, three to a gang called `g`, and what else each kind needs to be known."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from fleet.names import JOB_COMPLETION_INDEX, KUEUE_POD_GROUP, KUEUE_POD_GROUP_TOTAL
from fleet.objects import Job, Pod
from tests.fleet.builders import coscheduling_group, job, owned, pod, pod_group

LWS = "leaderworkerset.sigs.k8s.io"
JOBSET = "jobset.sigs.k8s.io"
COSCHEDULING = "scheduling.x-k8s.io/pod-group"
VOLCANO = "scheduling.k8s.io/group-name"


def named(index: int, cards: int = 8, ns: str = "team-b", by: str = "one", **more: Any) -> Pod:
    return pod(f"m-{index}", cards, ns=ns, owner=owned("ReplicaSet", by), **{"gang": "g", "size": 3, **more})


def in_tree(index: int, cards: int = 8, ns: str = "team-b", **more: Any) -> Pod:
    return pod(f"m-{index}", cards, ns=ns, group="g", **more)


def of_kueue(index: int, cards: int = 8, ns: str = "team-b", by: str = "one", **more: Any) -> Pod:
    notes = {KUEUE_POD_GROUP_TOTAL: "3"}
    owner = owned("ReplicaSet", by)
    return pod(f"m-{index}", cards, ns=ns, labels={KUEUE_POD_GROUP: "g"}, notes=notes, owner=owner, **more)


def coscheduled(index: int, cards: int = 8, ns: str = "team-b", **more: Any) -> Pod:
    return pod(f"m-{index}", cards, ns=ns, labels={COSCHEDULING: "g"}, **more)


def lws_labels(name: str = "g", group: int = 0) -> dict[str, str]:
    return {f"{LWS}/name": name, f"{LWS}/group-index": str(group), f"{LWS}/group-key": f"hash-{name}-{group}"}


def of_lws(index: int, cards: int = 8, ns: str = "team-b", by: str = "", **more: Any) -> Pod:
    """The leader (0) is owned by the set's own StatefulSet, the workers by the leader's."""
    owner = owned("StatefulSet", by or ("g" if index == 0 else "g-0"))
    notes = {f"{LWS}/size": "3"}
    return pod(f"g-0-{index}", cards, ns=ns, owner=owner, **{"labels": lws_labels(), "notes": notes, **more})


def jobset_labels(name: str = "g", uid: str = "set-g", of: str = "w", index: int = 0) -> dict[str, str]:
    more = {"replicatedjob-name": of, "job-index": str(index), "global-replicas": "2"}
    return {f"{JOBSET}/{key}": text for key, text in {"jobset-name": name, "jobset-uid": uid, **more}.items()}


def of_jobset(index: int, cards: int = 8, ns: str = "team-b", by: str = "", **more: Any) -> Pod:
    """Two Jobs: the first runs one pod, the second two."""
    owner = owned("Job", by or f"g-w-{min(index, 1)}")
    return pod(f"m-{index}", cards, ns=ns, owner=owner, **{"labels": jobset_labels(index=min(index, 1)), **more})


def jobset_jobs(ns: str = "team-b") -> list[Job]:
    owner = owned("JobSet", "g", "set-g")
    return [job(f"g-w-{index}", ns=ns, parallelism=index + 1, owner=owner) for index in range(2)]


def of_job(index: int, cards: int = 8, ns: str = "team-b", by: str = "g", **more: Any) -> Pod:
    notes = {JOB_COMPLETION_INDEX: str(index)}
    return pod(f"m-{index}", cards, ns=ns, owner=owned("Job", by), notes=notes, **more)


@dataclass(frozen=True)
class Kind:
    """A kind of gang: how a member is made, what else there must be for a gang of three, and who is no member."""

    name: str
    make: Callable[..., Pod]
    needs: Callable[[], list[Any]] = list
    stranger: Callable[[], Pod] | None = None

    def three(self, **more: Any) -> list[Pod]:
        return [self.make(index, **more) for index in range(3)]


KINDS = [
    Kind("own annotation", named, stranger=lambda: named(9, by="two")),
    Kind("in-tree", in_tree, lambda: [pod_group("g", 3)], lambda: coscheduled(9)),
    Kind("Kueue", of_kueue, stranger=lambda: of_kueue(9, by="two")),
    Kind("coscheduling", coscheduled, lambda: [coscheduling_group("g", 3)], lambda: in_tree(9)),
    Kind("LeaderWorkerSet", of_lws, stranger=lambda: of_lws(9, by="other")),
    Kind("JobSet", of_jobset, jobset_jobs, lambda: of_jobset(9, by="other")),
    Kind("Job", of_job, lambda: [job("g", parallelism=3)], lambda: of_job(9, by="other")),
]


def marked(ended: Pod, like: Pod, owner_uid: str) -> Pod:
    """The ended pod with the marks of `like`, of the same kind of owner."""
    owner = owned("ReplicaSet", "one", owner_uid)
    meta = msgspec.structs.replace(
        ended.metadata,
        labels=like.metadata.labels,
        annotations=like.metadata.annotations,
        owner_references=(owner,),
    )
    spec = msgspec.structs.replace(ended.spec, scheduling_group=like.spec.scheduling_group)
    return msgspec.structs.replace(ended, metadata=meta, spec=spec)
