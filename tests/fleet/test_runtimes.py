"""Run times learned from what has finished: of which kind a job is, how many count, and which length is expected."""

from datetime import timedelta

import msgspec
import pytest

from fleet.objects import Job, Pod
from fleet.runtimes import Runtimes, cautious, stem
from tests.fleet.builders import at, job, owned, pod
from tests.fleet.history import ended, ended_job


def learned(one: Pod, *objects: Pod | Job) -> float | None:
    """Minutes that a pod is expected to run, after these have ended."""
    jobs = {each.metadata.uid: each for each in objects if isinstance(each, Job)}
    run = Runtimes.of([each for each in objects if isinstance(each, Pod)], jobs).of_pod(one)
    return run / timedelta(minutes=1) if run is not None else None


def test_three_of_its_name_must_have_succeeded_and_the_longest_counts() -> None:
    runs = [ended("train-1", 30), ended("train-2", 50), ended("train-3", 40)]
    assert learned(pod("train-4"), *runs) == 50
    assert learned(pod("train-4"), *runs[:2]) is None
    assert learned(pod("other-4"), *runs) is None
    assert learned(pod("train-4", ns="team-w"), *runs) is None, "a namesake of another namespace is another job"


def test_of_many_one_in_ten_may_have_taken_longer_and_old_ones_are_forgotten() -> None:
    lengths = [(at(number), timedelta(minutes=10 + number % 10)) for number in range(20)]
    assert cautious(lengths) == timedelta(minutes=18)
    assert cautious([(at(-1), timedelta(days=1)), (at(-2), timedelta(days=1)), *lengths]) == timedelta(minutes=18)


def test_only_what_succeeded_and_says_when_says_anything() -> None:
    failed = [
        msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, phase="Failed")) for one in _runs()
    ]
    timeless = [
        msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, container_statuses=None))
        for one in _runs()
    ]
    assert learned(pod("train-4"), *failed) is None
    assert learned(pod("train-4"), *timeless) is None
    assert learned(pod("train-4"), *_runs(-5)) is None, "a clock that ran backwards"


def _runs(minutes: float = 5) -> list[Pod]:
    return [ended(f"train-{number}", minutes) for number in range(3)]


def test_pods_of_a_cron_job_are_of_one_kind_whatever_their_jobs_are_called() -> None:
    cron = owned("CronJob", "nightly")
    jobs = [ended_job(f"{name}", 20, owner=cron, parallelism=4) for name in ("a", "b", "c")]
    now = job("d", ns="team-v", owner=cron)
    assert learned(pod("d-x", owner=owned("Job", "d")), *jobs, now) == 20
    assert learned(pod("e-x", owner=owned("Job", "e")), *jobs) is None


def test_pods_tell_more_than_their_job_and_one_that_runs_them_by_turns_tells_nothing() -> None:
    """The Job's time counts from when it was made, its pods' from when they had a node."""
    jobs = [ended_job(f"run-{number}", 60, parallelism=4) for number in (1, 2, 3)]
    pods = [ended(f"run-{number}-x", 25, owner=owned("Job", f"run-{number}")) for number in (1, 2, 3)]
    running = pod("run-4-x", owner=owned("Job", "run-4"))
    assert learned(running, *jobs) == 60
    assert learned(running, *jobs, *pods) == 25
    by_turns = [ended_job(f"run-{number}", 60, parallelism=2) for number in (1, 2, 3)]
    assert learned(running, *by_turns) is None


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController", "Node"])
def test_services_have_no_run_time(kind: str) -> None:
    owner = owned(kind, "chat")
    runs = [ended(f"chat-{number}", 5, owner=owner) for number in range(3)]
    assert learned(pod("chat-9", owner=owner), *runs) is None
    assert learned(pod("chat-9", owner=owned("PyTorchJob", "chat")), *runs) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("train-7", "train"),
        ("train-x7k2p", "train"),
        ("train-28391020", "train"),
        ("run-3-workers-0", "run-workers"),
        ("train-large", "train-large"),
        ("llama-70b", "llama-70b"),
        ("1234", "1234"),
        ("bcdfg", "bcdfg"),
    ],
)
def test_numbers_and_generated_endings_make_no_other_kind(name: str, kind: str) -> None:
    assert stem(name) == kind
