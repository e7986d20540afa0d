"""Placement policy: spread over nodes, over cards, and settings that will do so."""

from fleet.doctor.findings import Code, Verdict
from fleet.doctor.policy import check
from fleet.hami import ALLOCATED, BOOKED_NODE
from fleet.resources import Drain
from tests.fleet.builders import agreement, node, pod, pool, view
from tests.fleet.doctor.pictures import OURS, codes, config, hami_program, only, placed, seen
from tests.fleet.shares import asking, shared_node, sharing

PLAIN = [node(f"n{index:02}") for index in range(50)]


def test_280_cards_free_and_no_whole_node() -> None:
    """120 single-card pods, spread: each of 50 nodes has two or three."""
    pods = [placed(f"p{index}", f"n{index % 50:02}", bound=index) for index in range(120)]
    found = only(check(seen(PLAIN, pods, now=600)), Code.NO_WHOLE_NODE)
    assert found.verdict is Verdict.PROBLEM
    assert found.summary.startswith(
        "280 cards are free and no node is whole: small pods hold 120 cards on 50 of 50 nodes and would fit on 15, "
        "which would leave 35 whole"
    )
    assert found.evidence["nodesBySmallPods"] == {"2": 30, "3": 20}
    assert found.evidence["wholeNodesIfPacked"] == 35
    assert "MostAllocated" in found.fix


def test_a_full_fleet_with_its_last_cards_here_and_there() -> None:
    """392 of 400 cards are in use: packing would make one node whole."""
    pods = [placed(f"p{index}", f"n{index % 50:02}", bound=index) for index in range(392)]
    assert only(check(seen(PLAIN, pods, now=600)), Code.NO_WHOLE_NODE).verdict is Verdict.WARNING


def test_half_full_and_spread() -> None:
    """Twice the nodes that are needed are not in use, yet none is whole."""
    pods = [placed(f"p{index}", f"n{index % 50:02}", bound=index) for index in range(250)]
    assert only(check(seen(PLAIN, pods, now=600)), Code.NO_WHOLE_NODE).verdict is Verdict.PROBLEM


def test_nodes_that_can_be_vacated_under_agreements_are_a_warning() -> None:
    """Whole-node jobs get nodes all the same; as soon as one of a node's teams has not agreed, they do not."""
    nodes = [node(f"n{index:02}") for index in range(10)]
    pods = [pod(f"p{index}", 1, on=f"n{index:02}", ns="team-v") for index in range(10)]
    lent = only(check(seen(nodes, pods, pool(), agreement(ns="team-v"))), Code.NO_WHOLE_NODE)
    assert (lent.verdict, lent.evidence["nodesToVacate"]) == (Verdict.WARNING, 10)
    assert "; 10 can be vacated under agreements" in lent.summary
    others = [pod(f"o{index}", 1, on=f"n{index:02}", ns="team-x") for index in range(10)]
    for picture in (
        seen(nodes, pods, others, pool(), agreement(ns="team-v")),
        seen(nodes, pods, pool(drain=Drain.DISABLED), agreement(ns="team-v")),
    ):
        assert only(check(picture), Code.NO_WHOLE_NODE).verdict is Verdict.PROBLEM


def test_a_scoring_that_is_no_name_does_not_pack() -> None:
    args = {"scoringStrategy": {"type": ["MostAllocated"]}}
    profiles = [{"schedulerName": "a", "pluginConfig": [{"name": "NodeResourcesFit", "args": args}]}]
    assert codes(check(seen(PLAIN, scheduler_configs=(config(profiles=profiles),)))) == {Code.SPREADING_POLICY}


def test_the_trend_says_how_it_was_before_the_latest_pods_came() -> None:
    old = [placed(f"o{index}", "n00", bound=0) for index in range(3)]
    new = [placed(f"p{index}", f"n{index:02}", bound=3400 + index) for index in range(1, 41)]
    later = seen(PLAIN, old, new, now=3600)
    picture = seen(PLAIN, old, new[:10], now=3590)
    trend = only(check(later.after(picture)), Code.NODES_SPREAD).evidence["trend"]
    assert [(one["secondsAgo"], one["wholeNodes"]) for one in trend] == [
        (900, 49),
        (300, 49),
        (60, 9),
        (10.0, 39),
        (0, 9),
    ]
    assert [one["from"] for one in trend][-2:] == ["watching", "now"]


def test_packed_pods_are_fine() -> None:
    pods = [placed(f"p{index}", f"n{index // 8:02}", bound=index) for index in range(120)]
    [found] = check(seen(PLAIN, pods))
    assert found.verdict is Verdict.OK
    assert found.evidence["wholeNodesFree"] == 35


