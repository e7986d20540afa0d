"""Going ahead of an older claim: only with a declared end, and only where the older one starts no later for it."""

from typing import Any

import msgspec
import pytest

from fleet.actions import Timing, WriteStatus
from fleet.backfill import START_MARGIN, Ahead
from fleet.candidates import Candidate
from fleet.domains import Domain
from fleet.gangs import gangs
from fleet.lifecycle import decide
from fleet.marks import taint
from fleet.names import CLAIM_KEY, EXPECTED_RUN
from fleet.naming import claim_spec
from fleet.objects import PodStatus
from fleet.outlook import outlook
from fleet.planning import choose
from fleet.reasons import Reason
from fleet.resources import ClaimStatus, HeldNode, Phase, PhaseTime, Policy, Victim
from fleet.view import View
from tests.fleet.builders import agreement, at, claim, container, members, node, pod, ref, view
from tests.fleet.scenes import small

NOW = at(1000)
RACK = "example.com/rack"
MARGIN = int(START_MARGIN.total_seconds())


def run(seconds: float) -> dict[str, str]:
    """Annotations of a pod that says how long it runs."""
    return {EXPECTED_RUN: f"{seconds:g}s"}


def statuses(seen: View) -> dict[str, ClaimStatus]:
    """The claims' statuses after one pass, by name."""
    found = {one.metadata.name: one.status for one in seen.claims.values()}
    for one in decide(seen, {}, {}, NOW, Timing()).actions:
        if isinstance(one, WriteStatus):
            found[one.claim.metadata.name] = one.status
    return found


def pair(*objects: Any, younger: str | None, older: Policy = Policy.WAIT, patience: str = "0s") -> View:
    """An older claim for both of two nodes, n1 free and n2 busy by `objects`, and a younger one for a node."""
    return view(
        node("n1"),
        node("n2"),
        objects,
        members(2, gang="a"),
        members(1, gang="b"),
        claim("old", nodes=2, gang=ref("a"), policy=older, patience=patience),
        claim("new", gang=ref("b"), policy=Policy.WAIT, run=younger, created=1),
    )


def ends(seconds: float, name: str = "n2", **more: Any) -> list[Any]:
    """A pod that is expected to end `seconds` after NOW."""
    return small(1, name, started=0, notes=run(1000 + seconds), **more)


def test_g08_the_younger_goes_ahead_if_it_is_done_when_the_older_could_start() -> None:
    found = statuses(pair(ends(600), younger=f"{600 - MARGIN}s"))
    assert (found["new"].phase, found["new"].node_names) == (Phase.PLANNED, "n1")
    assert found["new"].message == "1 free node(s); ahead of an older claim that cannot start before " + (
        "2027-01-04T12:26:40Z"
    )
    assert found["old"].phase is Phase.PENDING


@pytest.mark.parametrize(
    ("until", "younger", "says"),
    [
        (
            600,
            f"{601 - MARGIN}s",
            "which may start at 2027-01-04T12:26:40Z; the expected run of 9m1s is too long",
        ),
        (600, None, "a gang whose wholenode.io/expected-run is over before may go ahead"),
        (600, "soon", "a gang whose wholenode.io/expected-run is over before may go ahead"),
        (None, "1s", "it is not known when that one starts, so nobody goes ahead of it"),
        (-1, "1s", "it is not known when that one starts"),
    ],
)
def test_g08_else_it_waits_and_is_told_what_would_let_it_go_ahead(
    until: float | None, younger: str | None, says: str
) -> None:
    busy = small(1, "n2") if until is None else ends(until)
    new = statuses(pair(busy, younger=younger))["new"]
    assert (new.phase, new.reason, new.nodes) == (Phase.PENDING, Reason.OLDER_CLAIM, ())
    assert new.message.startswith("1 of the 1 node(s) it could have now are kept for an older claim")
    assert says in new.message


