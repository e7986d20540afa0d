"""Agreements: nobody is stopped without one, and only as it was written."""

from collections.abc import Iterable
from datetime import datetime, timedelta

import pytest

from fleet.agreements import Consent, Verdict, in_force, problems, queue_of, verdict
from fleet.names import KUEUE_QUEUE, LAST_CHECKPOINT
from fleet.objects import LabelSelector, Pod, Requirement
from fleet.reasons import Reason
from fleet.resources import Budget, Checkpoint, DrainAgreement, Window
from fleet.times import format_time
from tests.fleet.builders import agreement, at, pod
from tests.fleet.scenes import busy, gang

WEB = LabelSelector({"app": "web"})


def asked(
    one: Pod,
    *agreements: DrainAgreement,
    by: str = "team-b",
    since: float = 0,
    now: float = 1000,
    queue: str = "",
    victims: Iterable[Pod] = (),
) -> Verdict:
    valid = in_force(agreements, at(now)).get(one.metadata.namespace, ())
    return verdict(one, by, valid, at(since), at(now), queue, victims)


def running(**more: object) -> Pod:
    return pod("p", on="n1", started=0, **more)  # type: ignore[arg-type]


def test_d33_no_agreement_no_eviction() -> None:
    assert asked(running()) == Verdict(Consent.MISSING)
    assert asked(running(), agreement(ns="team-w")) == Verdict(Consent.MISSING)


def test_an_agreement_of_the_pods_own_namespace_is_needed_and_enough() -> None:
    assert asked(running(), agreement("nights")) == Verdict(Consent.GIVEN, "nights")


def test_d34_it_is_for_the_beneficiaries_it_names() -> None:
    assert asked(running(), agreement(to=["team-a"])).consent is Consent.MISSING
    assert asked(running(), agreement(to=["team-a", "team-b"])).consent is Consent.GIVEN


@pytest.mark.parametrize(
    ("void", "field"),
    [
        (agreement(select=LabelSelector()), "podSelector"),
        (agreement(select=LabelSelector({}, ())), "podSelector"),
        (agreement(patience="soon"), "spec.patience"),
        (agreement(min_runtime="10 minutes"), "spec.minRuntime"),
        (agreement(to=[]), "beneficiaries"),
        (agreement(expires=1000), "expires"),
        (agreement(queues=[]), "localQueues"),
        (agreement(budget=Budget(gpu_seconds_per_day=-1)), "spec.budget.gpuSecondsPerDay"),
        (agreement(budget=Budget(evictions_per_hour=-1)), "spec.budget.evictionsPerHour"),
        (agreement(budget=Budget(evictions_per_job_per_day=-1)), "spec.budget.evictionsPerJobPerDay"),
        (agreement(checkpoint=Checkpoint(timeout="0s")), "spec.checkpoint.timeout"),
        (agreement(checkpoint=Checkpoint(request=True, timeout="2 min")), "spec.checkpoint.timeout"),
    ],
)
def test_d35_a_void_agreement_is_none_and_says_why(void: DrainAgreement, field: str) -> None:
    assert asked(running(labels={"app": "web"}), void).consent is Consent.MISSING
    assert any(field in text for text in problems(void, at(1000)))


def test_a_valid_one_has_no_problems() -> None:
    assert problems(agreement(select=WEB, expires=1001), at(1000)) == ()
    full = agreement(budget=Budget(0, 0, 0), checkpoint=Checkpoint(required=True, request=True), queues=["research"])
    assert problems(full, at(1000)) == ()


@pytest.mark.parametrize(("now", "given"), [(999.999, True), (1000, False), (1001, False)])
def test_it_ends_when_it_expires(now: float, given: bool) -> None:
    assert (asked(running(), agreement(expires=1000), now=now).consent is Consent.GIVEN) is given


def test_the_selector_says_which_pods() -> None:
    assert asked(running(labels={"app": "web"}), agreement(select=WEB)).consent is Consent.GIVEN
    assert asked(running(labels={"app": "db"}), agreement(select=WEB)).consent is Consent.NOT_SELECTED
    odd = LabelSelector(match_expressions=(Requirement("app", "Matches", ("web",)),))
    assert asked(running(labels={"app": "web"}), agreement(select=odd)).consent is Consent.NOT_SELECTED


@pytest.mark.parametrize(
    ("priority", "ceiling", "consent"),
    [
        (None, 0, Consent.GIVEN),
        (0, 0, Consent.GIVEN),
        (1, 0, Consent.PRIORITY),
        (100, 100, Consent.GIVEN),
        (101, 100, Consent.PRIORITY),
        (-5, 0, Consent.GIVEN),
        (0, -1, Consent.PRIORITY),
    ],
)
def test_d39_the_ceiling_is_the_highest_priority_that_may_be_stopped(
    priority: int | None, ceiling: int, consent: Consent
) -> None:
    assert asked(running(priority=priority), agreement(max_priority=ceiling)).consent is consent


