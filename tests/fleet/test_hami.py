"""Shares of cards as HAMi hands them out: what pods ask for, what they hold, and where they still fit."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.fitness import Obstacle, lack_of_room, obstacle, usable_cards, whole
from fleet.hami import ALLOCATED, Card, Share, Use, cards_of, fits, shares, wish, wishes
from fleet.names import DEFAULT_RESOURCE
from fleet.objects import Container, PodSpec
from fleet.requests import Classifier, Request, RequestClass
from fleet.resources import Accepts
from fleet.tally import Tally, free_cards
from tests.fleet.builders import container, node, pod, pool, view
from tests.fleet.shares import CARD_MIB, asking, shared_node, sharing

GPU = DEFAULT_RESOURCE
BIG, SMALL = pool("big"), pool("small", accepts=Accepts.SMALL)
CLASSES = Classifier.of([BIG, SMALL])
TENTH = asking(1, memory=2456, cores=10)


def classified(*containers: Container, inits: tuple[Container, ...] | None = None) -> Request:
    return CLASSES.classify(pod("p", containers=containers, inits=inits))


def test_a_node_whose_device_plugin_is_gone_has_no_cards_though_its_register_stays() -> None:
    """As with HAMi: it drops a node's devices when the kubelet offers none of them any more."""
    found = shared_node("n", "big")
    none = {**(found.status.allocatable or {}), GPU: "0"}
    gone = msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, allocatable=none, capacity=none))
    assert usable_cards(found, GPU) == 8
    assert usable_cards(gone, GPU) == 0
    assert free_cards(gone, GPU, Tally().on("n")) == 0
    assert obstacle(gone, BIG, (), "") is Obstacle.MISSING_CARDS


LISTS = "c0,NVIDIA,2000,20:;"


@pytest.mark.parametrize(
    ("inits", "text", "held"),
    [
        ((TENTH,), LISTS + "c0,NVIDIA,3000,10:;", Share("c0", 3000, 20)),
        ((TENTH, TENTH), LISTS * 2 + "c0,NVIDIA,1000,10:;", Share("c0", 2000, 20)),
        ((container(), TENTH), LISTS + "c0,NVIDIA,3000,10:;", Share("c0", 3000, 20)),
        ((container(), TENTH), ";" + LISTS + "c0,NVIDIA,3000,10:;", Share("c0", 3000, 20)),
        ((container(),), LISTS, Share("c0", 2000, 20)),
        ((TENTH,), LISTS + ";", Share("c0", 2000, 20)),
        ((), LISTS, Share("c0", 2000, 20)),
    ],
    ids=["one", "two", "left out", "empty list", "main's alone", "init's alone", "none"],
)
def test_of_init_containers_and_the_others_the_larger_share_counts(
    inits: tuple[Container, ...], text: str, held: Share
) -> None:
    """As with HAMi 2.10, which leaves out the lists of init containers without cards (HAMi#2899)."""
    assert shares(pod("p", notes={ALLOCATED: text}, containers=(TENTH,), inits=inits)) == (held,)


def test_containers_that_run_together_add_up() -> None:
    one = pod("p", notes={ALLOCATED: LISTS * 2}, containers=(TENTH, TENTH))
    assert shares(one) == (Share("c0", 4000, 40, slots=2),)


@pytest.mark.parametrize(
    ("asked", "cards", "wanted", "shared"),
    [
        (asking(8), 8, RequestClass.WHOLE_NODE, False),
        (asking(8, cores=100), 8, RequestClass.WHOLE_NODE, False),
        (asking(8, percentage=100), 8, RequestClass.WHOLE_NODE, False),
        (asking(8, memory=1000), 8, RequestClass.SMALL, True),
        (asking(8, percentage=50), 8, RequestClass.SMALL, True),
        (asking(8, cores=50), 8, RequestClass.WHOLE_NODE, False),
        (asking(1, memory=2456, cores=10), 1, RequestClass.SMALL, True),
        (asking(memory=2456), 1, RequestClass.SMALL, True),
        (asking(cores=10), 1, RequestClass.SMALL, False),
        (asking(9, memory=1000), 9, RequestClass.IMPOSSIBLE, True),
        (asking(0, memory=1000), 0, RequestClass.NONE, False),
        (asking(memory=0), 0, RequestClass.NONE, False),
    ],
)
def test_h03_h04_eight_shares_are_no_whole_node(
    asked: Container, cards: int, wanted: RequestClass, *, shared: bool
) -> None:
    found = classified(asked)
    assert (found.cards, found.request_class, found.shared) == (cards, wanted, shared)


