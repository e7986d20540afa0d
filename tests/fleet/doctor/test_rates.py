"""Rate limits: recognised from what was placed while others waited, with and without the flags."""

import pytest

from fleet.doctor.checkup import Seen
from fleet.doctor.findings import Code, Verdict
from fleet.doctor.rates import check
from fleet.objects import Pod, Taint
from tests.fleet.builders import at, node, pod
from tests.fleet.doctor.pictures import codes, config, hami_program, only, placed, refused, seen
from tests.fleet.shares import asking, shared_node

NODES = [shared_node(f"n{index}", "big") for index in range(5)]


def slowly(every: float = 2.0, number: int = 40, now: float = 40) -> list[Pod]:
    """Whole-card pods, all made at T0; one is bound every so many seconds, to a card of its own."""
    done = int(now / every)
    bound = [
        placed(f"b{index}", f"n{index // 8}", chosen=index * every, bound=(index + 1) * every)
        for index in range(min(done, number))
    ]
    return [*bound, *(pod(f"w{index}") for index in range(number - len(bound)))]


def test_h15_the_limit_is_recognised_from_the_rates_alone() -> None:
    found = only(check(seen(NODES, slowly(), now=40)), Code.CLIENT_RATE_LIMIT)
    assert found.verdict is Verdict.PROBLEM
    assert found.evidence["placed"] == 20
    assert found.evidence["podsPerSecond"] == 0.5
    assert found.evidence["waiting"] == 20
    assert found.evidence["callsPerPod"] == 9
    assert "0.56 pods a second" in found.summary
    assert "--kube-qps=1000" in found.fix


def test_with_the_flags_it_says_whose_limit_it_is() -> None:
    found = only(check(seen(NODES, slowly(), now=40, programs=(hami_program("--kube-qps=5"),))), Code.CLIENT_RATE_LIMIT)
    assert "hami-system/hami-scheduler is limited to 5 calls a second" in found.summary
    [limit] = found.evidence["limits"]
    assert limit == {
        "source": "Deployment hami-system/hami-scheduler",
        "of": "hami",
        "qps": 5.0,
        "burst": 10,
        "given": True,
        "callsPerPod": 9,
        "mostPodsPerSecond": 0.56,
    }


def test_where_the_flags_are_high_something_else_holds_it_up() -> None:
    programs = (hami_program("--kube-qps", "1000", "--kube-burst=2000"),)
    found = only(check(seen(NODES, slowly(), now=40, programs=programs)), Code.CLIENT_RATE_LIMIT)
    assert found.verdict is Verdict.WARNING
    assert "node-locks" in found.summary


def test_a_low_limit_that_nobody_feels_is_a_warning() -> None:
    found = only(check(seen(NODES, programs=(hami_program(),))), Code.LOW_CLIENT_LIMIT)
    assert found.verdict is Verdict.WARNING
    assert "says nothing of it and is limited to 5" in found.summary
    low = config(clientConnection={"qps": 2, "burst": 2})
    assert codes(check(seen(NODES, scheduler_configs=(low,)))) == {Code.LOW_CLIENT_LIMIT}


def test_kube_schedulers_own_default_is_high_enough() -> None:
    assert not codes(check(seen(NODES, scheduler_configs=(config(),))))


def test_fast_placing_is_fine() -> None:
    assert not codes(check(seen(NODES, slowly(every=0.25, number=40, now=9.5), now=9.5)))
    assert not codes(check(seen(NODES, slowly(every=0.4, number=40, now=15.9), now=15.9)))


def test_pods_that_wait_for_something_else_do_not_count() -> None:
    """Refused, gated, without room, for another node, or ended and deleted."""
    full = [placed(f"b{index}", f"n{index // 8}", bound=5) for index in range(40)]
    assert not codes(check(seen(NODES, full, [pod(f"w{index}") for index in range(9)], now=100)))
    waits = [refused(pod(f"w{index}")) for index in range(9)]
    gated = [pod(f"g{index}", gates=("wholenode.io/claim",)) for index in range(9)]
    picky = [pod(f"s{index}", selector={"zone": "z"}) for index in range(9)]
    going = [pod(f"d{index}", going=3) for index in range(9)]
    assert not codes(check(seen(NODES, waits, gated, picky, going, now=100)))


def test_a_scheduler_that_places_nothing_is_not_a_slow_one() -> None:
    found = only(check(seen(NODES, [pod(f"w{index}") for index in range(9)], now=100)), Code.NOBODY_SCHEDULES)
    assert found.verdict is Verdict.PROBLEM
    assert "default-scheduler" in found.summary