def test_g08_the_older_could_also_start_by_stopping_others() -> None:
    """Its patience ends 300 s from now, long before the pod in the way."""
    by_force = [ends(10000), agreement()]
    for seconds, phase in ((300 - MARGIN, Phase.PLANNED), (301 - MARGIN, Phase.PENDING)):
        seen = pair(by_force, younger=f"{seconds}s", older=Policy.WAIT_THEN_EVICT, patience="1300s")
        assert statuses(seen)["new"].phase is phase
    later = pair(ends(10000), agreement(patience="1200s"), younger=f"{201 - MARGIN}s", older=Policy.WAIT_THEN_EVICT)
    assert statuses(later)["new"].phase is Phase.PENDING, "the agreement can be used in 200 s"
    only_waits = pair(by_force, younger="5000s", older=Policy.WAIT)
    assert statuses(only_waits)["new"].phase is Phase.PLANNED, "it would not stop anybody"


def test_g08_nodes_nobody_waits_for_come_before_backfill() -> None:
    """The older claim waits for rack a, so rack b is anybody's, by name the later one or not."""
    nodes = [node(name, labels={RACK: rack}) for name, rack in (("n1", "a"), ("n2", "a"), ("n3", "a"), ("n9", "b"))]
    claims = [
        claim("old", nodes=3, gang=ref("a"), policy=Policy.WAIT, topology=RACK),
        claim("new", gang=ref("b"), policy=Policy.WAIT, run="1s", created=1),
    ]
    found = statuses(view(nodes, ends(600), members(3, gang="a"), members(1, gang="b"), claims))
    assert found["new"].node_names == "n9"


def test_g08_backfill_stops_nobody() -> None:
    """Both nodes are busy; the younger could vacate n1, but that one is kept."""
    seen = view(
        node("n1"),
        node("n2"),
        ends(600, "n1"),
        ends(600),
        agreement(),
        members(2, gang="a"),
        members(1, gang="b"),
        claim("old", nodes=2, gang=ref("a"), policy=Policy.WAIT),
        claim("new", gang=ref("b"), run="1s", created=1),
    )
    assert statuses(seen)["new"].phase is Phase.PENDING


@pytest.mark.parametrize("other", [small(1, "n3"), pod("going", 8, on="n3", ns="team-w", going=1010)])
def test_g08_backfill_is_into_free_nodes_only(other: Any) -> None:
    """The younger could have n1, which is lent, with n3, which must be emptied first; that may take long."""
    seen = view(
        [node(name, labels={RACK: rack}) for name, rack in (("n1", "a"), ("n2", "a"), ("n3", "b"))],
        ends(600),
        other,
        agreement(),
        members(2, gang="a"),
        members(2, gang="b"),
        claim("old", nodes=2, gang=ref("a"), policy=Policy.WAIT, topology=RACK),
        claim("new", nodes=2, gang=ref("b"), run="1s", created=1),
    )
    found = statuses(seen)
    assert (found["new"].phase, found["new"].reason) == (Phase.PENDING, Reason.OLDER_CLAIM)


def test_g08_a_node_is_lent_by_all_older_claims_or_not_at_all() -> None:
    ahead = Ahead()
    ahead.keep(["n1", "n2"], at(2000))
    ahead.keep(["n1"], at(1500))
    ahead.keep(["n2"], None)
    ahead.keep(["n2"], at(1200))
    assert ahead.kept == {"n1": at(1500), "n2": None}


def test_an_older_claim_that_takes_a_moment_off_keeps_its_nodes() -> None:
    blocked = claim("old", nodes=1, gang=ref("a"), phase=Phase.BLOCKED, retry_at=at(1005))
    younger = claim("new", gang=ref("b"), created=1)
    found = statuses(view(node("n1"), members(1, gang="a"), members(1, gang="b"), blocked, younger))
    assert (found["new"].phase, found["new"].reason) == (Phase.PENDING, Reason.OLDER_CLAIM)


def test_a_claim_waits_for_the_nodes_it_would_have_first_if_that_is_known() -> None:
    """However dear stopping their pods would be; what is overdue may end at any time, or never."""
    busy = [ends(600, "n1"), small(1, "n2", started=990), ends(-1, "n3"), ends(300, "n4", priority=7)]
    fleet = [node(name) for name in ("n1", "n2", "n3", "n4")]

    def waits_for(count: int) -> tuple[tuple[str, ...], object]:
        one = claim(nodes=count, gang=ref("a"), policy=Policy.WAIT)
        found = choose(view(fleet, busy, members(count, gang="a")), one, {}, NOW)
        assert found.plan is not None
        assert found.plan.expected_free_at == found.start_at
        return found.wanted, found.start_at

    assert waits_for(1) == (("n4",), at(1300))
    assert waits_for(2) == (("n4", "n1"), at(1600))
    assert waits_for(3) == (("n4", "n1", "n2"), None)


