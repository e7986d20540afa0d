"""Quota unit: memory, slots and cards, with the arithmetic."""

import re
from dataclasses import replace

import pytest
import yaml

from fleet.doctor.checkup import Cohort, CohortSpec, KueueConfiguration, KueueResources, Transformation
from fleet.doctor.findings import Code, Verdict
from fleet.doctor.quota import check
from fleet.doctor.wants import counted
from fleet.objects import Metadata
from tests.fleet.doctor.pictures import CARD, codes, flavor, only, queue, seen, workload
from tests.fleet.shares import CARD_MIB, asking, shared_node

MEMORY = "nvidia.com/total-gpumem"
FLEET = [shared_node(f"n{index}", "big") for index in range(50)]
COUNTED = KueueConfiguration(
    KueueResources(transformations=(Transformation("nvidia.com/gpumem", "Replace", CARD, {MEMORY: "1"}),))
)
BLIND = KueueConfiguration(
    KueueResources(
        transformations=(
            Transformation("nvidia.com/gpumem", "Replace", CARD, {MEMORY: "1"}),
            Transformation(CARD, "Replace"),
        )
    )
)
"""Kueue told to leave `nvidia.com/gpu` itself out: the whole quota is in memory."""


def test_a_quota_of_ten_cards_in_memory_lets_in_three_jobs_of_eight() -> None:
    """8 cards with 10,000 MiB of each: 80,000 of 245,640."""
    ours = queue(quotas={MEMORY: 10 * CARD_MIB})
    job = workload("j", asking(8, memory=10_000), said=("QuotaReserved", "Admitted"))
    picture = seen(FLEET, kueue={"flavors": (flavor(),), "workloads": (job,)}, queues=(ours,), kueue_config=BLIND)
    found = only(check(picture), Code.QUOTA_IN_MEMORY)
    assert found.verdict is Verdict.PROBLEM
    assert found.evidence["cardsOfQuota"] == 10
    assert found.evidence["requests"][0] == {
        "cardsOfOne": 8,
        "countsForOne": 80_000,
        "workloads": 1,
        "admitted": 3,
        "cardsAdmitted": 24,
        "cardsOfQuota": 10,
    }
    assert "counts 80000 is admitted 3 times (245640 / 80000), which is 24 cards" in found.summary
    assert "nominalQuota: 10" in found.fix