def test_d36_a_pod_is_protected_until_it_has_run_long_enough() -> None:
    patient = agreement(min_runtime="10m")
    young = asked(running(), patient, now=180)
    assert young == Verdict(Consent.MIN_RUNTIME, "yes", at(600))
    assert asked(running(), patient, now=599.9).consent is Consent.MIN_RUNTIME
    assert asked(running(), patient, now=600).consent is Consent.GIVEN


def test_a_pod_that_has_not_started_is_protected_by_a_minimum_only() -> None:
    starting = Pod(running().metadata, running().spec)
    assert asked(starting, agreement(min_runtime="10m")).consent is Consent.MIN_RUNTIME
    assert asked(starting, agreement()).consent is Consent.GIVEN


def test_the_claim_must_have_waited_first() -> None:
    patient = agreement(patience="10m")
    assert asked(running(), patient, since=500, now=1099) == Verdict(Consent.PATIENCE, "yes", at(1100))
    assert asked(running(), patient, since=500, now=1100).consent is Consent.GIVEN


@pytest.mark.parametrize("flipped", [False, True])
def test_the_most_favourable_agreement_decides(flipped: bool) -> None:
    several = [agreement("strict", select=WEB), agreement("slow", patience="1h"), agreement("free")]
    assert asked(running(), *(several[::-1] if flipped else several)) == Verdict(Consent.GIVEN, "free")


@pytest.mark.parametrize("flipped", [False, True])
def test_else_the_one_that_comes_closest_gives_the_reason(flipped: bool) -> None:
    several = [agreement("a", select=WEB), agreement("b", patience="2h"), agreement("c", patience="1h")]
    closest: datetime = at(3600)
    found = asked(running(), *(several[::-1] if flipped else several))
    assert found == Verdict(Consent.PATIENCE, "c", closest)


NIGHTS = Window("0 22 * * *", "9h")
"""T0 is noon UTC: they begin 10 hours later."""
TEN_HOURS = 36000.0


def test_outside_its_windows_an_agreement_says_when_the_next_one_begins() -> None:
    nightly = agreement(windows=[NIGHTS])
    assert asked(running(), nightly) == Verdict(Consent.WINDOW, "yes", at(TEN_HOURS))
    assert asked(running(), nightly, now=TEN_HOURS - 0.001).consent is Consent.WINDOW
    assert asked(running(), nightly, now=TEN_HOURS) == Verdict(Consent.GIVEN, "yes")
    assert asked(running(), nightly, now=TEN_HOURS + 9 * 3600).consent is Consent.WINDOW


def test_the_next_window_is_sought_from_when_the_other_terms_are_met() -> None:
    last = at(TEN_HOURS)
    assert asked(running(), agreement(windows=[NIGHTS], patience="1h")) == Verdict(Consent.PATIENCE, "yes", last)
    assert asked(running(), agreement(windows=[NIGHTS], min_runtime="1h")) == Verdict(Consent.MIN_RUNTIME, "yes", last)
    # Patience that ends within the window, and patience that ends after it.
    assert asked(running(), agreement(windows=[NIGHTS], patience="12h")).from_ == at(12 * 3600)
    assert asked(running(), agreement(windows=[NIGHTS], patience="20h")).from_ == last + timedelta(days=1)


def test_an_agreement_without_windows_can_help_outside_those_of_another() -> None:
    assert asked(running(), agreement("a", windows=[NIGHTS]), agreement("b")) == Verdict(Consent.GIVEN, "b")


@pytest.mark.parametrize(
    ("window", "text"),
    [
        (Window("0 22 * *", "9h"), "spec.windows[0].schedule: '0 22 * *' has 4 fields, not 5"),
        (Window("0 0 30 2 *", "9h"), "spec.windows[0].schedule: '0 0 30 2 *' never comes"),
        (Window("0 22 * * *", "9h", "Mars/Olympus"), "spec.windows[0].timeZone: 'Mars/Olympus' is no time zone known"),
        (Window("0 22 * * *", "0s"), "spec.windows[0].duration: must be longer than 0s"),
    ],
)
def test_d35_a_bad_window_makes_the_agreement_void_even_beside_a_good_one(window: Window, text: str) -> None:
    (found,) = problems(agreement(windows=[window]), at(0))
    assert found.startswith(text)
    beside = agreement(windows=[Window("* * * * *", "1h"), window])
    assert asked(running(), beside).consent is Consent.MISSING