def test_the_older_claim_counts_on_the_end_the_younger_promised() -> None:
    seen = pair(ends(600), younger="100s")
    old = next(one for one in seen.claims.values() if one.metadata.name == "old")
    ahead = Ahead(ends={"n1": at(1160)})
    found = choose(seen, old, {"n1": "HeldForAnotherClaim"}, NOW, ahead=ahead)
    assert (found.start_at, found.wanted) == (at(1600), ("n1", "n2"))
    assert found.plan is not None
    assert (found.plan.expected_free_at, found.plan.runners_up) == (at(1600), ())
    sooner = choose(pair(ends(50), younger=None), claim(gang=ref("b")), {"n1": "HeldForAnotherClaim"}, NOW, ahead=ahead)
    assert sooner.plan is not None
    assert (sooner.wanted, sooner.plan.runners_up) == (("n2",), ()), "a held node is nobody's next choice"
    nobody_knows = choose(seen, old, {"n1": "HeldForAnotherClaim"}, NOW)
    assert (nobody_knows.start_at, nobody_knows.wanted) == (None, ("n2",))


def test_what_is_lent_does_not_make_the_older_claim_turn_to_another_rack() -> None:
    """At the moment it could start, the lent node is as free again as the other rack's."""
    nodes = [node(name, labels={RACK: name[0]}) for name in ("a1", "a2", "b1", "b2")]
    one = claim(nodes=2, gang=ref("a"), policy=Policy.WAIT, topology=RACK)
    seen = view(nodes, ends(600, "a2"), ends(600, "b2"), members(2, gang="a"))
    assert choose(seen, one, {}, NOW).wanted == ("a1", "a2")
    lent = choose(seen, one, {"a1": "HeldForAnotherClaim"}, NOW, ahead=Ahead(ends={"a1": at(1100)}))
    assert (lent.wanted, lent.start_at) == (("a1", "a2"), at(1600))


def test_nodes_that_could_each_be_had_now_but_not_together_say_nothing_about_when() -> None:
    some = tuple(Candidate(node(name), occupied=True) for name in ("n1", "n2"))
    found = outlook((Domain("", some),), 2, NOW, NOW)
    assert (found.wanted, found.start_at) == (some, None)


def test_ends_are_known_from_pods_from_claims_and_of_pods_that_are_going() -> None:
    planned = (PhaseTime(Phase.PLANNED, at(900)),)
    running = pod("g-0", 8, ns="team-c", on="n1", gang="g", size=1, started=950)
    starting = msgspec.structs.replace(running, status=PodStatus(phase="Pending"))
    preview = claim("later", ns="team-c", gang=ref("g"), policy=Policy.PREVIEW, created=2)

    def expected(*pods: Any, run: str | None = "500s") -> object:
        theirs = claim("theirs", ns="team-c", gang=ref("g"), run=run, phase=Phase.BOUND, phases=planned)
        seen = view(node("n1"), pods, theirs, preview, members(1, gang="a"))
        return choose(seen, claim(gang=ref("a"), policy=Policy.WAIT), {}, NOW).start_at

    assert expected(running) == at(1450)
    assert expected(starting) == at(900 + MARGIN + 500), "what it promised when it chose the node"
    assert expected(running, run=None) is None
    assert expected(ends(600, "n1"), pod("going", on="n1", going=1010)) == at(1600)
    assert expected(small(1, "n1"), pod("going", on="n1", going=1010)) is None


def test_a_held_node_that_was_cordoned_is_not_counted_on() -> None:
    one = claim(gang=ref("a"), policy=Policy.WAIT)
    seen = view(node("n1", cordoned=True), members(1, gang="a"))
    found = choose(seen, one, {"n1": "HeldForAnotherClaim"}, NOW, ahead=Ahead(ends={"n1": at(1100)}))
    assert (found.wanted, found.start_at) == ((), None)


