"""Cards as devices of ResourceClaims: counted when the class hands out cards, else ignored and said so."""

import dataclasses

import msgspec
import pytest

from fleet.devices import by_name, users
from fleet.objects import (
    Allocation,
    ClaimConsumer,
    DeviceRequest,
    DeviceRequests,
    DeviceResult,
    DeviceResults,
    Metadata,
    NamedDeviceRequest,
    OwnerReference,
    Pod,
    PodResourceClaim,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
)
from fleet.requests import Classifier, RequestClass
from fleet.resources import Accepts, GPUPool
from fleet.tally import Tally
from tests.fleet.builders import container, node, pod, pool, view

GPU_CLASS, NIC_CLASS = "gpu.nvidia.com", "nic.example.com"
BIG, SMALL = pool("big"), pool("small", accepts=Accepts.SMALL)


def wanted(name: str, device_class: str = GPU_CLASS, count: int = 1, *, allocated: int | None = None) -> ResourceClaim:
    results = tuple(
        DeviceResult("r", "gpu.nvidia.com", "n", f"gpu-{name}-{number}") for number in range(allocated or 0)
    )
    return ResourceClaim(
        Metadata(name, "team-v", uid=f"claim-{name}"),
        ResourceClaimSpec(DeviceRequests((DeviceRequest("r", NamedDeviceRequest(device_class, count)),))),
        ResourceClaimStatus(Allocation(DeviceResults(results)) if allocated is not None else None),
    )


def using(name: str, *claims: str, templates: tuple[str, ...] = (), cards: int = 0, on: str | None = None) -> Pod:
    """A pod that uses claims by name, and claims made for it from templates."""
    made = pod(name, on=on, containers=(container(cards),))
    entries = [PodResourceClaim(f"e-{claim}", claim) for claim in claims]
    entries += [PodResourceClaim(f"t-{claim}") for claim in templates]
    statuses = tuple(PodResourceClaim(f"t-{claim}", claim) for claim in templates)
    spec = msgspec.structs.replace(made.spec, resource_claims=tuple(entries))
    status = msgspec.structs.replace(made.status, resource_claim_statuses=statuses or None)
    return msgspec.structs.replace(made, spec=spec, status=status)


def asked(one: Pod, *claims: ResourceClaim, pools: tuple[GPUPool, ...] = (BIG, SMALL)) -> tuple[int, RequestClass]:
    request = Classifier.of(pools, by_name(claims)).classify(one)
    return request.cards, request.request_class


@pytest.mark.parametrize("allocated", [None, 2])
def test_devices_of_a_gpu_class_count_as_cards_asked_for_and_allocated(allocated: int | None) -> None:
    claim = wanted("c", count=2, allocated=allocated)
    assert asked(using("p", "c"), claim) == (2, RequestClass.SMALL)
    assert asked(using("p", templates=("c",)), claim) == (2, RequestClass.SMALL)


def test_a_claim_that_asks_for_ages_of_devices_is_counted_up_to_what_any_claim_can_have() -> None:
    """Each is given a name of its own: more names than there is memory would end the process."""
    assert asked(using("p", "c"), wanted("c", count=10**12))[0] == 1024


def test_devices_of_another_class_are_ignored_and_said_so() -> None:
    claim = wanted("c", NIC_CLASS, 2)
    assert asked(using("p", "c"), claim) == (0, RequestClass.NONE)
    classifier = Classifier.of((BIG,), by_name([claim]))
    assert classifier.ignored_device_classes(using("p", "c")) == (NIC_CLASS,)
    assert classifier.ignored_device_classes(using("p", "unknown")) == ()


def test_a_pool_may_name_its_own_device_classes() -> None:
    own = msgspec.structs.replace(BIG, spec=msgspec.structs.replace(BIG.spec, device_classes=(NIC_CLASS,)))
    assert asked(using("p", "c"), wanted("c", NIC_CLASS), pools=(own,)) == (1, RequestClass.SMALL)


def test_eight_devices_are_no_whole_node_pod_and_come_on_top_of_extended_resources() -> None:
    assert asked(using("p", "c"), wanted("c", count=8)) == (8, RequestClass.SMALL)
    assert asked(using("p", "c", cards=1), wanted("c", count=2)) == (3, RequestClass.SMALL)


def test_a_claim_of_another_namespace_is_not_the_pods() -> None:
    elsewhere = wanted("c")
    elsewhere = msgspec.structs.replace(elsewhere, metadata=msgspec.structs.replace(elsewhere.metadata, namespace="x"))
    assert asked(using("p", "c"), elsewhere) == (0, RequestClass.NONE)


def test_pods_that_share_a_claim_share_its_cards() -> None:
    claim = wanted("c", count=2, allocated=2)
    classifier = Classifier.of((BIG,), by_name([claim]))
    pods = [using(name, "c", on="n") for name in ("p", "q")]
    tally = Tally((one, classifier.classify(one)) for one in pods)
    assert tally.touched == {"n": 2}
    tally.drop(pods[0].metadata.uid)
    assert tally.touched == {"n": 2}
    tally.drop(pods[1].metadata.uid)
    assert tally.touched == {}


def test_a_node_with_a_pod_of_devices_is_not_untouched() -> None:
    holder = using("p", "c", on="n")
    seen = dataclasses.replace(view(BIG, node("n"), holder), device_claims=(wanted("c", allocated=1),))
    assert seen.gpu_pods_on("n") == (holder,)
    assert view(BIG, node("n"), holder).gpu_pods_on("n") == ()


def test_the_pods_of_a_claim_are_its_owner_and_those_it_is_reserved_for() -> None:
    claim = wanted("c")
    owner = OwnerReference("Pod", "p", "uid-p", controller=True)
    claim = msgspec.structs.replace(
        claim,
        metadata=msgspec.structs.replace(claim.metadata, owner_references=(owner,)),
        status=ResourceClaimStatus(reserved_for=(ClaimConsumer("uid-q"),)),
    )
    assert users(claim) == {"uid-p", "uid-q"}


def test_first_available_requests_count_what_was_allocated() -> None:
    either = DeviceRequest("r", None, (NamedDeviceRequest(GPU_CLASS, 2), NamedDeviceRequest(NIC_CLASS, 1)))
    claim = ResourceClaim(
        Metadata("c", "team-v", uid="u"),
        ResourceClaimSpec(DeviceRequests((either,))),
        ResourceClaimStatus(Allocation(DeviceResults((DeviceResult("r/a", "d", "n", "gpu-1"),)))),
    )
    assert asked(using("p", "c"), claim) == (1, RequestClass.SMALL)
