"""The stand-in of HAMi: its annotations, its rule of fit for each card, its policies; held against our own reading."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet import hami as ours
from fleet.objects import Container, Pod, Resources
from kwok.hami.devices import (
    ALLOCATED,
    BOOKED_NODE,
    TO_ALLOCATE,
    Ask,
    Device,
    Part,
    ask,
    decode,
    encode,
    read_register,
    write_register,
)
from kwok.hami.nodes import cards_of, shared_nodes
from kwok.hami.rules import Choice, Used, place, refusal
from kwok.nodes import CARD_MEMORY_MIB
from tests.fleet import builders
from tests.kwok.hamis import TENTH, Scene, a_pod, limits

CARD = Device("a", 0, 10, CARD_MEMORY_MIB, 100, "NVIDIA GeForce RTX 4090", health=True)
ANY, NOBODY = Choice(), frozenset[str]()
IDS = st.text("abcdef-0123456789", min_size=1, max_size=8)
PARTS = st.builds(Part, IDS, st.integers(0, 24_564), st.integers(0, 100))


# Annotations


def test_h12_the_device_list_is_written_as_hami_writes_it() -> None:
    tenth, whole = Part("GPU-a", 2456, 10), Part("GPU-b", 24564, 100)
    assert encode(((tenth,),)) == "GPU-a,NVIDIA,2456,10:;"
    assert encode(((), (tenth,))) == ";GPU-a,NVIDIA,2456,10:;", "an init container without cards"
    assert encode(((tenth, whole), ())) == "GPU-a,NVIDIA,2456,10:GPU-b,NVIDIA,24564,100:;;"


@given(st.lists(st.lists(PARTS, max_size=4).map(tuple), max_size=4).map(tuple))
def test_what_is_written_is_read_back_by_the_stand_in_and_by_us(segments: tuple[tuple[Part, ...], ...]) -> None:
    assert decode(encode(segments)) == segments
    read = ours.shares(_pod_with(encode(segments)))
    sums: dict[str, tuple[int, int, int]] = {}
    for part in (part for container in segments for part in container):
        memory, cores, slots = sums.get(part.id, (0, 0, 0))
        sums[part.id] = memory + part.memory, cores + part.cores, slots + 1
    assert {one.uuid: (one.memory_mib, one.cores, one.slots) for one in read} == sums, "each card once"


def _pod_with(devices: str) -> Pod:
    return builders.pod("p", notes={ALLOCATED: devices})


def test_h13_a_register_leaves_out_zeros_and_one_that_is_cut_or_old_has_no_cards() -> None:
    text = write_register(cards_of("n", 2, sick=(1,)))
    assert '"index":0' not in text
    assert '"health":false' not in text
    first, second = read_register(text)
    assert (first.index, first.health, second.index, second.health) == (0, True, 1, False)
    assert read_register(text.replace("NVIDIA GeForce", "Ascend")) == (), "cards of another vendor"
    for broken in (text[:-3], "GPU-a,10,24564,100,NVIDIA,0,true:", "{}", "[1]", ""):
        assert read_register(broken) == ()


# The rule of fit


@pytest.mark.parametrize(
    ("used", "wanted", "why"),
    [
        (Used(), Ask(1, 2456, 0, 10), None),
        (Used(), Ask(1, None, 100, 100), None),
        (Used(9, 9 * 2456, 90), Ask(1, 2456, 0, 10), None),
        (Used(9, 9 * 2457, 90), Ask(1, 2457, 0, 10), "CardInsufficientMemory"),
        (Used(10, 0, 0), Ask(1, 1, 0, 0), "CardTimeSlicingExhausted"),
        (Used(1, 1, 91), Ask(1, 2456, 0, 10), "CardInsufficientCore"),
        (Used(1, 0, 0), Ask(1, 10, 0, 100), "ExclusiveDeviceAllocateConflict"),
        (Used(1, 1, 100), Ask(1, 1, 0, 0), "CardComputeUnitsExhausted"),
        (Used(1, 1, 1), Ask(1, None, 100, 0), "CardInsufficientMemory"),
    ],
)
def test_a_card_is_refused_for_hamis_reason(used: Used, wanted: Ask, why: str | None) -> None:
    assert refusal(CARD, used, wanted, ANY, NOBODY) == why


def test_h14_an_ill_card_a_cordoned_one_and_the_pods_own_words_rule_cards_out() -> None:
    tenth = Ask(1, 2456, 0, 10)
    ill = Device("a", 0, 10, 1, 100, "NVIDIA", health=False)
    assert refusal(ill, Used(), tenth, ANY, NOBODY) == "CardNotHealth"
    assert refusal(CARD, Used(), tenth, ANY, frozenset({"a"})) == "CardCordoned"
    worded = {"nvidia.com/use-gputype": "A100"}
    assert refusal(CARD, Used(), tenth, Choice(notes=worded), NOBODY) == "CardTypeMismatch"
    assert refusal(CARD, Used(), tenth, Choice(notes={"nvidia.com/nouse-gpuuuid": "A"}), NOBODY) == "CardUuidMismatch"
    alone = Choice(card_policies=("mutex",))
    assert refusal(CARD, Used(1, 1, 1), tenth, alone, NOBODY) == "CardTimeSlicingExhausted"


@given(
    st.builds(Used, st.integers(0, 10), st.integers(0, CARD_MEMORY_MIB), st.integers(0, 100)),
    st.sampled_from([None, 0, 1, 1000, 2456, CARD_MEMORY_MIB]),
    st.sampled_from([None, 0, 10, 50, 100]),
    st.sampled_from([None, 0, 10, 100]),
)
def test_our_rule_of_fit_says_what_the_stand_ins_says(
    used: Used, memory: int | None, percentage: int | None, cores: int | None
) -> None:
    """Two readings of the same facts: where they part, one of them is wrong."""
    resources = limits(1, memory=memory, percentage=percentage, cores=cores)
    theirs = ask({"resources": {"limits": resources}})
    mine = ours.wish(Container("c", Resources(limits=resources)))
    assert theirs is not None
    assert mine is not None
    card = ours.Card("a", 10, CARD_MEMORY_MIB, 100, health=True)
    fits = ours.fits(card, ours.Use(used.slots, used.memory, used.cores), mine)
    assert fits == (refusal(CARD, used, theirs, ANY, NOBODY) is None)


def test_h01_capacity_is_cards_not_shares_and_nine_never_fit() -> None:
    (node,) = shared_nodes(1)
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "80"
    eight = cards_of("n", 8)
    assert place((), (Ask(8, None, 100, 100),), eight, {}, ANY).segments is not None
    nine = place((), (Ask(9, 1, 0, 1),), eight, {}, ANY)
    assert nine.message(8) == "8/8 NodeInsufficientDevice"


def test_one_container_gets_different_cards_and_two_may_get_the_same() -> None:
    one_card = cards_of("n", 1)
    tenth = Ask(1, 2456, 0, 10)
    assert place((), (tenth, tenth), one_card, {}, ANY).segments is not None
    assert place((), (Ask(1, None, 100, 100), tenth), one_card, {}, ANY).segments is None
    assert place((Ask(1, None, 100, 100),), (tenth,), one_card, {}, ANY).segments is not None, "one after the other"


# Choosing


@pytest.mark.parametrize(("policy", "cards"), [("binpack", 1), ("spread", 8)])
async def test_h02_the_card_policy_decides_how_many_cards_eight_tenths_touch(policy: str, cards: int) -> None:
    scene = Scene(1, card_policy=policy)
    for number in range(8):
        pod = scene.arrives(a_pod(f"p{number}", TENTH))
        assert (await scene.filter(pod))["NodeNames"] == ["n-000"]
    assert len(scene.ledger.usage("n-000")) == cards
    whole = await scene.filter(scene.arrives(a_pod("whole", limits(8, cores=100))))
    assert whole["NodeNames"] is None
    assert whole["FailedNodes"] == {"n-000": f"{cards}/8 CardInsufficientMemory"}
    await scene.extender.told()
    assert scene.store.said[-1] == ("FilteringFailed", f"no available node, {cards}/8 CardInsufficientMemory")


async def test_the_node_policy_fills_one_node_or_all_and_the_pod_may_say_otherwise() -> None:
    for policy, nodes in (("binpack", 1), ("spread", 2)):
        scene = Scene(2, node_policy=policy)
        for number in range(2):
            await scene.filter(scene.arrives(a_pod(f"p{number}", TENTH)))
        assert len({one.node for one in scene.ledger.bookings.values()}) == nodes
        other = {"hami.io/node-scheduler-policy": "spread" if policy == "binpack" else "binpack"}
        await scene.filter(scene.arrives(a_pod("other", TENTH, notes=other)))
        assert len({one.node for one in scene.ledger.bookings.values()}) == 2


async def test_filter_books_marks_and_names_one_node_and_lets_other_pods_pass() -> None:
    scene = Scene(3)
    pod = scene.arrives(a_pod("p", TENTH))
    answer = await scene.filter(pod)
    (node,) = answer["NodeNames"]
    notes = scene.store.notes("p")
    assert notes[BOOKED_NODE] == node
    assert notes[ALLOCATED] == notes[TO_ALLOCATE] == f"GPU-{node}-7,NVIDIA,2456,10:;"
    assert pod["metadata"]["labels"][BOOKED_NODE] == node
    nothing = await scene.filter(scene.arrives(a_pod("plain", {"cpu": "1"})))
    assert nothing["NodeNames"] == ["n-000", "n-001", "n-002"]


async def test_e02_whole_nodes_in_the_question_are_a_game_in_which_nothing_is_booked() -> None:
    scene = Scene(2)
    await scene.filter(scene.arrives(a_pod("first", limits(8, cores=100))))
    nodes = shared_nodes(2, prefix="n")
    pod = scene.arrives(a_pod("p", limits(8, cores=100)))
    answer = await scene.extender.filter({"Pod": pod, "Nodes": {"items": nodes}, "NodeNames": None})
    assert len(answer["Nodes"]["items"]) == 2, "all cards are taken for free"
    assert len(scene.ledger.bookings) == 1
    assert BOOKED_NODE not in scene.store.notes("p")