def test_shares_of_several_containers_add_up_and_one_part_makes_the_pod_share() -> None:
    assert classified(asking(4, cores=100), asking(4, cores=100)).request_class is RequestClass.WHOLE_NODE
    mixed = classified(asking(4, cores=100), asking(4, memory=1000))
    assert (mixed.cards, mixed.request_class, mixed.shared) == (8, RequestClass.SMALL, True)
    assert classified(TENTH, inits=(asking(8, cores=100),)).cards == 8


def test_a_quantity_that_cannot_be_read_asks_for_nothing() -> None:
    assert classified(asking(1, memory="5x")).request_class is RequestClass.NONE  # type: ignore[arg-type]


def test_h01_h14_cards_are_those_of_the_register_not_the_shares_in_allocatable() -> None:
    assert usable_cards(shared_node("n"), GPU) == 8
    assert usable_cards(node("plain"), GPU) == 8
    assert usable_cards(shared_node("n", sick=(3,)), GPU) == 7, "7 of 8: one is unhealthy"
    assert usable_cards(shared_node("n", cordon="n-0, n-5"), GPU) == 6
    assert usable_cards(shared_node("n"), "other.com/gpu") == 0
    assert whole(shared_node("n", "big"), BIG)
    assert not whole(shared_node("n", "big", sick=(0,)), BIG)


def test_h13_a_register_that_cannot_be_read_has_no_cards() -> None:
    broken = node("n", labels={"x": "y"})
    metadata = msgspec.structs.replace(broken.metadata, annotations={"hami.io/node-nvidia-register": "GPU-a,10,..."})
    assert cards_of(msgspec.structs.replace(broken, metadata=metadata)) == ()
    assert cards_of(broken) is None


def test_h12_the_device_list_is_read_container_by_container() -> None:
    text = ";GPU-a,NVIDIA,2456,10:;GPU-b,NVIDIA,24564,100:GPU-c,NVIDIA,24564,100:;"
    one = pod("p", notes={"hami.io/vgpu-devices-allocated": text})
    assert shares(one) == (Share("GPU-a", 2456, 10), Share("GPU-b", 24564, 100), Share("GPU-c", 24564, 100))
    for garbage in ("", ";", "GPU-a", "GPU-a,NVIDIA,many,10", "GPU-a,NVIDIA,1"):
        assert shares(pod("p", notes={"hami.io/vgpu-devices-allocated": garbage})) == ()


CARD = Card("a", 10, CARD_MIB, 100, health=True)


def test_a_card_has_room_by_shares_memory_and_cores() -> None:
    tenth = wish(TENTH)
    exclusive = wish(asking(1, cores=100))
    free_cores = wish(asking(1, memory=100))
    assert tenth is not None
    assert exclusive is not None
    assert free_cores is not None
    assert fits(CARD, Use(), tenth)
    assert fits(CARD, Use(9, 9 * 2456, 90), tenth), "ten of 2456 MiB fit into 24564"
    assert not fits(CARD, Use(10, 0, 0), tenth), "no share is left"
    assert not fits(CARD, Use(1, CARD_MIB - 2455, 10), tenth), "a MiB is missing"
    assert not fits(CARD, Use(1, 100, 91), tenth), "a percent of the cores is missing"
    assert not fits(CARD, Use(1, 0, 0), exclusive), "a whole card is taken only if nobody is on it"
    assert fits(CARD, Use(), exclusive)
    assert fits(CARD, Use(1, 100, 99), free_cores)
    assert not fits(CARD, Use(1, 100, 100), free_cores), "all cores are given away"


def test_containers_of_one_pod_may_share_a_card_but_one_container_wants_different_cards() -> None:
    card = (CARD,)
    together = wishes(PodSpec(containers=(TENTH, TENTH)))
    assert together.fit_on(card, {})
    assert not together.fit_on(card, {"a": Use(9, 9 * 2456, 90)})
    assert not wishes(PodSpec(containers=(asking(2, memory=100),))).fit_on(card, {})
    before = wishes(PodSpec(containers=(TENTH,), init_containers=(asking(1, cores=100),)))
    assert before.fit_on(card, {})
    assert not before.fit_on(card, {"a": Use(1, 1, 1)}), "the init container needs a card of its own"


def test_ten_shares_of_one_card_are_one_card_in_use() -> None:
    pods = [sharing(f"p{number}", "n", {0: (2456, 10)}) for number in range(10)]
    seen = view(BIG, SMALL, shared_node("n"), pods)
    use = seen.tally.on("n")
    assert use.touched == 1
    assert (use.cards["n-0"].slots, use.cards["n-0"].memory_mib, use.cards["n-0"].cores) == (10, 24560, 100)


def test_h02_a_tenth_of_each_of_eight_cards_leaves_no_whole_node() -> None:
    pods = [sharing(f"p{index}", "n", {index: (2456, 10)}) for index in range(8)]
    one = shared_node("n", "big")
    seen = view(BIG, one, pods)
    assert seen.tally.on("n").touched == 8
    assert free_cards(one, GPU, seen.tally.on("n")) == 0, "although 72 of its 80 shares are free"


