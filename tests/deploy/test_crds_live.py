"""The custom resources on the real API server: what it accepts, what it refuses in which words, what kubectl shows."""

from __future__ import annotations

import json
from typing import Any

import pytest

Object = dict[str, Any]


def custom(kind: str, spec: Object, name: str = "x") -> Object:
    return {"apiVersion": "wholenode.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def pool(**changes: Any) -> Object:
    spec = {"nodeSelector": {"matchLabels": {"pool": "big"}}, "accepts": "WholeNode", "cardsPerNode": 8}
    return custom("GPUPool", {**spec, **changes})


def agreement(**changes: Any) -> Object:
    return custom("DrainAgreement", {"beneficiaries": [{"namespace": "team-b"}], **changes})


def claim(**changes: Any) -> Object:
    gang = {"kind": "Job", "name": "train-7", "uid": "41d1bb46-6f8e-4d5c-9a3b-0a2d0f5d3c11"}
    return custom("WholeNodeClaim", {"nodes": 3, "gang": gang, **changes})


def drain_record(**changes: Any) -> Object:
    spec = {"pod": "v", "podUid": "u-1", "node": "n1", "cards": 1, "at": "2027-01-04T12:00:00.123456Z"}
    spec |= {"claim": "team-b/train-7", "claimUid": "u-2", "beneficiary": "team-b", "lostGpuSeconds": 12.5}
    return custom("DrainRecord", {**spec, **changes})


GOOD = [
    pool(resourceName="nvidia.com/gpu", overflow="Reclaimable", drain="Agreed"),
    pool(accepts="Small", cardsPerNode=4),
    agreement(
        victims={"podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}, "maxPriority": 0},
        patience="10m",
        minRuntime="1h30m",
        expires="2027-03-31T00:00:00Z",
    ),
    agreement(victims={"podSelector": {"matchLabels": {"app": "batch"}}, "maxPriority": -5}),
    agreement(expires="2027-03-31T00:00:00+08:00"),
    agreement(
        windows=[
            {"schedule": "0 22 * * mon-fri", "duration": "9h", "timeZone": "Asia/Shanghai"},
            {"schedule": "*/30 0-6,22 1,15 JAN-mar 7", "duration": "1h30m"},
            {"schedule": "0 0 * * *", "duration": "500ms", "timeZone": "America/Argentina/Buenos_Aires"},
            {"schedule": "0 0 * * *", "duration": "1h", "timeZone": "Etc/GMT+8"},
        ],
        keepReady={"minReadyReplicas": 1},
    ),
    agreement(
        beneficiaries=[{"namespace": "team-b", "localQueues": ["research"]}, {"namespace": "team-c"}],
        budget={"gpuSecondsPerDay": 86400, "evictionsPerHour": 20, "evictionsPerJobPerDay": 0},
        checkpoint={"required": False, "request": True, "timeout": "120s"},
    ),
    agreement(budget={}, checkpoint={}),
    drain_record(),
    drain_record(agreement="nights", job="team-v/Gang/ring/", savedAt="2027-01-04T11:00:00+08:00"),
    claim(pool="big", policy="WaitThenEvict", patience="10m", deadline="2h"),
    claim(nodes=1024),
    custom("WholeNodeClaim", {"nodes": 2, "policy": "Preview"}),
    claim(gang={"kind": "Gang", "name": "ring"}),
]

BAD = [
    (pool(cardsPerNode=0), "spec.cardsPerNode", "greater than or equal to 1"),
    (pool(cardsPerNode="eight"), "spec.cardsPerNode", "integer"),
    (pool(accepts="Everything"), "spec.accepts", "WholeNode"),
    (pool(accepts="Small", overflow="Reclaimable"), "spec.overflow", "small pods are at home in a Small pool"),
    (pool(accepts="Small", drain="Agreed"), "spec.drain", "only those are vacated"),
    (pool(resourceName="gpu"), "spec.resourceName", "should match"),
    (pool(cards=8), "spec.cards", "unknown field"),
    (agreement(beneficiaries=[]), "spec.beneficiaries", "at least 1"),
    (custom("DrainAgreement", {}), "spec.beneficiaries", "Required"),
    (agreement(beneficiaries=[{"namespace": ""}]), "spec.beneficiaries[0].namespace", "at least 1"),
    (agreement(victims={"podSelector": {}}), "spec.victims.podSelector", "leave it out"),
    (agreement(victims={"podSelector": {"matchLabels": {}}}), "spec.victims.podSelector", "leave it out"),
    (
        agreement(victims={"podSelector": {"matchExpressions": [{"key": "app", "operator": "Like"}]}}),
        "spec.victims.podSelector.matchExpressions[0].operator",
        "DoesNotExist",
    ),
    (
        agreement(victims={"podSelector": {"matchExpressions": [{"key": "app", "operator": "In"}]}}),
        "spec.victims.podSelector.matchExpressions[0].operator",
        "In and NotIn need values",
    ),
    (agreement(patience="ten minutes"), "spec.patience", "should match"),
    (agreement(minRuntime="5"), "spec.minRuntime", "should match"),
    (agreement(expires="next spring"), "spec.expires", "date-time"),
    (agreement(windows=[]), "spec.windows", "at least 1"),
    (agreement(windows=[{"duration": "1h"}]), "spec.windows[0].schedule", "Required"),
    (agreement(windows=[{"schedule": "0 22 * *", "duration": "1h"}]), "spec.windows[0].schedule", "should match"),
    (agreement(windows=[{"schedule": "@daily", "duration": "1h"}]), "spec.windows[0].schedule", "should match"),
    (agreement(windows=[{"schedule": "0 22 * * *"}]), "spec.windows[0].duration", "Required"),
    (agreement(windows=[{"schedule": "0 22 * * *", "duration": "0s"}]), "spec.windows[0].duration", "longer than 0s"),
    (agreement(windows=[{"schedule": "0 22 * * *", "duration": "9 h"}]), "spec.windows[0].duration", "should match"),
    (
        agreement(windows=[{"schedule": "0 22 * * *", "duration": "9h", "timeZone": "../localtime"}]),
        "spec.windows[0].timeZone",
        "should match",
    ),
    (agreement(keepReady={}), "spec.keepReady.minReadyReplicas", "Required"),
    (agreement(keepReady={"minReadyReplicas": 0}), "spec.keepReady.minReadyReplicas", "greater than or equal to 1"),
    (
        agreement(beneficiaries=[{"namespace": "b", "localQueues": []}]),
        "spec.beneficiaries[0].localQueues",
        "at least 1",
    ),
    (agreement(budget={"gpuSecondsPerDay": -1}), "spec.budget.gpuSecondsPerDay", "greater than or equal to 0"),
    (agreement(budget={"evictionsPerHour": 1.5}), "spec.budget.evictionsPerHour", "integer"),
    (agreement(budget={"evictionsPerDay": 1}), "spec.budget.evictionsPerDay", "unknown field"),
    (agreement(checkpoint={"timeout": "0s"}), "spec.checkpoint.timeout", "longer than 0s"),
    (agreement(checkpoint={"timeout": "soon"}), "spec.checkpoint.timeout", "should match"),
    (agreement(checkpoint={"required": "yes"}), "spec.checkpoint.required", "boolean"),
    (drain_record(at="at noon"), "spec.at", "date-time"),
    (drain_record(podUid=""), "spec.podUid", "at least 1"),
    (claim(nodes=0), "spec.nodes", "greater than or equal to 1"),
    (claim(nodes=-1), "spec.nodes", "greater than or equal to 1"),
    (claim(nodes=1025), "spec.nodes", "less than or equal to 1024"),
    (claim(policy="EvictNow"), "spec.policy", "WaitThenEvict"),
    (claim(patience="1h", deadline="10m"), "spec.deadline", "longer than patience"),
    (claim(patience="10m", deadline="10m"), "spec.deadline", "longer than patience"),
    (claim(deadline="-5m"), "spec.deadline", "should match"),
    (claim(gang={"kind": "Job", "name": "train-7"}), "spec.gang.uid", "named by its uid"),
    (custom("WholeNodeClaim", {"nodes": 2}), "spec.gang", "must say for which gang"),
]


@pytest.mark.parametrize("manifest", GOOD)
def test_valid_resources_are_accepted(kubectl: Any, manifest: Object) -> None:
    kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", given=manifest)


@pytest.mark.parametrize(("manifest", "field", "words"), BAD)
def test_the_refusal_names_the_field(kubectl: Any, manifest: Object, field: str, words: str) -> None:
    refused(kubectl, manifest, field, words)


def refused(kubectl: Any, manifest: Object, field: str, words: str) -> None:
    run = kubectl.try_("create", "--dry-run=server", "--validate=strict", "-f", "-", given=manifest)
    assert run.returncode != 0
    assert field in run.stderr
    assert words in run.stderr


@pytest.mark.parametrize(
    ("selector", "field", "words"),
    [
        ({"matchLabels": {}}, "spec.nodeSelector.matchLabels", "at least 1"),
        ({}, "spec.nodeSelector.matchLabels", "Required"),
        (None, "spec.nodeSelector", "Required"),
    ],
)
def test_p09_a_pool_with_an_empty_selector_or_none_is_refused(
    kubectl: Any, selector: Object | None, field: str, words: str
) -> None:
    """It must never mean all nodes."""
    manifest = pool(nodeSelector=selector)
    if selector is None:
        del manifest["spec"]["nodeSelector"]
    refused(kubectl, manifest, field, words)


def test_the_gang_of_a_claim_stays_and_the_rest_may_change(kubectl: Any, namespace: str) -> None:
    kubectl("-n", namespace, "create", "-f", "-", given=claim())

    def change(**spec: Any) -> Any:
        return kubectl.try_("-n", namespace, "patch", "wnc", "x", "--type=merge", "-p", json.dumps({"spec": spec}))

    other = change(gang={"name": "train-8"})
    assert "spec.gang" in other.stderr
    assert "the gang of a claim cannot change" in other.stderr
    assert change(gang=None, policy="Preview").returncode != 0
    assert change(policy="WaitThenEvict", patience="5m").returncode == 0


def test_status_is_written_through_its_own_resource_only(kubectl: Any, namespace: str) -> None:
    kubectl("-n", namespace, "create", "-f", "-", given=claim())
    status = json.dumps({"status": {"phase": "Ready", "nodes": [{"name": f"n{i}"} for i in range(1024)]}})
    kubectl("-n", namespace, "patch", "wnc", "x", "--type=merge", "-p", status)
    assert kubectl("-n", namespace, "get", "wnc", "x", "-o", "jsonpath={.status}") == ""
    kubectl("-n", namespace, "patch", "wnc", "x", "--subresource=status", "--type=merge", "-p", status)
    assert kubectl("-n", namespace, "get", "wnc", "x", "-o", "jsonpath={.status.nodes[1023].name}") == "n1023"


@pytest.mark.parametrize(
    "change",
    [
        {"lostGpuSeconds": 0},
        {"at": "2027-01-04T12:00:01Z"},
        {"agreement": "another"},
        {"savedAt": "2027-01-01T00:00:00Z"},
    ],
)
def test_a_record_is_never_changed(kubectl: Any, namespace: str, change: Object) -> None:
    kubectl("-n", namespace, "create", "-f", "-", given=drain_record())
    run = kubectl.try_("-n", namespace, "patch", "dr", "x", "--type=merge", "-p", json.dumps({"spec": change}))
    assert run.returncode != 0
    assert "a record is written once and never changed" in run.stderr
    kubectl("-n", namespace, "patch", "dr", "x", "--type=merge", "-p", json.dumps({"metadata": {"labels": {"a": "b"}}}))


def test_what_became_of_a_pod_is_one_of_three(kubectl: Any, namespace: str) -> None:
    kubectl("-n", namespace, "create", "-f", "-", given=drain_record())

    def resolve(outcome: str) -> Any:
        patch = json.dumps({"status": {"outcome": outcome}})
        return kubectl.try_("-n", namespace, "patch", "dr", "x", "--subresource=status", "--type=merge", "-p", patch)

    assert "Unsupported value" in resolve("Forgotten").stderr
    assert resolve("Stopped").returncode == 0
    head, row = kubectl("-n", namespace, "get", "drainrecords").splitlines()
    assert head.split() == ["NAME", "POD", "FOR", "AGREEMENT", "LOST-GPU-S", "OUTCOME", "AT"]
    assert row.split()[:4] == ["x", "v", "team-b/train-7", "12.5"]


def test_kubectl_get_shows_the_columns(kubectl: Any, namespace: str) -> None:
    kubectl("-n", namespace, "create", "-f", "-", given=claim())
    status = {"phase": "Blocked", "reason": "NoConsent", "message": "team-v must agree", "lostGpuSeconds": 12.5}
    patch = json.dumps({"status": status})
    kubectl("-n", namespace, "patch", "wnc", "x", "--subresource=status", "--type=merge", "-p", patch)
    head, row = kubectl("-n", namespace, "get", "wholenodeclaims").splitlines()
    assert head.split() == ["NAME", "PHASE", "NODES", "FOR", "REASON", "AGE"]
    assert row.split()[:4] == ["x", "Blocked", "train-7", "NoConsent"]
    wide = kubectl("-n", namespace, "get", "wnc", "-o", "wide")
    assert "LOST-GPU-S" in wide
    assert "12.5" in wide
    assert "team-v must agree" in wide


def test_all_kinds_are_listed_by_their_category_and_explained(kubectl: Any, namespace: str) -> None:
    kubectl("-n", namespace, "create", "-f", "-", given=[claim(), agreement()])
    found = kubectl("-n", namespace, "get", "wholenode", "-o", "name").split()
    assert "wholenodeclaim.wholenode.io/x" in found
    assert "drainagreement.wholenode.io/x" in found
    assert "How long to wait for natural ends" in kubectl("explain", "wholenodeclaim.spec.patience")
