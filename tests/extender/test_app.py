"""The extender's answers on the wire: kube-scheduler's protocol to the letter, and no harm from anything else."""

import asyncio
import gc
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.marks import taint
from fleet.names import CLAIM_KEY
from fleet.resources import Accepts, Overflow, Phase
from tests.extender.asgi import MAX_BODY, Rig, call
from tests.fleet.builders import agreement, claim, node, pod, pool

SMALL = pool("small", accepts=Accepts.SMALL)
BIG = pool("big", overflow=Overflow.NEVER)


def gpu_pod(cards: int = 1, *, namespace: str = "team-v", **more: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(cards)} if cards else {"cpu": "1"}
    return {
        "metadata": {"name": "p", "namespace": namespace, "uid": "u", **more.pop("metadata", {})},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}], **more.pop("spec", {})},
        "status": more.pop("status", {}),
    }


def by_name(names: list[str], one: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"Pod": one or gpu_pod(), "Nodes": None, "NodeNames": names}


async def test_e01_names_in_pascal_case_the_unused_form_null_and_no_error() -> None:
    rig = Rig(SMALL, BIG, node("n1", "small"), node("n2"))
    assert await rig.ask("filter", by_name(["n1", "n2"])) == {
        "Nodes": None,
        "NodeNames": ["n1"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {"n2": "wholenode: node is kept for whole-node gangs"},
        "Error": "",
    }


async def test_e02_whole_nodes_are_answered_in_the_form_they_came_in() -> None:
    rig = Rig(SMALL, BIG, node("n1", "small"), node("n2"))
    items = [
        {
            "metadata": {"name": name, "labels": {"x": "é"}},
            "status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}},
        }
        for name in ("n1", "n2")
    ]
    answer = await rig.ask("filter", {"Pod": gpu_pod(), "Nodes": {"metadata": {}, "items": items}, "NodeNames": None})
    assert answer["Nodes"]["items"] == items[:1]
    assert answer["NodeNames"] is None
    assert list(answer["FailedAndUnresolvableNodes"]) == ["n2"]


@pytest.mark.parametrize("nodes", [{"metadata": {}, "items": None}, {"metadata": {}, "items": []}, None])
async def test_no_node_asked_for_is_no_node_answered(nodes: Any) -> None:
    answer = await Rig(BIG).ask("filter", {"Pod": gpu_pod(), "Nodes": nodes, "NodeNames": None})
    assert answer["Error"] == ""
    assert answer["NodeNames"] == [] or answer["Nodes"]["items"] == []


async def test_e03_a_cpu_pod_gets_all_50_names_back_in_order() -> None:
    names = [f"n{number}" for number in range(50, 0, -1)]
    rig = Rig(SMALL, BIG, *(node(name) for name in names[2:]))
    answer = await rig.ask("filter", by_name(names, gpu_pod(0)))
    assert answer["NodeNames"] == names
    assert answer["FailedAndUnresolvableNodes"] == {}


async def test_e04_only_names_that_were_sent_and_a_deleted_node_only_with_a_reason() -> None:
    gone = node("n2", "small")
    rig = Rig(SMALL, node("n1", "small"), gone, node("n3", "small"), node("n9", "small"))
    assert (await rig.ask("filter", by_name(["n1", "n2", "n3"])))["NodeNames"] == ["n1", "n2", "n3"]
    rig.remove(gone)
    answer = await rig.ask("filter", by_name(["n1", "n2", "n3"]))
    assert answer["NodeNames"] == ["n1", "n3"]
    assert answer["FailedAndUnresolvableNodes"] == {"n2": "wholenode: node not seen yet"}


async def test_e05_e07_a_gang_whose_node_drains_is_told_so_by_the_failure_map() -> None:
    mine = claim(phase=Phase.DRAINING)
    rig = Rig(BIG, mine, node("n1", taints=(taint(mine.metadata.uid),)), node("n2"))
    one = gpu_pod(8, namespace="team-b", metadata={"annotations": {"wholenode.io/gang": "train"}})
    answer = await rig.ask("filter", by_name(["n1", "n2"], one))
    assert answer["NodeNames"] == []
    assert answer["FailedNodes"] == {}
    assert set(answer["FailedAndUnresolvableNodes"]) == {"n1", "n2"}
    assert answer["Error"] == ""


async def test_e06_the_nominated_nodes_no_for_now_stands_in_failed_nodes() -> None:
    mine = claim(phase=Phase.DRAINING)
    rig = Rig(BIG, mine, node("n1", taints=(taint(mine.metadata.uid),)))
    one = gpu_pod(
        8,
        namespace="team-b",
        metadata={"annotations": {"wholenode.io/gang": "train"}},
        status={"nominatedNodeName": "n1"},
    )
    answer = await rig.ask("filter", by_name(["n1"], one))
    assert set(answer["FailedNodes"]) == {"n1"}
    assert answer["FailedAndUnresolvableNodes"] == {}


async def test_e08_the_only_node_of_the_right_pool_is_found_among_300() -> None:
    rig = Rig(SMALL, BIG, *(node(f"b{number}") for number in range(299)), node("s", "small"))
    names = [*(f"b{number}" for number in range(299)), "s"]
    assert (await rig.ask("filter", by_name(names)))["NodeNames"] == ["s"]


async def test_e09_prioritize_answers_a_bare_array_of_whole_numbers() -> None:
    rig = Rig(SMALL, node("n1", "small"), node("n2", "small"), node("n3", "small"), pod("x", 7, on="n2"))
    answer = await rig.ask("prioritize", by_name(["n1", "n2", "n3"]))
    assert [one["Host"] for one in answer] == ["n1", "n2", "n3"]
    assert all(set(one) == {"Host", "Score"} and type(one["Score"]) is int for one in answer)
    assert answer[1]["Score"] > answer[0]["Score"] == answer[2]["Score"]


async def test_p12_p13_cards_are_used_until_the_pod_has_ended_or_is_gone() -> None:
    ended = pod("x", 7, on="n1", phase="Succeeded")
    rig = Rig(SMALL, node("n1", "small"), node("n2", "small"), ended, pod("y", 6, on="n2", going=0))
    assert rig.state.tally.touched == {"n2": 6}
    rig.put(pod("z", 2, on="n1"))
    assert rig.state.tally.touched == {"n1": 2, "n2": 6}
    rig.remove(pod("y", 6))
    assert rig.state.tally.touched == {"n1": 2}
    rig.put(pod("z", 2, on="n1", phase="Failed"))
    assert rig.state.tally.touched == {}


async def test_cards_are_counted_anew_when_a_pool_brings_another_resource() -> None:
    other = pod("x", 3, on="n1")
    rig = Rig(node("n1", "small"))
    rig.put(pod("y", 2, on="n1"))
    assert rig.state.tally.touched == {"n1": 2}
    rig.put(SMALL)
    rig.put(other)
    assert rig.state.tally.touched == {"n1": 5}


async def test_e10_5000_names_20_times_over_leave_no_memory_behind() -> None:
    names = [f"n{number}" for number in range(5000)]
    rig = Rig(SMALL, BIG, *(node(name, "small" if number % 2 else "big") for number, name in enumerate(names)))
    body = json.dumps(by_name(names)).encode()
    for _ in range(3):
        await rig.post("/filter", body)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(20):
            status, answer = await rig.post("/filter", body)
            assert status == 200
        assert len(json.loads(answer)["NodeNames"]) == 2500
        del answer
        await asyncio.sleep(0)  # the last answer is counted when it is out
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 200_000


async def test_e13_e14_100_calls_at_once_answer_alike_and_change_nothing() -> None:
    rig = Rig(SMALL, BIG, agreement(), node("n1", "small"), node("n2"), pod("x", 3, on="n1"))
    bound = gpu_pod(1, spec={"nodeName": "n2"})
    board, used = rig.state.board(), dict(rig.state.tally.touched)
    answers = await asyncio.gather(*(rig.ask("filter", by_name(["n1", "n2"], bound)) for _ in range(100)))
    assert all(answer == answers[0] for answer in answers)
    assert rig.state.board() is board
    assert rig.state.tally.touched == used


async def test_e16_preemption_is_allowed_only_where_the_filter_would_let_the_pod_go() -> None:
    rig = Rig(SMALL, BIG, node("n1", "small", taints=(taint("u"),)), node("n2"), node("n3", "small"))
    victims = {"Pods": [{"UID": "v"}], "NumPDBViolations": 1}
    question = {
        "Pod": gpu_pod(),
        "NodeNameToVictims": None,
        "NodeNameToMetaVictims": {"n1": victims, "n2": victims, "n3": victims},
    }
    assert await rig.ask("preempt", question) == {"NodeNameToMetaVictims": {"n3": victims}}
    del question["NodeNameToMetaVictims"]["n3"]
    assert await rig.ask("preempt", question) == {"NodeNameToMetaVictims": {}}


async def test_e16_victims_in_the_long_form_are_answered_in_the_short_one() -> None:
    rig = Rig(SMALL, node("n3", "small"))
    long = {"Pods": [{"metadata": {"name": "v", "uid": "uid-v"}, "spec": {}}], "NumPDBViolations": 0}
    answer = await rig.ask(
        "preempt", {"Pod": gpu_pod(), "NodeNameToVictims": {"n3": long}, "NodeNameToMetaVictims": None}
    )
    assert answer == {"NodeNameToMetaVictims": {"n3": {"Pods": [{"UID": "uid-v"}], "NumPDBViolations": 0}}}


@pytest.mark.parametrize("pods", [[], None])
async def test_e17_a_candidate_without_victims_is_accepted_as_it_is(pods: Any) -> None:
    rig = Rig(SMALL, node("n3", "small"))
    candidate = {"Pods": pods, "NumPDBViolations": 0}
    answer = await rig.ask("preempt", {"Pod": gpu_pod(), "NodeNameToMetaVictims": {"n3": candidate}})
    assert answer == {"NodeNameToMetaVictims": {"n3": candidate}}


async def test_e20_before_the_caches_are_full_gpu_pods_are_told_so_and_cpu_pods_pass() -> None:
    rig = Rig(SMALL, node("n1", "small"), ready=False)
    answer = await rig.ask("filter", by_name(["n1"]))
    assert answer["FailedAndUnresolvableNodes"] == {"n1": "wholenode: the extender has not seen the whole cluster yet"}
    assert (await rig.ask("filter", by_name(["n1"], gpu_pod(0))))["NodeNames"] == ["n1"]
    assert await rig.ask("preempt", {"Pod": gpu_pod(), "NodeNameToMetaVictims": {"n1": {}}}) == {
        "NodeNameToMetaVictims": {}
    }
    assert (await call(rig.app, "GET", "/readyz"))[0] == 503
    assert (await call(rig.app, "GET", "/healthz"))[0] == 200
    rig.ready()
    assert (await call(rig.app, "GET", "/readyz")) == (200, b"ok")
    assert (await rig.ask("filter", by_name(["n1"])))["NodeNames"] == ["n1"]


async def test_c07_a_silent_watch_makes_it_not_ready_and_names_the_watch() -> None:
    rig = Rig(SMALL, node("n1", "small"))
    rig.state.nodes.last_event_at -= 141
    status, text = await call(rig.app, "GET", "/readyz")
    assert status == 503
    assert b"/api/v1/nodes" in text


async def test_a_changed_node_label_pool_or_claim_is_seen_by_the_next_question() -> None:
    rig = Rig(SMALL, BIG, node("n1"))
    whole = gpu_pod(8, namespace="team-b", metadata={"annotations": {"wholenode.io/gang": "train"}})
    assert (await rig.ask("filter", by_name(["n1"], whole)))["NodeNames"] == []
    mine = claim(phase=Phase.READY)
    rig.put(mine, node("n1", taints=(taint(mine.metadata.uid),), labels={CLAIM_KEY: mine.metadata.uid}))
    assert (await rig.ask("filter", by_name(["n1"], whole)))["NodeNames"] == ["n1"]
    rig.put(claim(phase=Phase.ROLLED_BACK))
    assert (await rig.ask("filter", by_name(["n1"], whole)))["NodeNames"] == []


async def test_a_label_alone_moves_a_node_to_another_pool() -> None:
    rig = Rig(SMALL, BIG, node("n1"))
    assert (await rig.ask("filter", by_name(["n1"])))["NodeNames"] == []
    rig.put(node("n1", "small"))
    assert (await rig.ask("filter", by_name(["n1"])))["NodeNames"] == ["n1"]


async def test_o05_bodies_that_are_too_large_are_refused_with_and_without_a_declared_length() -> None:
    rig = Rig(SMALL)
    assert (await rig.post("/filter", b" " * (MAX_BODY + 1)))[0] == 413
    assert (await rig.post("/filter", b"", chunks=[b" " * 100_000] * 12))[0] == 413
    assert (await rig.ask("filter", by_name([])))["Error"] == ""


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"Pod":null}',
        b'{"Pod":{}}',
        b"\xff\xfe",
        b"[" * 10_000,
        b'{"Pod":' + b'{"a":' * 10_000,
    ],
    ids=["empty", "null", "array", "cut", "no-pod", "no-metadata", "not-utf8", "deep-arrays", "deep-objects"],
)
async def test_o05_garbage_is_answered_with_200_and_a_text(body: bytes) -> None:
    rig = Rig(SMALL)
    status, answer = await rig.post("/filter", body)
    assert status == 200
    assert json.loads(answer)["Error"].startswith("wholenode: not an ExtenderArgs")
    status, answer = await rig.post("/prioritize", body)
    assert (status, json.loads(answer)) == (200, [])
    assert (await rig.post("/preempt", body))[0] == 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