def test_nodes_of_whole_node_jobs_are_no_spreading() -> None:
    jobs = [placed(f"j{index}", f"n{index:02}", bound=1, cards=8) for index in range(40)]
    assert not codes(check(seen(PLAIN, jobs, placed("s", "n45", bound=1))))


def test_only_pools_for_whole_nodes_are_looked_at() -> None:
    pools = [pool("small", accepts=view().pools[0].spec.accepts.SMALL), pool("big")]
    nodes = [node(f"s{index}", "small") for index in range(10)] + [node(f"b{index}", "big") for index in range(4)]
    pods = [placed(f"p{index}", f"s{index}", bound=1) for index in range(10)]
    assert not codes(check(seen(pools, nodes, pods)))


def test_h02_eight_tenths_on_eight_cards() -> None:
    """HAMi's default: packed over nodes, spread over cards."""
    nodes = [shared_node(f"n{index}", "big") for index in range(4)]
    pods = [sharing(f"p{index}", f"n{index // 8}", {index % 8: (2456, 10)}) for index in range(16)]
    found = only(check(seen(nodes, pods)), Code.CARDS_SPREAD)
    assert (found.evidence["cardsTouched"], found.evidence["cardsNeeded"]) == (16, 2)
    assert "--gpu-scheduler-policy=binpack" in found.fix
    packed = [sharing(f"p{index}", "n0", {index // 8: (2456, 10)}) for index in range(16)]
    assert not codes(check(seen(nodes, packed)))


def test_settings_that_spread_are_a_warning_on_an_empty_fleet() -> None:
    [found] = check(seen(PLAIN, programs=(hami_program("--node-scheduler-policy=spread"),)))
    assert (found.code, found.verdict) == (Code.SPREADING_POLICY, Verdict.WARNING)
    assert len(found.evidence["policies"]) == 2
    assert "which is its default" in found.summary
    packing = hami_program("--node-scheduler-policy=binpack", "--gpu-scheduler-policy", "binpack")
    assert not codes(check(seen(PLAIN, programs=(packing,))))


def test_kube_schedulers_own_scores_spread_unless_we_choose() -> None:
    assert codes(check(seen(PLAIN, scheduler_configs=(config(),)))) == {Code.SPREADING_POLICY}
    assert not codes(check(seen(PLAIN, scheduler_configs=(config(OURS),))))
    args = {"scoringStrategy": {"type": "MostAllocated"}}
    profile = {"schedulerName": "default-scheduler", "pluginConfig": [{"name": "NodeResourcesFit", "args": args}]}
    assert not codes(check(seen(PLAIN, scheduler_configs=(config(profiles=[profile]),))))


def test_pods_that_ask_for_it() -> None:
    note = {"hami.io/gpu-scheduler-policy": "spread"}
    [found] = check(seen(PLAIN, pod("p", notes=note)))
    assert found.code is Code.SPREADING_POLICY


def test_no_cards_at_all() -> None:
    [found] = check(seen(node("n", cards=0)))
    assert found.code is Code.NOT_USED


def test_a_share_of_an_unknown_card_counts_as_a_card() -> None:
    notes = {BOOKED_NODE: "n0", ALLOCATED: "gone,NVIDIA,100,1:;"}
    one = pod("p", on="n0", notes=notes, containers=(asking(1, memory=100),))
    [found] = check(seen(shared_node("n0", "big"), one))
    assert found.evidence["cardsNeeded"] == 1


def test_whole_node_jobs_hide_no_spreading() -> None:
    """30 nodes have such a job, 10 a single card each, 10 are free."""
    jobs = [placed(f"j{index}", f"n{index:02}", bound=1, cards=8) for index in range(30)]
    small = [placed(f"s{index}", f"n{30 + index}", bound=1) for index in range(10)]
    found = only(check(seen(PLAIN, jobs, small)), Code.NODES_SPREAD)
    assert (found.evidence["nodes"], found.evidence["wholeNodesIfPacked"]) == (20, 18)


def test_many_tiny_shares_need_cards_by_their_number() -> None:
    pods = [sharing(f"p{index}", "n0", {index % 2: (1, 0)}) for index in range(20)]
    [found] = check(seen(shared_node("n0", "big"), pods, node("n1", "big")))
    assert found.evidence["cardsNeeded"] == 2


def test_what_is_so_already_needs_no_second_finding() -> None:
    pods = [placed(f"p{index}", f"n{index % 50:02}", bound=index) for index in range(120)]
    found = check(seen(PLAIN, pods, now=600, scheduler_configs=(config(),)))
    assert codes(found) == {Code.NO_WHOLE_NODE}
    assert "scores LeastAllocated" in found[0].summary