def test_shares_find_room_by_hamis_rule() -> None:
    """Nine tenths of each card are taken: a tenth fits, a half does not."""
    taken = [
        pod(
            f"t{index}",
            on="n0",
            notes={"hami.io/vgpu-node": "n0", "hami.io/vgpu-devices-allocated": f"n0-{index},NVIDIA,22000,90:;"},
        )
        for index in range(8)
    ]
    halves = [pod(f"w{index}", containers=(asking(1, memory=12000),)) for index in range(3)]
    tenths = [pod(f"v{index}", containers=(asking(1, memory=2456),)) for index in range(3)]
    assert not codes(check(seen(NODES[0], taken, halves, now=100)))
    assert codes(check(seen(NODES[0], taken, tenths, now=100))) == {Code.NOBODY_SCHEDULES}


def test_a_plain_scheduler_has_fewer_calls_a_pod() -> None:
    plain = [node(f"n{index}") for index in range(5)]
    bound = [placed(f"b{index}", f"n{index // 8}", bound=index * 2 + 1) for index in range(20)]
    found = only(check(seen(plain, bound, [pod(f"w{index}") for index in range(5)], now=40)), Code.CLIENT_RATE_LIMIT)
    assert found.evidence["callsPerPod"] == 2


@pytest.mark.parametrize(("qps", "shown"), [(0, [50.0]), (-1, []), (20, [20.0])])
def test_no_limit_and_a_limit_of_nought_are_read_as_clients_read_them(qps: float, shown: list[float]) -> None:
    configs = (config(clientConnection={"qps": qps, "burst": 0}),)
    [found] = check(seen(NODES, scheduler_configs=configs))
    assert found.code is Code.FINE
    assert [one["qps"] for one in found.evidence["limits"]] == shown


@pytest.mark.parametrize(("flag", "shown"), [("0", [5.0]), ("-1", []), ("nan", [5.0]), ("20", [20.0])])
def test_hamis_flags_likewise(flag: str, shown: list[float]) -> None:
    [found] = check(seen(NODES, programs=(hami_program(f"--kube-qps={flag}"),)))
    assert [one["qps"] for one in found.evidence["limits"]] == shown


def test_an_old_binding_is_not_of_this_wait() -> None:
    """Two hours of an empty queue lie between."""
    old = [placed(f"b{index}", "n0", bound=index) for index in range(8)]
    lately = [placed("l", "n1", made=7200, bound=7220), *(pod(f"w{index}", created=7200) for index in range(4))]
    found = only(check(seen(NODES, old, lately, now=7240)), Code.CLIENT_RATE_LIMIT)
    assert found.evidence["placed"] == 1
    assert found.evidence["windowSeconds"] == 40.0


def test_one_pod_that_waits_or_a_short_wait_says_nothing_yet() -> None:
    assert not codes(check(seen(NODES, slowly(number=21, now=40), now=40)))
    assert not codes(check(seen(NODES, slowly(number=40, now=10), now=10)))


def test_pods_that_were_just_made_do_not_count() -> None:
    young = [pod(f"w{index}", created=97) for index in range(9)]
    [found] = check(seen(NODES, young, now=100))
    assert (found.code, found.evidence["waiting"]) == (Code.FINE, 0)


def test_nodes_whose_taint_they_do_not_tolerate_are_no_room() -> None:
    closed = node("n", taints=(Taint("example.com/team", "NoSchedule"),))
    assert not codes(check(seen(closed, [pod(f"w{index}") for index in range(9)], now=100)))


def test_it_looks_back_five_minutes() -> None:
    bound = [placed(f"b{index}", f"n{index // 8}", bound=index * 20 + 10) for index in range(30)]
    found = only(check(seen(NODES, bound, [pod(f"w{index}") for index in range(5)], now=600)), Code.CLIENT_RATE_LIMIT)
    assert (found.evidence["windowSeconds"], found.evidence["placed"]) == (300.0, 15)


def test_bindings_that_failed_cost_calls_too() -> None:
    """Only those of this wait: four of 13, 5 calls each, for 20 pods."""
    lately = Seen("BindingFailed", "team-v/w0", "node lock", 4, at(30))
    before = Seen("BindingFailed", "team-v/w0", "node lock", 9, at(-30))
    found = only(check(seen(NODES, slowly(), now=40, events=(lately, before))), Code.CLIENT_RATE_LIMIT)
    assert found.evidence["failedBindings"] == 4
    assert found.evidence["callsPerPod"] == 10
