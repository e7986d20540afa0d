"""A saved picture: what is written is read back the same, what is secret is not written, what is wrong is named."""

import contextlib
import inspect
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fleet
from cluster.dumps import DumpError, read_dump, write_dump
from fleet import hami, names
from fleet.kueue import objects
from fleet.names import EXPECTED_RUN, GANG
from fleet.objects import (
    BudgetSpec,
    BudgetStatus,
    DisruptionBudget,
    LabelSelector,
    Metadata,
    ResourceClaim,
)
from fleet.view import View
from tests.fleet.books import record
from tests.fleet.builders import (
    agreement,
    at,
    claim,
    coscheduling_group,
    job,
    members,
    node,
    pod,
    pod_group,
    pool,
    view,
)

SECRET = "kubectl.kubernetes.io/last-applied-configuration"


def everything() -> View:
    """One of each kind at least."""
    seen = view(
        [node("n1"), node("n2")],
        [pod("a", on="n1", notes={EXPECTED_RUN: "1h"}), *members(2)],
        job("j"),
        pool(),
        agreement(),
        claim(),
        pod_group("g", 2),
        coscheduling_group("h", 3),
    )
    budget = DisruptionBudget(Metadata("b", "team-v"), BudgetSpec(LabelSelector({"app": "x"})), BudgetStatus(1))
    devices = ResourceClaim(Metadata("d", "team-v", uid="d"))
    records = {one.metadata.uid: one for one in (record("z", 5.0), record("y", 1.0))}
    return replace(seen, budgets=(budget,), device_claims=(devices,), records=records)


def test_what_is_written_is_read_back_the_same() -> None:
    dump = read_dump(write_dump(everything(), at(7)))
    assert (dump.view, dump.taken_at) == (everything(), at(7))


def test_the_order_of_the_picture_makes_no_difference_to_the_file() -> None:
    seen = everything()
    turned = replace(
        seen,
        nodes=dict(reversed(seen.nodes.items())),
        pods=dict(reversed(seen.pods.items())),
        records=dict(reversed(seen.records.items())),
    )
    assert write_dump(seen, at(0)) == write_dump(turned, at(0))


def test_annotations_that_nothing_reads_are_left_out() -> None:
    one = pod("a", on="n1", notes={SECRET: "PASSWORD=1", "example.com/x": "y", GANG: "g"})
    data = write_dump(view(node("n1"), one), at(0))
    (kept,) = read_dump(data).view.pods.values()
    assert kept.metadata.annotations == {GANG: "g"}
    assert b"PASSWORD" not in data


def test_every_annotation_that_decisions_read_is_kept() -> None:
    folder = Path(inspect.getfile(fleet)).parent
    code = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    read = set(re.findall(r"\.annotation\(([A-Z_]+)\)", code)) | set(re.findall(r"_said\(gang, ([A-Z_]+)\)", code))
    read |= {"GANG_SIZE", "KUEUE_POD_GROUP_TOTAL"}
    constants = {**vars(hami), **vars(names), **vars(objects)}
    notes = {constants[name]: "x" for name in read}
    assert len(notes) >= 15
    (kept,) = read_dump(write_dump(view(pod("a", notes=notes)), at(0))).view.pods.values()
    assert kept.metadata.annotations == notes


def test_a_list_of_kubectl_is_read_too_and_says_no_time() -> None:
    """Other kinds beside, other versions of a kind, fields nobody knows."""
    one = json.loads(msgspec.json.encode(pod("a")))
    one["spec"]["containers"][0]["env"] = [{"name": "A", "value": "b"}]
    items = [
        {"apiVersion": "v1", "kind": "Pod", **one},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"x": 1}},
        {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": "g", "namespace": "x"}},
    ]
    dump = read_dump(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}).encode())
    assert dump.taken_at is None
    assert list(dump.view.pods) == ["team-v.a"]
    assert [one.metadata.name for one in dump.view.pod_groups] == ["g"]


def changed(change: Any) -> bytes:
    """The file of a node, a pod and a claim, after `change` of its document."""
    found = json.loads(write_dump(view(node("n1"), pod("a", on="n1"), claim()), at(0)))
    change(found, {one["kind"]: one for one in found["items"]})
    return json.dumps(found).encode()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda _, one: one["Pod"]["spec"].update(nodeName=7), ["Pod team-v/a: spec.nodeName: Expected `str"]),
        (lambda _, one: one["Pod"]["metadata"].pop("uid"), ["Pod team-v/a: metadata.uid is missing"]),
        (lambda _, one: one["Pod"]["status"].update(startTime="2027-01-04T12:00:00"), ["status.startTime", "zone"]),
        (lambda _, one: one["Pod"]["status"].update(startTime="9999-01-04T12:00:00Z"), ["startTime", "9999"]),
        (lambda _, one: one["Pod"]["status"].update(startTime="noon"), ["Pod team-v/a: status.startTime"]),
        (lambda _, one: one["Node"]["status"]["allocatable"].update(cpu="many"), ["Node n1: status.allocatable.cpu"]),
        (
            lambda _, one: one["Pod"]["spec"]["containers"][0]["resources"]["requests"].update({"nvidia.com/gpu": "x"}),
            ["Pod team-v/a: spec.containers[0].resources.requests.nvidia.com/gpu: 'x' is not"],
        ),
        (lambda _, one: one["Node"]["metadata"].pop("name"), ["items[", "a Node: metadata.name is missing"]),
        (lambda _, one: one["WholeNodeClaim"]["spec"].update(nodes=0), ["WholeNodeClaim team-b/c: spec.nodes"]),
        (lambda all_, one: all_["items"].append(one["Pod"]), ["Pod team-v/a", "twice"]),
        (lambda all_, _: all_["items"].append(3), ["items[4]: Expected `object"]),
        (lambda all_, _: all_.update(takenAt="noon"), ["takenAt: 'noon' is not a time"]),
        (lambda all_, _: all_.update(takenAt="2027-01-04T12:00:00"), ["takenAt", "zone"]),
        (lambda all_, _: all_.update(items={}), ["not a Kubernetes List in JSON: items"]),
        (lambda all_, _: all_.pop("items"), ["must have items"]),
        (lambda all_, _: all_.update(kind="Pod"), ["its kind must be List"]),
    ],
)
def test_what_is_wrong_is_named_with_object_and_field(change: Any, words: list[str]) -> None:
    with pytest.raises(DumpError) as error:
        read_dump(changed(change))
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("data", [b"", b"apiVersion: v1", b"\xff\xfe", b"[" * 100_000, b"[]", b"3", b"null"])
def test_what_is_no_list_at_all(data: bytes) -> None:
    with pytest.raises(DumpError):
        read_dump(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["x", "8", "1h"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["metadata", "name", "uid", "spec", "status", "containers", "labels", "kind"]), inner
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.lists(JSON, max_size=3), st.sampled_from(["Pod", "Node", "Job", "DrainRecord", "GPUPool"]))
def test_whatever_stands_in_a_list_is_read_or_refused(items: list[Any], kind: str) -> None:
    api = "batch/v1" if kind == "Job" else "wholenode.io/v1alpha1" if kind[0] in "DG" else "v1"
    heads = [{**one, "kind": kind, "apiVersion": api} if isinstance(one, dict) else one for one in items]
    with contextlib.suppress(DumpError):
        read_dump(json.dumps({"kind": "List", "items": heads}).encode())
