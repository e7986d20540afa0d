"""Where the extender lets pods go: each rule of placement, and the reasons in their constant words."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.board import Board, Refused
from fleet.marks import taint
from fleet.names import CLAIM_KEY
from fleet.objects import Node, Pod, Toleration
from fleet.placement import judge, not_ready, scores
from fleet.requests import Classifier
from fleet.resources import Accepts, DrainAgreement, GPUPool, Overflow, Phase, WholeNodeClaim
from tests.fleet.builders import T0, agreement, claim, container, node, owned, pod, pool, ref

SMALL = pool("small", accepts=Accepts.SMALL)
BIG = pool("big", overflow=Overflow.NEVER)
LENT = pool("big", overflow=Overflow.RECLAIMABLE)


def board(*objects: Any, now: Any = T0) -> Board:
    def of(kind: Any) -> list[Any]:
        return [one for one in objects if isinstance(one, kind)]

    return Board.of(Classifier.of(of(GPUPool)), of(Node), of(WholeNodeClaim), of(DrainAgreement), now)


def held(name: str, uid: str, *, opened: bool) -> Node:
    return node(name, taints=(taint(uid),), labels={CLAIM_KEY: uid} if opened else {})


def reasons(one: Pod, names: list[str], where: Board) -> dict[str, Refused | None]:
    placement = judge(one, names, where)
    return {**dict.fromkeys(placement.passed), **placement.refused, **placement.for_now}


def nominated(one: Pod, name: str) -> Pod:
    return msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, nominated_node_name=name))


def test_e03_a_pod_without_cards_may_have_every_node_in_the_order_asked() -> None:
    names = [f"n{number}" for number in (3, 1, 2)] + ["never-seen", "held"]
    where = board(BIG, SMALL, node("n1"), node("n2", "small"), node("n3"), held("held", "u", opened=False))
    placement = judge(pod("web", 0), names, where)
    assert placement.passed == names
    assert not placement.refused


def test_p16_a_limit_of_zero_cards_is_no_gpu_pod() -> None:
    zero = pod("web", containers=(container("0"),))
    assert judge(zero, ["big-1", "unknown"], board(BIG, node("big-1"))).passed == ["big-1", "unknown"]


def test_p01_small_pods_go_to_the_small_pool_and_to_nodes_of_no_pool() -> None:
    where = board(BIG, SMALL, node("b"), node("s", "small"), node("free", ""))
    assert reasons(pod("one", 1), ["b", "s", "free"], where) == {"b": Refused.WHOLE_NODE_POOL, "s": None, "free": None}


def test_p02_p18_whole_node_pods_go_to_no_idle_node_by_themselves() -> None:
    where = board(BIG, SMALL, node("b"), node("s", "small"), node("free", ""))
    assert set(reasons(pod("all", 8), ["b", "s", "free"], where).values()) == {Refused.WAITING}


@pytest.mark.parametrize(
    ("containers", "inits"),
    [((container(4), container(4)), None), ((container(1),), (container(8),))],
    ids=["p04-two-containers-of-four", "p05-init-container-of-eight"],
)
def test_whole_node_class_is_counted_over_containers(containers: Any, inits: Any) -> None:
    one = pod("all", containers=containers, inits=inits)
    assert reasons(one, ["s"], board(BIG, SMALL, node("s", "small"))) == {"s": Refused.WAITING}


def test_p06_more_cards_than_any_node_has_is_said_at_once() -> None:
    assert reasons(pod("nine", 9), ["b", "x"], board(BIG, SMALL, node("b"))) == dict.fromkeys(
        ["b", "x"], Refused.IMPOSSIBLE
    )


def test_what_no_pools_node_has_cards_for_may_still_have_a_node_of_no_pool() -> None:
    where = board(pool("fours", cards=4), node("f", "fours", cards=4), node("free", ""))
    assert reasons(pod("eight", 8), ["f", "free", "unknown"], where) == {
        "f": Refused.IMPOSSIBLE,
        "free": None,
        "unknown": Refused.IMPOSSIBLE,
    }


def test_p08_a_node_of_two_pools_takes_nobody_new() -> None:
    both = node("both", "big", labels={"rack": "r1"})
    where = board(BIG, pool("rack", accepts=Accepts.SMALL, labels={"rack": "r1"}), both)
    assert reasons(pod("one", 1), ["both"], where) == {"both": Refused.POOL_CONFLICT}
    assert reasons(pod("all", 8), ["both"], where) == {"both": Refused.POOL_CONFLICT}


def test_p15_idle_whole_nodes_are_lent_only_to_namespaces_that_agreed() -> None:
    where = board(LENT, node("b"), agreement(ns="team-v"))
    assert reasons(pod("one", 1, ns="team-v"), ["b"], where) == {"b": None}
    assert reasons(pod("one", 1, ns="team-w"), ["b"], where) == {"b": Refused.NO_AGREEMENT}


def test_d35_a_void_agreement_lends_nothing() -> None:
    expired = board(LENT, node("b"), agreement(ns="team-v", expires=-1))
    assert reasons(pod("one", 1, ns="team-v"), ["b"], expired) == {"b": Refused.NO_AGREEMENT}
    fresh = board(BIG, node("b"), agreement(ns="team-v"))
    assert reasons(pod("one", 1, ns="team-v"), ["b"], fresh) == {"b": Refused.WHOLE_NODE_POOL}


@pytest.mark.parametrize("opened", [False, True], ids=["held", "released"])
@pytest.mark.parametrize("in_pool", ["big", "small", ""])
def test_d10_a_small_pod_that_tolerates_everything_gets_no_held_node(opened: bool, in_pool: str) -> None:
    one = pod("one", 1, ns="team-v", tolerations=(Toleration(operator="Exists"),))
    marked = node("n", in_pool, taints=(taint("u"),), labels={CLAIM_KEY: "u"} if opened else {})
    assert reasons(one, ["n"], board(LENT, SMALL, agreement(ns="team-v"), marked)) == {"n": Refused.HELD}


def test_a_label_that_a_bound_gang_still_needs_closes_the_node_to_nobody_and_opens_it_to_nobody() -> None:
    served = node("n", labels={CLAIM_KEY: "uid-team-b-mine"})
    where = board(LENT, agreement(ns="team-v"), served, claim("mine", phase=Phase.READY))
    assert reasons(pod("one", 1, ns="team-v"), ["n"], where) == {"n": None}
    assert reasons(pod("train-0", 8, ns="team-b", gang="train", size=1), ["n"], where) == {"n": Refused.WAITING}


def test_a_gang_gets_the_nodes_released_to_its_claim_and_no_other() -> None:
    mine, other = claim("mine", phase=Phase.READY), claim("other", gang=ref("else"), phase=Phase.READY)
    nodes = [
        held("mine", mine.metadata.uid, opened=True),
        held("other", other.metadata.uid, opened=True),
        held("held", mine.metadata.uid, opened=False),
        node("idle"),
    ]
    where = board(BIG, mine, other, *nodes)
    names = ["mine", "other", "held", "idle", "unknown"]
    assert reasons(pod("a", 8, ns="team-b", gang="train"), names, where) == {
        "mine": None,
        "other": Refused.OTHERS_NODE,
        "held": Refused.OTHERS_NODE,
        "idle": Refused.OTHERS_NODE,
        "unknown": Refused.NODE_UNKNOWN,
    }


def test_e07_while_the_gangs_node_is_only_held_it_waits() -> None:
    mine = claim("mine", phase=Phase.DRAINING)
    where = board(BIG, mine, held("held", mine.metadata.uid, opened=False))
    assert reasons(pod("a", 8, ns="team-b", gang="train"), ["held"], where) == {"held": Refused.WAITING}


def test_g09_g10_a_namesake_of_another_namespace_or_owner_is_no_member() -> None:
    gang = ref("train", uid="rs-1")
    mine = claim("mine", gang=gang, phase=Phase.READY)
    where = board(BIG, mine, held("n", mine.metadata.uid, opened=True))
    member = pod("a", 8, ns="team-b", gang="train", owner=owned("ReplicaSet", "x", "rs-1"))
    assert reasons(member, ["n"], where) == {"n": None}
    recreated = pod("a", 8, ns="team-b", gang="train", owner=owned("ReplicaSet", "x", "rs-1"), uid="new")
    assert reasons(recreated, ["n"], where) == {"n": None}
    for stranger in (
        pod("a", 8, ns="team-b", gang="train", owner=owned("ReplicaSet", "x", "rs-2")),
        pod("a", 8, ns="team-b", gang="train"),
        pod("a", 8, ns="team-c", gang="train", owner=owned("ReplicaSet", "x", "rs-1")),
        pod("a", 8, ns="team-b"),
    ):
        assert reasons(stranger, ["n"], where)["n"] is not None


@pytest.mark.parametrize("phase", [Phase.BOUND, Phase.RELEASED, Phase.ROLLED_BACK, Phase.FAILED])
def test_an_ended_claims_label_opens_nothing(phase: Phase) -> None:
    mine = claim("mine", phase=phase)
    where = board(BIG, mine, held("n", mine.metadata.uid, opened=True))
    assert reasons(pod("a", 8, ns="team-b", gang="train"), ["n"], where)["n"] is not None
    assert reasons(pod("one", 1), ["n"], where) == {"n": Refused.HELD}


def test_a_label_without_a_claim_opens_nothing() -> None:
    where = board(BIG, held("n", "nobody", opened=True))
    assert reasons(pod("a", 8, ns="team-b", gang="train"), ["n"], where) == {"n": Refused.WAITING}


def test_e06_a_no_for_now_of_the_nominated_node_is_kept_apart() -> None:
    mine = claim("mine", phase=Phase.DRAINING)
    where = board(BIG, SMALL, mine, held("n1", mine.metadata.uid, opened=False), node("n2"))
    whole = judge(nominated(pod("a", 8, ns="team-b", gang="train"), "n1"), ["n1", "n2"], where)
    assert (whole.for_now, whole.refused) == ({"n1": Refused.WAITING}, {"n2": Refused.WAITING})
    small = judge(nominated(pod("one", 1), "n1"), ["n1", "n2"], where)
    assert (small.for_now, small.refused) == ({"n1": Refused.HELD}, {"n2": Refused.WHOLE_NODE_POOL})


def test_e06_a_lasting_no_of_the_nominated_node_stays_final() -> None:
    where = board(BIG, node("n2"))
    small = judge(nominated(pod("one", 1), "n2"), ["n2"], where)
    assert (small.for_now, small.refused) == ({}, {"n2": Refused.WHOLE_NODE_POOL})


def test_e20_before_the_caches_are_full_gpu_pods_wait_and_others_pass() -> None:
    names = ["n1", "n2"]
    assert not_ready(pod("one", 1), names, Classifier.of(())).refused == dict.fromkeys(names, Refused.NOT_READY)
    assert not_ready(nominated(pod("all", 8), "n1"), names, Classifier.of(())).for_now == {"n1": Refused.NOT_READY}
    assert not_ready(pod("web", 0), names, Classifier.of(())).passed == names


def test_e15_reasons_are_constant_texts_without_names_or_numbers() -> None:
    for reason in Refused:
        assert reason.startswith("wholenode: ")
        assert not any(character.isdigit() for character in reason)
    assert len({str(reason) for reason in Refused}) == len(Refused)


def test_p07_fuller_nodes_of_the_small_pool_come_first_and_lent_ones_last() -> None:
    names = [*(f"s{used}" for used in range(8)), "b0", "b1", "b7"]
    where = board(LENT, SMALL, *(node(name, "small" if name[0] == "s" else "big") for name in names))
    used = {name: int(name[1]) for name in names}
    scored = dict(scores(pod("one", 1), [*names, "unknown"], where, used))
    assert [scored[f"s{number}"] for number in range(8)] == sorted({scored[f"s{number}"] for number in range(8)})
    assert scored["s0"] > scored["b7"] >= scored["b1"] > scored["b0"] >= scored["unknown"]
    assert all(type(score) is int and 0 <= score <= 10 for score in scored.values())


@given(cards=st.integers(1, 64), used=st.integers(0, 64))
def test_p07_a_touched_node_always_wins_over_an_untouched_one(cards: int, used: int) -> None:
    for kind in (pool("small", accepts=Accepts.SMALL, cards=cards), pool("small", cards=cards)):
        where = board(kind, node("touched", "small"), node("untouched", "small"))
        scored = dict(scores(pod("p", 1), ["touched", "untouched"], where, {"touched": used}))
        if used and cards > 1:
            assert 10 >= scored["touched"] > scored["untouched"] >= 0
        else:
            assert scored["touched"] >= scored["untouched"]


NODES = [
    node("b1"),
    node("s1", "small"),
    node("none", ""),
    held("h1", "uid-team-b-c", opened=True),
    held("h2", "x", opened=False),
]


@given(
    cards=st.integers(0, 10),
    names=st.lists(st.sampled_from([*(one.metadata.name for one in NODES), "unknown"]), unique=True),
    nominee=st.sampled_from(["", "b1", "h2", "unknown"]),
    gang=st.sampled_from([None, "train", "else"]),
)
def test_e04_e05_every_name_is_answered_exactly_once_and_none_is_added(
    cards: int, names: list[str], nominee: str, gang: str | None
) -> None:
    where = board(LENT, SMALL, claim(phase=Phase.READY), agreement(ns="team-b"), *NODES)
    one = nominated(pod("p", cards, ns="team-b", gang=gang), nominee)
    placement = judge(one, names, where)
    answered = [*placement.passed, *placement.refused, *placement.for_now]
    assert sorted(answered) == sorted(names)
    assert placement.passed == [name for name in names if name in set(placement.passed)]
    assert set(placement.for_now) <= {nominee}
    assert [name for name, _ in scores(one, names, where, {})] == names


def test_the_board_is_not_changed_by_questions() -> None:
    where = board(LENT, SMALL, claim(phase=Phase.READY), *NODES)
    before = {name: copy.copy(part) for name, part in vars(where).items()}
    for cards in range(10):
        judge(pod("p", cards), [one.metadata.name for one in NODES], where)
    assert vars(where) == before
