"""The rendered scheduler configuration next to HAMi: our entry first, and nothing kube-scheduler would refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from kwok.controlplane import ControlPlane
from kwok.hami.run import Hami

HAMI = Hami(ControlPlane()).entry()
ITS_OWN_CHART = HAMI | {"urlPrefix": "https://127.0.0.1:443", "enableHTTPS": True, "tlsConfig": {"insecure": True}}


def settings(*others: dict[str, Any], next_to_hami: bool = True) -> list[str]:
    return [f"scheduler.nextToHAMi={json.dumps(next_to_hami)}", f"scheduler.otherExtenders={json.dumps(others)}"]


def configuration(objects: list[dict[str, Any]]) -> dict[str, Any]:
    texts = [one["data"]["scheduler-config.yaml"] for one in objects if "scheduler-config.yaml" in one.get("data", {})]
    found: dict[str, Any] = yaml.safe_load(texts[0])
    return found


def test_h08_our_entry_stands_before_hamis_is_not_ignorable_and_manages_nothing(
    rendered: Callable[..., list[dict[str, Any]]],
) -> None:
    ours, theirs = configuration(rendered(*settings(ITS_OWN_CHART)))["extenders"]
    assert "wholenode-extender" in ours["urlPrefix"]
    assert ours["ignorable"] is False
    assert "managedResources" not in ours
    assert "bindVerb" not in ours
    assert ours["nodeCacheCapable"] is True
    assert theirs == ITS_OWN_CHART, "as it was given, so with nodeCacheCapable and bind"


@pytest.mark.parametrize(
    ("others", "next_to_hami", "words"),
    [
        ([HAMI], False, "scheduler.otherExtenders[0] manages nvidia.com/gpu, and so does wholenode's entry"),
        ([HAMI, HAMI], True, "scheduler.otherExtenders[1] manages nvidia.com/gpu, and so does scheduler.otherExt"),
        ([HAMI, {"urlPrefix": "http://b:1", "bindVerb": "bind"}], True, "scheduler.otherExtenders[1] has a bindVerb"),
    ],
)
def test_o02_what_kube_scheduler_would_not_start_with_is_refused_at_render_time(
    template: Callable[..., Any], others: list[dict[str, Any]], words: str, *, next_to_hami: bool
) -> None:
    run = template(*settings(*others, next_to_hami=next_to_hami))
    assert run.returncode != 0
    assert words in run.stderr


@pytest.mark.parametrize("tls", [None, {}, {"serverName": "hami"}])
def test_o03_https_that_verifies_nobody_must_be_said_in_words(
    template: Callable[..., Any], tls: dict[str, Any] | None
) -> None:
    entry = HAMI | {"urlPrefix": "https://hami:443"} | ({} if tls is None else {"tlsConfig": tls})
    run = template(*settings(entry))
    assert run.returncode != 0
    assert "scheduler.otherExtenders[0].tlsConfig.caFile is needed with https" in run.stderr
    ours = template("scheduler.urlPrefix=" + json.dumps("https://e:1"))
    assert "scheduler.tls.caFile is needed with https" in ours.stderr


@pytest.mark.parametrize(
    "entry", [{}, {"urlPrefix": "hami:443"}, {"urlPrefix": "http://h", "managedResources": ["x/y"]}]
)
def test_an_entry_that_is_none_is_refused_with_its_path(template: Callable[..., Any], entry: dict[str, Any]) -> None:
    run = template(*settings(entry))
    assert run.returncode != 0
    assert "otherExtenders" in run.stderr
