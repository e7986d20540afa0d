"""Whatever is asked, the answer has the protocol's form: questions made from the OpenAPI document, and spoiled ones."""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from fleet.resources import Accepts, Overflow
from tests.extender.asgi import Rig, call
from tests.extender.from_schema import anything, values
from tests.fleet.builders import node, pool

RIG = Rig(
    pool("small", accepts=Accepts.SMALL),
    pool("big", overflow=Overflow.NEVER),
    node("n1", "small"),
    node("n2"),
)
OPENAPI = json.loads(json.dumps(RIG.app.openapi()))
COMPONENTS = OPENAPI["components"]["schemas"]
VERBS = ("filter", "prioritize", "preempt")


def question_schema(verb: str) -> Any:
    return OPENAPI["paths"][f"/v1/{verb}"]["post"]["requestBody"]["content"]["application/json"]["schema"]


def answer_schema(verb: str) -> Any:
    responses = OPENAPI["paths"][f"/v1/{verb}"]["post"]["responses"]
    return responses["200"]["content"]["application/json"]["schema"]


QUESTIONS = {verb: values(question_schema(verb), COMPONENTS) for verb in VERBS}
VALIDATORS = {
    verb: Draft202012Validator({**answer_schema(verb), "components": OPENAPI["components"]}) for verb in VERBS
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value within."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, one in inside for found in places(one, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(value)
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(copy[path[0]], path[1:], change)
    return copy


@st.composite
def spoiled(draw: st.DrawFn, question: st.SearchStrategy[Any]) -> bytes:
    """A question with one thing wrong, as bytes."""
    value = draw(question)
    path = draw(st.sampled_from(places(value)))
    kind = draw(
        st.sampled_from(("dropped", "other", "huge", "deep", "case", "nan", "twice", "bytes", "surrogate", "cut"))
    )
    mark = "\0mark\0"
    marked = json.dumps(changed(value, path, lambda _: mark)).encode()
    place = json.dumps(mark).encode()
    old = json.dumps(value).encode()
    match kind:
        case "dropped" if path:
            holder = changed(value, path[:-1], lambda one: _without(one, path[-1]))
            return json.dumps(holder).encode()
        case "other":
            return json.dumps(changed(value, path, lambda _: draw(anything))).encode()
        case "huge":
            return marked.replace(place, b'"' + b"x" * draw(st.sampled_from((70_000, 300_000))) + b'"')
        case "deep":
            depth = draw(st.sampled_from((100, 2_000, 100_000)))
            return marked.replace(place, b"[" * depth + b"]" * depth)
        case "case":
            return old.lower()
        case "nan":
            return marked.replace(
                place, draw(st.sampled_from((b"NaN", b"-Infinity", b"1e999", b"-0", b"1" * 400, b"1.5")))
            )
        case "twice":
            return old[:-1] + b"," + old[1:] if old.startswith(b"{") and len(old) > 2 else old
        case "bytes":
            return marked.replace(place, b'"\xff\xfe\xc3"')
        case "surrogate":
            return marked.replace(place, b'"\\ud800x"')
    return old[: draw(st.integers(0, len(old)))]


def _without(holder: Any, key: Any) -> Any:
    if isinstance(holder, dict):
        return {name: one for name, one in holder.items() if name != key}
    return [one for number, one in enumerate(holder) if number != key]


def judge(verb: str, status: int, body: bytes) -> None:
    """The answer is of the verb's form: 200 always, but for a preempt question that cannot be read."""
    if verb == "preempt" and status == 400:
        assert body.startswith(b"wholenode: not an ExtenderPreemptionArgs: ")
        return
    assert status == 200
    answer = json.loads(body.decode())
    VALIDATORS[verb].validate(answer)
    if verb == "filter":
        assert set(answer) == {"Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}
        assert (answer["Error"] == "") == (answer["NodeNames"] is not None or answer["Nodes"] is not None)


@pytest.mark.parametrize("verb", VERBS)
def test_the_description_covers_what_kube_scheduler_sends(verb: str) -> None:
    validator = Draft202012Validator({**question_schema(verb), "components": OPENAPI["components"]})
    pod = {"metadata": {"name": "p", "namespace": "x", "uid": "u"}, "spec": {}, "status": {}}
    if verb == "preempt":
        validator.validate(
            {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "v"}]}}}
        )
        validator.validate({"Pod": pod, "NodeNameToVictims": {"n1": {"Pods": [pod]}}, "NodeNameToMetaVictims": None})
        assert not validator.is_valid({"Pod": pod, "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": 1}]}}})
    else:
        validator.validate({"Pod": pod, "Nodes": None, "NodeNames": ["n1"]})
        validator.validate(
            {"Pod": pod, "Nodes": {"metadata": {}, "items": [{"metadata": {"name": "n1"}}]}, "NodeNames": None}
        )
        assert not validator.is_valid({"Pod": pod, "NodeNames": [1]})
    assert not validator.is_valid({"Nodes": None})
    assert set(OPENAPI["paths"][f"/{verb}"]["post"]["responses"]) >= {"200", "408", "413"}


