"""What would keep agreed victims from going is found out before the first one is stopped: budgets, long graces."""

import msgspec
import pytest

from fleet.actions import Answer, EvictionAnswer
from fleet.budgets import forbidden, matching
from fleet.objects import BudgetSpec, BudgetStatus, DisruptionBudget, LabelSelector, Metadata, Pod, Requirement
from fleet.planning import choose
from fleet.reasons import Reason
from fleet.resources import WholeNodeClaim
from fleet.view import View
from tests.fleet.builders import agreement, at, claim, members, node, pod, ref, view
from tests.fleet.scenes import gang
from tests.fleet.simulation import Simulation

WEB = LabelSelector(match_labels={"app": "web"})


def budget(
    name: str = "pdb", *, ns: str = "team-v", allowed: int = 0, selector: LabelSelector | None = WEB
) -> DisruptionBudget:
    return DisruptionBudget(Metadata(name, ns, uid=name), BudgetSpec(selector), BudgetStatus(allowed))


def web(name: str = "w", on: str = "n1") -> Pod:
    made = pod(name, 1, on=on)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, labels={"app": "web"}))


def seen(*budgets: DisruptionBudget, pods: tuple[Pod, ...]) -> View:
    made = view(node("n1"), pods, agreement(), members(1))
    return View(made.nodes, made.pods, made.jobs, made.pools, made.agreements, made.claims, budgets)


def waits(found: View) -> tuple[tuple[str, ...], Reason]:
    one: WholeNodeClaim = claim(gang=ref())
    choice = choose(found, one, {}, at(600))
    return tuple(taken.node.metadata.name for taken in choice.taken), choice.reason


def test_d15_a_budget_that_allows_nothing_rules_the_node_out_before_any_taint() -> None:
    assert waits(seen(budget(), pods=(web(), pod("x", 1, on="n1")))) == ((), Reason.BUDGET)


def test_d16_a_budget_that_lets_some_go_is_no_obstacle() -> None:
    assert waits(seen(budget(allowed=1), pods=(web(), web("w2"))))[0] == ("n1",)


def test_d14_two_budgets_on_one_pod_rule_the_node_out() -> None:
    assert waits(seen(budget("a", allowed=1), budget("b", allowed=1), pods=(web(),))) == ((), Reason.BUDGET)
    both = (budget("b", allowed=1), budget("a", allowed=1))
    assert "two budgets, team-v/a and team-v/b, cover pod team-v/w" in (forbidden([web()], both) or "")


@pytest.mark.parametrize(
    ("policy", "healthy", "desired", "ready", "goes"),
    [
        (None, 0, 1, False, False),
        ("IfHealthyBudget", 0, 1, False, False),
        ("IfHealthyBudget", 1, 1, False, True),
        (None, 1, 1, False, True),
        (None, 0, 0, False, False),
        ("AlwaysAllow", 0, 1, False, True),
        ("AlwaysAllow", 1, 1, True, False),
        (None, 1, 1, True, False),
    ],
)
def test_d19_who_is_not_ready_goes_where_the_eviction_api_lets_him(
    policy: str | None, healthy: int, desired: int, ready: bool, goes: bool
) -> None:
    """No disruption is allowed; the rules for unready pods are those of the API server, see kubernetes#72320."""
    one = budget()
    spec = msgspec.structs.replace(one.spec, unhealthy_pod_eviction_policy=policy)
    one = msgspec.structs.replace(one, spec=spec, status=BudgetStatus(0, healthy, desired))
    crashing = pod("w", 1, on="n1", labels={"app": "web"}, ready=ready)
    assert (waits(seen(one, pods=(crashing,)))[0] == ("n1",)) is goes


def test_a_pod_that_has_not_begun_to_run_goes_whatever_budgets_say() -> None:
    pulling = pod("w", 1, on="n1", labels={"app": "web"}, phase="Pending")
    assert waits(seen(budget("a"), budget("b"), pods=(pulling,)))[0] == ("n1",)


@pytest.mark.parametrize(
    ("selector", "covers"),
    [
        (WEB, True),
        (LabelSelector(), True),
        (None, False),
        (LabelSelector(match_labels={"app": "db"}), False),
        (LabelSelector(match_expressions=(Requirement("app", "Exists"),)), True),
    ],
)
def test_a_budget_covers_the_pods_it_selects(selector: LabelSelector | None, covers: bool) -> None:
    assert bool(matching(web(), [budget(selector=selector)])) is covers


def test_a_budget_of_another_namespace_covers_nobody_here() -> None:
    assert waits(seen(budget(ns="team-x"), pods=(web(),)))[0] == ("n1",)


def test_a_grace_longer_than_the_drain_may_last_rules_the_node_out() -> None:
    made = web()
    slow = msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, termination_grace_period_seconds=3600))
    assert waits(seen(pods=(slow,))) == ((), Reason.GRACE_TOO_LONG)


def test_pods_that_a_budget_may_keep_are_stopped_first_and_nobody_else_before_they_went() -> None:
    """One of two covered pods may go, and no replacement comes: the uncovered ones must not be stopped for nothing."""
    scene = Simulation()
    uncovered = [pod(f"x{index}", 1, on="n1") for index in range(2)]
    scene.add(node("n1"), web("w1"), web("w2"), uncovered, agreement(), gang(1))
    scene.budgets.append(budget(allowed=1))
    scene.refusals["team-v.w2"] = Answer(EvictionAnswer.BUDGET, "no disruption is allowed", at(600))
    scene.run(20)
    assert {one.name for one in scene.evictions} == {"w1"}