questions = st.fixed_dictionaries(
    {},
    optional={
        "Pod": st.one_of(
            json_values,
            st.builds(
                lambda quantity, extra: {
                    **gpu_pod(0),
                    **extra,
                    "spec": {"containers": [{"resources": {"limits": quantity}}]},
                },
                st.dictionaries(st.sampled_from(["nvidia.com/gpu", "cpu"]), st.text(max_size=6) | st.integers()),
                st.dictionaries(st.sampled_from(["status", "kind"]), json_values, max_size=2),
            ),
        ),
        "NodeNames": st.one_of(json_values, st.lists(st.sampled_from(["n1", "n2", "n3"]))),
        "Nodes": st.one_of(json_values, st.just({"items": [{"metadata": {"name": "n1"}}]})),
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(question=questions, raw=st.binary(max_size=64))
def test_o05_whatever_is_asked_the_answer_has_the_form_of_the_protocol(question: Any, raw: bytes) -> None:
    async def play() -> None:
        rig = Rig(SMALL, BIG, node("n1", "small"), node("n2"))
        for body in (json.dumps(question).encode(), raw):
            status, answer = await rig.post("/filter", body)
            assert status == 200
            decoded = json.loads(answer)
            assert set(decoded) == {"Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}
            status, answer = await rig.post("/prioritize", body)
            assert status == 200
            assert all(set(one) == {"Host", "Score"} for one in json.loads(answer))

    asyncio.run(play())


async def test_o11_metrics_count_decisions_by_reason_and_carry_no_names() -> None:
    rig = Rig(SMALL, BIG, node("secret-n1", "small"), node("secret-n2"), pod("secret-pod", 3, on="secret-n1"))
    rig.put(pod("secret-waiting", 8))
    await rig.ask("filter", by_name(["secret-n1", "secret-n2"]))
    await rig.post("/filter", b"{")
    status, text = await call(rig.app, "GET", "/metrics")
    assert status == 200
    shown = text.decode()
    assert 'wholenode_filter_decisions_total{reason="",result="passed"} 1.0' in shown
    assert 'wholenode_filter_decisions_total{reason="WHOLE_NODE_POOL",result="refused"} 1.0' in shown
    assert 'wholenode_bad_requests_total{verb="filter"} 1.0' in shown
    assert 'wholenode_extender_cards_free{pool="small"} 5.0' in shown
    assert 'wholenode_extender_whole_nodes_free{pool="big"} 1.0' in shown
    assert 'wholenode_waiting_pods{request_class="whole-node"} 1.0' in shown
    assert "secret" not in shown