@pytest.mark.parametrize(
    ("kind", "name"), [("Metadata", "creationTimestamp"), ("Terminated", "finishedAt"), ("Explanation", "since")]
)
def test_times_are_described_as_times(kind: str, name: str) -> None:
    described = COMPONENTS[kind]["properties"][name]["anyOf"]
    assert {"type": "string", "format": "date-time"} in described


async def test_the_document_is_served_and_complete() -> None:
    status, text = await call(RIG.app, "GET", "/openapi.json")
    assert status == 200
    document = json.loads(text)
    assert document == OPENAPI
    assert {"ExtenderArgs", "ExtenderFilterResult", "HostPriority", "ExtenderPreemptionArgs"} <= set(COMPONENTS)
    named = {one.split('"')[0] for one in text.decode().split("#/components/schemas/")[1:]}
    assert named <= set(COMPONENTS)


@pytest.mark.parametrize("verb", VERBS)
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_o05_questions_made_from_the_description_are_answered(verb: str, data: st.DataObject) -> None:
    question = data.draw(QUESTIONS[verb])
    status, body = RIG.desk.verbs[f"/v1/{verb}"](json.dumps(question).encode())
    judge(verb, status, body)
    assert status == 200
    if verb == "filter":
        assert json.loads(body)["Error"] == ""


@pytest.mark.parametrize("verb", VERBS)
@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=200)
@given(data=st.data())
def test_o05_spoiled_questions_are_answered_and_nothing_is_logged(verb: str, data: st.DataObject) -> None:
    body = data.draw(spoiled(QUESTIONS[verb]))
    complaints: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = complaints.append  # type: ignore[method-assign]
    logging.getLogger("wholenode").addHandler(handler)
    try:
        judge(verb, *RIG.desk.verbs[f"/v1/{verb}"](body))
    finally:
        logging.getLogger("wholenode").removeHandler(handler)
    assert complaints == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"Pod":{"metadata":{"name":"p"}},"Nodes":{"items":[{"metadata":{"name":"n1"},"x":"\xff"}]}}',
        b'{"Pod":{"metadata":{"name":"p"}},"NodeNames":["\\ud800"]}',
        b'{"pod":{"metadata":{"name":"p"}},"nodenames":["n1"]}',
        b'{"Pod":{"metadata":{"name":"p"}},"NodeNames":["n1"],"More":[NaN]}',
    ],
    ids=["bytes-that-nobody-reads", "half-a-pair", "lower-case", "nan-that-nobody-reads"],
)
def test_o05_what_is_not_the_protocol_is_told_and_not_passed_on(body: bytes) -> None:
    """Lower case too: kube-scheduler reads any letter case, but always writes Go's names."""
    status, answer = RIG.desk.verbs["/filter"](body)
    judge("filter", status, answer)
    assert json.loads(answer)["Error"].startswith("wholenode: not an ExtenderArgs: ")


def test_unknown_fields_are_ignored_and_of_two_equal_ones_the_last_counts() -> None:
    body = b'{"Pod":{"metadata":{"name":"p","new":{}},"new":[1]},"NodeNames":["n1"],"New":1,"NodeNames":["n2"]}'
    assert json.loads(RIG.desk.verbs["/filter"](body)[1])["NodeNames"] == ["n2"]


def test_e17_a_candidate_without_an_entry_counts_as_one_without_victims() -> None:
    body = b'{"Pod":{"metadata":{"name":"p"}},"NodeNameToMetaVictims":{"n1":null}}'
    answer = json.loads(RIG.desk.verbs["/preempt"](body)[1])
    assert answer == {"NodeNameToMetaVictims": {"n1": {"Pods": None, "NumPDBViolations": 0}}}
