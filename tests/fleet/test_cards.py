"""What a pod asks for and holds: Kubernetes' own formula, and when cards are free again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.cards import asks, cards, finished, seat, waiting
from fleet.names import DEFAULT_RESOURCE
from fleet.objects import Container, Pod, PodSpec, Resources
from fleet.requests import Classifier, RequestClass
from tests.fleet.builders import container, pod, pool, view
from tests.fleet.builders import node as make_node

GPU = DEFAULT_RESOURCE


def asked(
    *containers: Container, inits: tuple[Container, ...] = (), overhead: dict[str, str | int] | None = None
) -> int:
    made = pod("p", containers=containers, inits=inits)
    return cards(Pod(made.metadata, PodSpec(containers=containers, init_containers=inits, overhead=overhead)), GPU)


def test_p04_containers_add_up() -> None:
    assert asked(container(4), container(4)) == 8


def test_p05_an_init_container_asks_for_the_pod() -> None:
    assert asked(container(1), inits=(container(8),)) == 8
    assert asked(container(8), inits=(container(1),)) == 8


def test_sidecars_run_beside_the_containers_and_beside_later_init_containers() -> None:
    sidecar = container(2, restart="Always")
    assert asked(container(4), inits=(sidecar,)) == 6
    assert asked(container(1), inits=(sidecar, container(5))) == 7
    assert asked(container(1), inits=(container(5), sidecar)) == 5, "started after it, so not beside it"


def test_overhead_comes_on_top() -> None:
    assert asked(container(3), overhead={GPU: "1"}) == 4


def test_requests_count_and_limits_where_they_are_left_out() -> None:
    only_limits = Container("c", Resources(limits={GPU: "3"}))
    only_requests = Container("c", Resources(requests={GPU: 2}))
    both = Container("c", Resources(requests={GPU: "1"}, limits={GPU: "4"}))
    assert (asked(only_limits), asked(only_requests), asked(both)) == (3, 2, 1)
    assert asked(Container("c")) == 0


@given(st.lists(st.integers(0, 8), max_size=4), st.lists(st.tuples(st.integers(0, 8), st.booleans()), max_size=4))
def test_the_formula_is_the_largest_moment_of_the_pods_life(main: list[int], inits: list[tuple[int, bool]]) -> None:
    running, moments = 0, []
    for wanted, sidecar in inits:
        moments.append(running + wanted)
        running += wanted if sidecar else 0
    moments.append(running + sum(main))
    made = tuple(container(wanted, restart="Always" if sidecar else None) for wanted, sidecar in inits)
    assert asked(*(container(one) for one in main), inits=made) == max(moments)


def test_p16_zero_cards_are_no_gpu_pod() -> None:
    zero = pod("p", containers=(Container("c", Resources(limits={GPU: "0"}, requests={GPU: "0"})),), on="n1")
    assert Classifier.of([pool()]).classify(zero).request_class is RequestClass.NONE
    assert view(make_node("n1"), zero).gpu_pods_on("n1") == ()


def test_p12_an_ended_pod_holds_nothing() -> None:
    for phase in ("Succeeded", "Failed"):
        ended = pod("p", 8, on="n1", phase=phase)
        assert finished(ended)
        assert seat(ended) is None
        assert view(make_node("n1"), ended).gpu_pods_on("n1") == ()


def test_p13_a_terminating_pod_holds_its_cards() -> None:
    going = pod("p", 8, on="n1", going=40)
    assert seat(going) == going.spec.node_name
    assert view(make_node("n1"), going).gpu_pods_on("n1") == (going,)


def test_n08_a_pod_on_a_node_that_vanished_counts_nowhere() -> None:
    lost = pod("p", 8, on="gone")
    assert view(make_node("n1"), lost).pods_by_node == {}


@pytest.mark.parametrize(
    ("one", "wants"),
    [(pod("p"), True), (pod("p", on="n1"), False), (pod("p", going=3), False), (pod("p", phase="Failed"), False)],
)
def test_who_waits_for_a_node(one: Pod, wants: bool) -> None:
    assert waiting(one) is wants


def test_every_resource_is_read_in_its_own_unit() -> None:
    made = Container("c", Resources({"cpu": "1500m", "memory": "1Gi", GPU: "2", "example.com/ib": "1"}))
    assert asks(pod("p", containers=(made,))) == {"cpu": 1500, "memory": 2**30, GPU: 2, "example.com/ib": 1}