def test_a_lent_node_must_have_room_for_the_younger_gang_too() -> None:
    hungry = pod("b-0", containers=(container(8, cpu="64"),), ns="team-b", gang="b", size=1)
    seen = view(node("n1"), pod("web", 0, cpu="100", on="n1"), hungry)
    one = claim(gang=ref("b"), policy=Policy.WAIT, run="1s")
    found = choose(seen, one, {}, NOW, ahead=Ahead(kept={"n1": at(5000)}))
    assert (found.taken, found.reason) == ((), Reason.NO_USABLE_NODE)


def test_a_third_claim_does_not_count_on_a_lent_node() -> None:
    third = claim("third", gang=ref("c"), created=2)
    seen = view(node("n1"), members(1, gang="c"), third)
    ahead = Ahead(kept={"n1": at(5000)}, ends={"n1": at(1100)})
    found = choose(seen, third, {"n1": "HeldForAnotherClaim"}, NOW, ahead=ahead)
    assert (found.wanted, found.start_at) == ((), None)


def test_the_expected_run_is_the_longest_if_every_member_says_one() -> None:
    def spec(*runs: str | None) -> str | None:
        pods = [
            pod(f"train-{index}", 8, ns="team-b", gang="train", notes={EXPECTED_RUN: text} if text else {})
            for index, text in enumerate(runs)
        ]
        (found,) = gangs(pods, {}).values()
        return claim_spec(found, tuple(pods)).expected_run

    assert spec("90s", "1m", "1h") == "1h"
    assert spec("90s", None) is None
    assert spec("90s", "soon") is None
    assert spec("1." + "0" * 40 + "s") is None, "longer than the claim's field may be"


@pytest.mark.parametrize(
    ("landed", "stopped", "given_back"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_nodes_on_which_a_member_has_landed_or_was_stopped_for_are_not_given_back(
    landed: bool, stopped: bool, given_back: bool
) -> None:
    """It took nodes 2 min ago and promised to be gone in 40 s; the older claim waits for them."""
    uid = "uid-team-b-new"
    nodes = [node(name, labels={CLAIM_KEY: uid}, taints=(taint(uid),)) for name in ("n1", "n2")]
    held = [HeldNode(one.metadata.name, one.metadata.uid, NOW, NOW) for one in nodes]
    phases = (PhaseTime(Phase.PLANNED, at(880)), PhaseTime(Phase.LANDING, at(885)))
    more: dict[str, Any] = {
        "phases": phases,
        "victims": (Victim("team-v", "v", "v", "n1", 1, evicted_at=at(881)),) if stopped else (),
    }
    seen = view(
        nodes,
        members(2, gang="a"),
        pod("b-0", 8, ns="team-b", gang="b", size=2, on="n1" if landed else None),
        members(2, gang="b")[1],
        claim("old", nodes=2, gang=ref("a"), policy=Policy.WAIT),
        claim("new", nodes=2, gang=ref("b"), run="100s", created=1, phase=Phase.LANDING, held=held, **more),
    )
    new = statuses(seen)["new"]
    assert (new.phase is Phase.BLOCKED and new.reason == Reason.OLDER_CLAIM) is given_back


def test_the_end_stays_known_while_the_taint_outlives_the_claims_last_step() -> None:
    uid, phases = "uid-team-b-first", (PhaseTime(Phase.PLANNED, at(900)),)
    held = [HeldNode("n1", "node-n1", at(901), at(903))]
    seen = view(
        node("n1", taints=(taint(uid),)),
        pod("a-0", 8, ns="team-b", gang="a", size=1, on="n1", started=905),
        members(1, gang="b"),
        claim("first", gang=ref("a"), run="500s", phase=Phase.BOUND, held=held, phases=phases),
        claim("second", gang=ref("b"), policy=Policy.WAIT, created=1),
    )
    plan = statuses(seen)["second"].plan
    assert plan is not None
    assert plan.expected_free_at == at(900 + MARGIN + 500)


def test_the_end_of_a_claim_that_takes_nodes_now_is_known_at_once() -> None:
    first = claim("first", gang=ref("a"), policy=Policy.WAIT, run="100s")
    second = claim("second", gang=ref("b"), policy=Policy.WAIT, created=1)
    found = statuses(view(node("n1"), members(1, gang="a"), members(1, gang="b"), first, second))
    plan = found["second"].plan
    assert plan is not None
    assert plan.expected_free_at == at(1100 + MARGIN)