def test_many_bad_windows_still_fit_into_a_condition() -> None:
    worst = [Window("x" * 92 + " * * * *", "never" * 6, "Z" * 64)] * 16
    found = problems(agreement(windows=worst), at(0))
    assert found[-1] == "spec.windows: 42 more problem(s)"
    assert len("; ".join(found)) < 4096


def test_a_window_that_ends_during_a_drain_protects_who_is_not_evicted_yet() -> None:
    """It is open for a moment at noon, when everything starts; schedulers are given longer than that to settle."""
    cluster = busy(["n1"]).add(gang())
    cluster.agreements = [agreement(windows=[Window("0 12 * * *", "300ms")])]
    cluster.run(5)
    assert cluster.evicted() == []
    assert cluster.the_claim().status.reason == Reason.PROTECTED_POD
    assert "may not be stopped: OutsideWindow; the nodes are given back" in cluster.the_claim().status.message


def test_d35_no_windows_at_all_are_not_any_time() -> None:
    assert problems(agreement(windows=[]), at(0)) == ("spec.windows: must not be empty; leave it out to mean any time",)
    assert asked(running(), agreement(windows=[])).consent is Consent.MISSING


def test_d35_to_keep_no_replica_is_no_agreement() -> None:
    assert asked(running(), agreement(keep_ready=0)).consent is Consent.MISSING
    assert "minReadyReplicas: must be 1 or more" in problems(agreement(keep_ready=0), at(0))[0]


def test_of_agreements_that_allow_it_the_one_that_keeps_fewest_replicas_decides() -> None:
    several = [agreement("a", keep_ready=2), agreement("b", keep_ready=1), agreement("c", keep_ready=3)]
    assert asked(running(), *several) == Verdict(Consent.GIVEN, "b", keep_ready=1)
    assert asked(running(), *several, agreement("d")) == Verdict(Consent.GIVEN, "d")


def test_an_agreement_for_certain_queues_is_for_their_gangs_only() -> None:
    of_research = agreement(queues=["research", "vision"])
    for queue, consent in (("research", Consent.GIVEN), ("vision", Consent.GIVEN), ("", Consent.MISSING)):
        assert asked(running(), of_research, queue=queue).consent is consent
    assert asked(running(), of_research, queue="web").consent is Consent.MISSING
    assert asked(running(), of_research, by="team-a", queue="research").consent is Consent.MISSING
    both = [of_research, agreement("all")]
    assert asked(running(), *both, queue="web") == Verdict(Consent.GIVEN, "all")


def test_the_queue_of_a_gang_is_the_one_that_all_its_pods_name() -> None:
    research = pod("a", 8, labels={KUEUE_QUEUE: "research"})
    assert queue_of([research, research]) == "research"
    assert queue_of([research, pod("b", 8)]) == queue_of([]) == queue_of([pod("b", 8)]) == ""
    assert queue_of([research, pod("c", 8, labels={KUEUE_QUEUE: "vision"})]) == "", "they do not agree"


@pytest.mark.parametrize(
    ("saved", "consent"),
    [
        (None, Consent.CHECKPOINT),
        ("yesterday", Consent.CHECKPOINT),
        ("2027-01-04T12:10:00", Consent.CHECKPOINT),
        (format_time(at(-1)), Consent.CHECKPOINT),
        (format_time(at(1001)), Consent.CHECKPOINT),
        (format_time(at(1)), Consent.GIVEN),
        (format_time(at(1000)), Consent.GIVEN),
    ],
)
def test_a_checkpoint_that_is_required_must_be_one(saved: str | None, consent: Consent) -> None:
    """It can be read, lies after the start, and not in the future."""
    careful = agreement(checkpoint=Checkpoint(required=True))
    notes = {LAST_CHECKPOINT: saved} if saved else {}
    assert asked(running(notes=notes), careful).consent is consent
    lead = pod("lead", on="n2", started=0, notes=notes)
    assert asked(running(), careful, victims=[lead]).consent is consent


@pytest.mark.parametrize("wish", [Checkpoint(), Checkpoint(request=True), Checkpoint(required=True, request=True)])
def test_a_checkpoint_that_is_to_be_asked_for_need_not_be_there_yet(wish: Checkpoint) -> None:
    assert asked(running(), agreement(checkpoint=wish)).consent is Consent.GIVEN


def test_of_several_that_allow_it_the_one_with_fewest_conditions_is_used() -> None:
    several = [
        agreement("a", keep_ready=1),
        agreement("b", checkpoint=Checkpoint(request=True)),
        agreement("c", budget=Budget(1)),
        agreement("d"),
    ]
    for last, name in ((4, "d"), (3, "c"), (2, "b"), (1, "a")):
        assert asked(running(), *several[:last]).agreement == name