def test_h06_a_terminating_pod_is_counted_until_it_is_gone() -> None:
    going = sharing("p", "n", {0: (100, 0)}, going=1)
    assert view(BIG, shared_node("n"), going).tally.on("n").touched == 1


def test_h05_a_pod_is_counted_where_hami_booked_it_before_it_is_bound() -> None:
    booked = sharing("p", "n", {0: (100, 0), 1: (100, 0)}, bound=False)
    seen = view(BIG, SMALL, shared_node("n"), booked)
    assert seen.tally.on("n").touched == 2
    assert seen.gpu_pods_on("n") == (booked,), "so the node is not untouched"
    ended = sharing("q", "n", {0: (100, 0)}, phase="Succeeded")
    assert view(BIG, shared_node("n"), ended).tally.on("n").touched == 0


def test_h07_a_pod_hami_does_not_know_takes_whole_cards() -> None:
    by_hand = pod("p", 3, on="n")
    assert view(BIG, shared_node("n"), by_hand).tally.on("n").touched == 3


def test_a_whole_node_pod_with_cores_has_room_although_nodes_do_not_offer_cores() -> None:
    member = pod("all", containers=(asking(8, cores=100),))
    assert lack_of_room(shared_node("n", "big"), (), (member,), GPU) is None
    assert lack_of_room(node("plain"), (), (member,), GPU) is not None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]), st.sampled_from(["n1", "n2", ""]), st.integers(0, 3), st.booleans()
        ),
        max_size=30,
    )
)
def test_the_tally_kept_by_changes_is_the_tally_counted_anew(
    history: list[tuple[str, str, int, bool]],
) -> None:
    ranks = {"n1": 100, "n2": 200}
    kept, now = Tally(), {}
    for where, rank in ranks.items():
        kept.rank(where, rank)
    for name, where, cards, shared in history:
        if not where:
            kept.drop(f"team-v.{name}")
            now.pop(name, None)
            continue
        one = (
            sharing(name, where, dict.fromkeys(range(cards), (100, 5)))
            if shared and cards
            else pod(name, on=where, containers=(container(cards),))
        )
        now[name] = one
        kept.put(one, CLASSES.classify(one))
    anew = Tally((one, CLASSES.classify(one)) for one in now.values())
    for where, rank in ranks.items():
        anew.rank(where, rank)
    assert (kept.touched, kept.order) == (anew.touched, anew.order)
    for where in ("n1", "n2"):
        assert kept.on(where) == anew.on(where)


def test_containers_that_have_parts_of_cards_may_have_them_of_the_same_ones() -> None:
    asked = classified(asking(5, memory=2456, cores=10), asking(5, memory=2456, cores=10))
    assert (asked.cards, asked.request_class) == (5, RequestClass.SMALL)
    assert classified(asking(5, cores=100), asking(5, cores=100)).request_class is RequestClass.IMPOSSIBLE


def test_a_sick_card_that_is_still_held_is_not_missing_twice() -> None:
    node_, held = shared_node("n", sick=(0,)), sharing("p", "n", {0: (100, 1)})
    assert free_cards(node_, GPU, view(BIG, node_, held).tally.on("n")) == 7
    plain = node("m", cards=7)
    assert free_cards(plain, GPU, view(BIG, plain, pod("q", 2, on="m")).tally.on("m")) == 5


@pytest.mark.parametrize(
    ("register", "readable"),
    [
        ('[{"id":"a","count":10,"devmem":1,"devcore":100,"health":true}]', True),
        ("[]", True),
        ('[{"id":"a","count":10,"devm', False),
        ("GPU-a,10,24564,100,NVIDIA-4090,0,true:", False),
        ("{}", False),
        ("", False),
    ],
)
def test_h13_a_register_that_is_cut_off_or_of_the_old_form_is_named_as_such(register: str, *, readable: bool) -> None:
    plain = node("n", "big")
    notes = {"hami.io/node-nvidia-register": register}
    marked = msgspec.structs.replace(plain, metadata=msgspec.structs.replace(plain.metadata, annotations=notes))
    why = obstacle(marked, BIG, (), "")
    assert why is (Obstacle.MISSING_CARDS if readable else Obstacle.UNREADABLE)
    assert obstacle(marked, pool("other", resource="example.com/gpu"), (), "") is Obstacle.MISSING_CARDS


def test_init_containers_that_ask_for_the_same_are_looked_at_once() -> None:
    """One after the other they need no more than one of them; there may be thousands."""
    asked = wishes(pod("p", containers=(TENTH,), inits=(TENTH,) * 4000).spec)
    assert (len(asked.before), len(asked.together)) == (1, 1)