def test_a_request_that_is_like_a_made_up_one_is_told_once() -> None:
    ours = queue(quotas={MEMORY: 10 * CARD_MIB})
    job = workload("j", asking(8), said=("QuotaReserved", "Admitted"))
    picture = seen(FLEET, kueue={"flavors": (flavor(),), "workloads": (job,)}, queues=(ours,), kueue_config=BLIND)
    told = only(check(picture), Code.QUOTA_IN_MEMORY).evidence["requests"]
    assert [(one["countsForOne"], one["workloads"]) for one in told] == [(0, 1), (8 * (CARD_MIB // 3), 0)]


def test_the_fix_keeps_what_else_the_queue_covers() -> None:
    ours = queue(quotas={"cpu": "64", MEMORY: 10 * CARD_MIB, "memory": "4Ti"})
    fix = only(
        check(seen(FLEET, kueue={"flavors": (flavor(),)}, queues=(ours,), kueue_config=BLIND)), Code.QUOTA_IN_MEMORY
    ).fix
    [_, text, config] = re.split(r"^(?=resource)", fix, flags=re.MULTILINE)
    [group] = yaml.safe_load(text.partition("\nand have")[0])["resourceGroups"]
    assert group["coveredResources"] == ["cpu", "memory", CARD]
    assert [(one["name"], one["nominalQuota"]) for one in group["flavors"][0]["resources"]] == [
        ("cpu", 64),
        ("memory", "4Ti"),
        (CARD, 10),
    ]
    assert all(one["outputs"] == {} for one in yaml.safe_load(config)["resources"]["transformations"])


def test_a_request_for_whole_cards_counts_nothing_in_memory() -> None:
    ours = queue(quotas={MEMORY: 10 * CARD_MIB})
    picture = seen(FLEET, kueue={"flavors": (flavor(),)}, queues=(ours,), kueue_config=BLIND)
    assert "any number of them" in only(check(picture), Code.QUOTA_IN_MEMORY).summary


def test_a_request_that_is_never_admitted_lets_nothing_in() -> None:
    """`nvidia.com/gpu` is neither covered nor left out: the made-up requests would wait for ever."""
    ours = queue(quotas={MEMORY: 10 * CARD_MIB})
    picture = seen(FLEET, kueue={"flavors": (flavor(),)}, queues=(ours,), kueue_config=COUNTED)
    found = only(check(picture), Code.QUOTA_IN_MEMORY)
    assert found.verdict is Verdict.WARNING
    assert found.evidence["requests"] == []


def test_a_prefix_left_out_takes_all_names_with_it_and_multiplies_nothing() -> None:
    rule = Transformation("example.com/x", "Retain", CARD, {"example.com/y": 2})
    wants = {CARD: 8, "nvidia.com/gpumem": 100, "example.com/x": 3}
    assert counted(wants, KueueConfiguration(KueueResources((CARD,), (rule,)))) == {
        "example.com/x": 3,
        "example.com/y": 6,
    }
    assert counted(wants, KueueConfiguration(KueueResources(None, (rule,)))) == {
        CARD: 8,
        "nvidia.com/gpumem": 100,
        "example.com/x": 24,
        "example.com/y": 48,
    }


@pytest.mark.parametrize(("factor", "counts"), [("245.64", 12_282), (0.5, 25), ("500m", 25), ("many", 0)])
def test_factors_may_be_fractions(factor: str | float, counts: int) -> None:
    """Of the percentage of a card's memory a quota in MiB is made with 245.64; the sum is rounded up."""
    rule = Transformation("nvidia.com/gpumem-percentage", "Replace", "", {MEMORY: factor})
    config = KueueConfiguration(KueueResources(transformations=(rule,)))
    assert counted({"nvidia.com/gpumem-percentage": 50}, config) == {MEMORY: counts}


def test_cards_counted_beside_memory_limit_it() -> None:
    ours = queue(quotas={CARD: 400, MEMORY: 400 * CARD_MIB})
    assert not codes(check(seen(FLEET, kueue={"flavors": (flavor(),)}, queues=(ours,), kueue_config=COUNTED)))


def test_slots_for_cards_admit_ten_times_too_many() -> None:
    queues = (queue("a", {CARD: 2000}), queue("b", {CARD: "2k"}))
    found = only(check(seen(FLEET, kueue={"flavors": (flavor(),)}, queues=queues)), Code.QUOTA_IN_SLOTS)
    assert found.verdict is Verdict.PROBLEM
    assert (found.evidence["quota"], found.evidence["cards"], found.evidence["slots"]) == (4000, 400, 4000)
    assert found.evidence["arithmetic"] == "4000 / 8 = 500 requests of 8 cards; 400 / 8 = 50 fit at most"


def test_a_little_above_the_cards_is_a_warning_where_nothing_is_sliced() -> None:
    from tests.fleet.builders import node

    picture = seen([node("n")], kueue={"flavors": (flavor(),)}, queues=(queue(quotas={CARD: 9}),))
    found = only(check(picture), Code.QUOTA_ABOVE_CARDS)
    assert found.verdict is Verdict.WARNING


def test_quotas_of_cohorts_count_too_and_flavors_have_their_own_nodes() -> None:
    flavors = (flavor("here", {"pool": "big"}), flavor("there", {"pool": "other"}))
    queues = (queue("a", {CARD: 300}, flavor="here"),)
    assert not codes(check(seen(FLEET, kueue={"flavors": flavors}, queues=queues)))
    cohort = Cohort(Metadata("all"), CohortSpec(resource_groups=queues[0].spec.resource_groups))
    assert codes(check(seen(FLEET, kueue={"flavors": flavors}, queues=queues, cohorts=(cohort,)))) == {
        Code.QUOTA_IN_SLOTS
    }
    elsewhere = (queue("a", {CARD: 1}, flavor="there"),)
    assert codes(check(seen(FLEET, kueue={"flavors": flavors}, queues=elsewhere))) == {Code.QUOTA_ABOVE_CARDS}


def test_what_no_quota_covers_is_never_admitted() -> None:
    waiting = workload("j", asking(1, memory=2456, cores=10))
    admitted = workload("k", asking(1, cores=5), said=("QuotaReserved",))
    picture = seen(
        FLEET,
        kueue={"flavors": (flavor(),), "workloads": (waiting, admitted)},
        queues=(queue(),),
        local_queues={("team-a", "q"): "team-a"},
    )
    found = [one for one in check(picture) if one.code is Code.UNCOVERED_RESOURCE]
    assert [one.evidence["resource"] for one in found] == ["nvidia.com/gpucores", "nvidia.com/gpumem"]
    assert found[0].evidence["workloads"] == ["team-a/j"]


def test_what_is_not_covered_is_a_guess_where_the_configuration_is_hidden() -> None:
    picture = seen(
        FLEET,
        kueue={"flavors": (flavor(),), "workloads": (workload("j", asking(1, memory=2456)),)},
        queues=(queue(),),
        local_queues={("team-a", "q"): "team-a"},
    )
    found = only(check(picture), Code.UNCOVERED_RESOURCE)
    assert found.verdict is Verdict.WARNING
    assert "was not found" in found.summary
    known = replace(picture, kueue_config=KueueConfiguration())
    assert only(check(known), Code.UNCOVERED_RESOURCE).verdict is Verdict.PROBLEM


@pytest.mark.parametrize("strategy", ["IgnoreUndeclared", "BlockUndeclared"])
def test_kueue_may_be_told_to_ignore_them(strategy: str) -> None:
    config = KueueConfiguration(KueueResources(quota_check_strategy=strategy))
    picture = seen(
        FLEET,
        kueue={"flavors": (flavor(),), "workloads": (workload("j", asking(1, memory=2456)),)},
        queues=(queue(),),
        local_queues={("team-a", "q"): "team-a"},
        kueue_config=config,
    )
    assert codes(check(picture)) == ({Code.UNCOVERED_RESOURCE} if strategy == "BlockUndeclared" else set())


def test_without_kueue_there_is_nothing_to_say() -> None:
    [found] = check(seen(FLEET))
    assert found.code is Code.NOT_USED
