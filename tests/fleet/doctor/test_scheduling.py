"""Scheduler configuration: each wrong setting is named, and none that is right."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from cluster.configs import kueue_config, scheduler_configs
from fleet.doctor.checkup import Answering
from fleet.doctor.findings import Code, Verdict
from fleet.doctor.scheduling import check
from tests.fleet.builders import pod
from tests.fleet.doctor.pictures import HAMI, OURS, by_scheduler, codes, config, only, seen
from tests.fleet.shares import shared_node

Entry = Mapping[str, Any]


HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


@pytest.mark.parametrize(
    ("rest", "where"),
    [
        ("password: hush: hush\n", "line 3, column 15"),
        ("\tpassword: hush\n", "line 3, column 1"),
        ("password: !hush hush\n", "line 3, column 11"),
        ("born: 2026-99-99\n", "cannot be read"),
        (f"big: {'9' * 5000}\n", "cannot be read"),
        (f"deep: {'[' * 2000}{']' * 2000}\n", "too deeply"),
        ("nothing: \0\n", "cannot be read"),
    ],
)
def test_a_text_that_cannot_be_read_is_said_to_be_so_and_is_not_shown(rest: str, where: str) -> None:
    found = scheduler_configs("f", HEAD + rest)
    [one] = check(seen(scheduler_configs=found))
    assert (one.code, one.verdict) == (Code.UNREADABLE, Verdict.PROBLEM)
    assert where in one.summary
    assert "hush hush" not in one.summary
    assert ": hush" not in one.summary


@pytest.mark.parametrize(
    "text", ["#!/bin/sh\ncat <<EOF\n" + HEAD + "EOF\n", "Write a KubeSchedulerConfiguration: so: so"]
)
def test_a_text_that_only_speaks_of_one_is_none(text: str) -> None:
    assert scheduler_configs("f", text) == ()


def test_what_is_null_is_left_out_and_what_refers_to_itself_ends() -> None:
    text = HEAD + (
        "percentageOfNodesToScore: 100\npodMaxBackoffSeconds: 2\nclientConnection:\nprofiles:\n"
        "extenders:\n- {urlPrefix: http://wholenode/v1, filterVerb: filter, nodeCacheCapable: true, httpTimeout: 1s,"
        " weight: null, tlsConfig: null}\nothers: &a [*a]\n"
    )
    assert codes(check(seen(scheduler_configs=scheduler_configs("f", text)))) == set()


def test_half_a_character_is_shown_as_a_question_mark() -> None:
    text = HEAD + 'extenders: [{urlPrefix: "http://a\\ud800/", filterVerb: f}]\n'
    [found] = check(seen([pod("p")], scheduler_configs=scheduler_configs("f", text)))
    assert found.evidence["asked"] == ["http://a?/"]


def test_only_v1_is_read_by_kube_scheduler() -> None:
    [old] = scheduler_configs("f", HEAD.replace("/v1", "/v1beta3"))
    assert old.problem == "apiVersion: must be kubescheduler.config.k8s.io/v1"


def test_a_profile_may_say_how_many_nodes_it_looks_at() -> None:
    two = [{"schedulerName": "a", "percentageOfNodesToScore": 100}, {"schedulerName": "b"}]
    assert told(OURS, percentageOfNodesToScore=50, profiles=two[:1]) == set()
    assert told(OURS, percentageOfNodesToScore=50, profiles=two) == {Code.NODES_UNSEEN}


def test_a_password_in_an_address_is_not_shown() -> None:
    other = {"urlPrefix": "https://me:hush@hook.example.com/x", "filterVerb": "filter"}
    found = only(check(seen(scheduler_configs=(config(HAMI, OURS, other),))), Code.EXTENDER_ORDER)
    assert found.evidence["asked"] == ["HAMi", "wholenode", "https://hook.example.com/x"]


def told(*extenders: Entry, **more: Any) -> set[Code]:
    return codes(check(seen(scheduler_configs=(config(*extenders, **more),))))


@pytest.mark.parametrize("others", [(), (HAMI,)])
def test_the_entry_that_is_missing_is_given_whole(others: tuple[Entry, ...]) -> None:
    """Without HAMi it is for pods with cards only: all others must not wait for us when we are down."""
    found = check(seen([pod("p")], scheduler_configs=(config(*others),)))
    fix = only(found, Code.EXTENDER_MISSING).fix
    [entry] = yaml.safe_load(fix.partition("\n")[2])["extenders"]
    assert told(entry, *others) == set()
    assert ("managedResources" in entry) == (not others)


def test_h08_the_right_order_is_fine() -> None:
    assert told(OURS, HAMI) == set()
    assert told({**OURS, "managedResources": [{"name": "nvidia.com/gpu"}]}) == set()


def test_hami_before_us() -> None:
    assert told(HAMI, OURS) == {Code.EXTENDER_ORDER}


def test_an_ignorable_one_comes_last_wherever_it_stands() -> None:
    assert told({**OURS, "ignorable": True}, HAMI) == {Code.EXTENDER_IGNORABLE}
    assert told(HAMI | {"ignorable": True}, OURS) == set()


@pytest.mark.parametrize(("ours", "hami"), [({"nodeCacheCapable": False}, {}), ({}, {"nodeCacheCapable": False})])
def test_e02_whole_nodes_in_the_body(ours: Entry, hami: Entry) -> None:
    found = check(seen(scheduler_configs=(config({**OURS, **ours}, {**HAMI, **hami}),)))
    one = only(found, Code.NODES_IN_BODY)
    assert one.verdict is Verdict.PROBLEM
    assert one.fix.endswith("entry: nodeCacheCapable: true")
    assert ("HAMi 2.10" in one.summary) == bool(hami)


def test_o02_the_same_resource_twice() -> None:
    twice = config({**OURS, "managedResources": [{"name": "nvidia.com/gpu"}]}, HAMI)
    assert only(check(seen(scheduler_configs=(twice,))), Code.MANAGED_TWICE).verdict is Verdict.PROBLEM
    found = check(seen(scheduler_configs=(config({**OURS, "managedResources": [{"name": "x/y"}]}, HAMI),)))
    assert only(found, Code.MANAGED_TWICE).verdict is Verdict.WARNING


def test_two_that_bind() -> None:
    assert told({**OURS, "bindVerb": "bind"}, HAMI) == {Code.BIND_TWICE}


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({"urlPrefix": "https://wholenode:9443/v1", "enableHTTPS": True}, Code.UNVERIFIED_TLS),
        ({"urlPrefix": "https://wholenode:9443/v1", "enableHTTPS": True, "tlsConfig": {}}, Code.UNVERIFIED_TLS),
        (
            {
                "urlPrefix": "https://wholenode:9443/v1",
                "enableHTTPS": True,
                "tlsConfig": {"insecure": True, "caFile": "ca.crt"},
            },
            Code.UNVERIFIED_TLS,
        ),
        ({"urlPrefix": "https://wholenode:9443/v1"}, Code.TLS_NOT_ENABLED),
        ({"enableHTTPS": True}, Code.TLS_NOT_ENABLED),
        ({"prioritizeVerb": "prioritize"}, Code.NO_WEIGHT),
        ({"httpTimeout": "30s"}, Code.SLOW_TIMEOUT),
        ({"httpTimeout": None}, Code.SLOW_TIMEOUT),
        ({"httpTimeout": "100ms"}, Code.SHORT_TIMEOUT),
        ({"httpTimeout": "soon"}, Code.UNREADABLE),
    ],
)
def test_o03_settings_of_our_entry(entry: Entry, code: Code) -> None:
    assert told({**OURS, **entry}) == {code}


def test_tls_with_an_authority_is_fine() -> None:
    tls = {"urlPrefix": "https://wholenode:9443/v1", "enableHTTPS": True, "tlsConfig": {"caFile": "ca.crt"}}
    assert told({**OURS, **tls}) == set()


def test_hami_over_the_network_without_a_ca() -> None:
    assert told(OURS, {**HAMI, "urlPrefix": "https://hami.kube-system:443"}) == {Code.UNVERIFIED_TLS}
    assert told(OURS, {**HAMI, "httpTimeout": "5s"}) == {Code.SHORT_TIMEOUT}


def test_settings_of_the_whole_file() -> None:
    assert told(OURS, podMaxBackoffSeconds=10) == {Code.LONG_BACKOFF}
    found = check(seen(scheduler_configs=(config(OURS, podInitialBackoffSeconds=3),)))
    assert only(found, Code.LONG_BACKOFF).verdict is Verdict.PROBLEM
    assert told(OURS, percentageOfNodesToScore=0) == {Code.NODES_UNSEEN}


def test_a_scheduler_of_pods_with_cards_that_does_not_ask_us() -> None:
    assert told(HAMI) == {Code.EXTENDER_MISSING}
    none = config()
    assert not codes(check(seen(scheduler_configs=(none,))))
    assert codes(check(seen(pod("p"), scheduler_configs=(none,)))) == {Code.EXTENDER_MISSING}


def test_pods_of_a_scheduler_that_was_not_found() -> None:
    picture = seen(by_scheduler(pod("p"), "volcano"), scheduler_configs=(config(OURS),))
    found = only(check(picture), Code.NOT_OUR_PROFILE)
    assert found.evidence["podsByScheduler"] == {"volcano": 1}


def test_nodes_of_hami_and_no_extender_of_hami() -> None:
    picture = seen(shared_node("n"), scheduler_configs=(config(OURS),))
    assert codes(check(picture)) == {Code.NOT_OUR_PROFILE}


def test_none_found_is_unknown_and_a_silent_extender_a_problem() -> None:
    [found] = check(seen())
    assert (found.code, found.verdict) == (Code.NOT_FOUND, Verdict.UNKNOWN)
    silent = (Answering("wholenode-system/wholenode-extender", ready=False, detail="503"),)
    assert Code.EXTENDER_SILENT in codes(check(seen(answering=silent)))


def test_broken_files_say_where() -> None:
    wrong = (
        "kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/v1\nextenders: [{weight: high}]\n"
    )
    [one] = scheduler_configs("f", wrong)
    assert "extenders[0].weight" in one.problem
    [one] = scheduler_configs("f", "kind: KubeSchedulerConfiguration\n  bad: [")
    assert "YAML" in one.problem
    [one] = scheduler_configs("f", "kind: KubeSchedulerConfiguration\napiVersion: v1\n")
    found = check(seen(scheduler_configs=(one,)))
    assert only(found, Code.UNREADABLE).verdict is Verdict.PROBLEM


def test_configurations_inside_config_maps() -> None:
    inner = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    outer = f"kind: ConfigMap\ndata:\n  a: |\n    {inner.replace(chr(10), chr(10) + '    ')}\n"
    assert len(scheduler_configs("f", outer)) == 1
    listed = yaml.safe_dump({"kind": "List", "items": [{"kind": "ConfigMap", "data": {"a": inner}}]})
    assert len(scheduler_configs("f", listed)) == 1
    assert scheduler_configs("f", "a: b") == ()
    kueue = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\nresources: {quotaCheckStrategy: Ignore}\n"
    found = kueue_config(kueue)
    assert found is not None
    assert found.resources.quota_check_strategy == "Ignore"
    assert kueue_config(kueue.replace("Configuration", "Other")) is None
    assert kueue_config(kueue + "  x: [") is None
