"""Label and node selectors, matched as the API server and kube-scheduler match them."""

import re
from collections.abc import Mapping

from fleet.objects import LabelSelector, Node, PodSpec, Requirement, Taint, Toleration

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_NAME = 63
_MAX_PREFIX = 253
_MOST_STEPS = 1000
_VALUES_A_STEP = 64


def label_problem(key: str, value: str) -> str | None:
    """Why no object can ever carry this label, in words; None if one can (Kubernetes' rules for label names)."""
    prefix, slash, name = key.rpartition("/")
    prefix_ok = not slash or (len(prefix) <= _MAX_PREFIX and _PREFIX.fullmatch(prefix))
    if not prefix_ok or len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        return f"{key!r} is not a valid label name"
    if value and (len(value) > _MAX_NAME or not _NAME.fullmatch(value)):
        return f"{value!r} is not a valid label value"
    return None


def labels_match(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """A LabelSelector against labels. An empty one matches everything: callers refuse it where that is wrong."""
    wanted = selector.match_labels or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        requirement_matches(requirement, labels) for requirement in selector.match_expressions or ()
    )


def requirement_matches(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """One expression; an operator that is not known matches nothing."""
    value = labels.get(requirement.key)
    values = requirement.values or ()
    match requirement.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(value, values, greater=requirement.operator == "Gt")
        case _:
            return False


def _compares(value: str | None, values: tuple[str, ...], *, greater: bool) -> bool:
    if value is None or len(values) != 1 or not _INTEGER.fullmatch(value) or not _INTEGER.fullmatch(values[0]):
        return False
    left, right = int(value), int(values[0])
    return left > right if greater else left < right


def node_wanted(spec: PodSpec, node: Node, ignored_key: str) -> bool:
    """Whether the pod's node selector and required node affinity admit the node.

    `ignored_key` is a selector key that is not looked at: our own, which we set and clear ourselves. An affinity of
    thousands of terms, which is looked at for every node in every pass, is read to its thousandth step only.
    """
    labels = node.metadata.labels or {}
    for key, value in (spec.node_selector or {}).items():
        if key != ignored_key and labels.get(key) != value:
            return False
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    if required is None:
        return True
    fields, steps = {"metadata.name": node.metadata.name}, 0
    for term in required.node_selector_terms or ():
        expressions, by_field = term.match_expressions or (), term.match_fields or ()
        steps += 1 + sum(1 + len(one.values or ()) // _VALUES_A_STEP for one in (*expressions, *by_field))
        if steps > _MOST_STEPS:
            return False
        if not expressions and not by_field:
            continue
        if all(requirement_matches(one, labels) for one in expressions) and all(
            requirement_matches(one, fields) for one in by_field
        ):
            return True
    return False


def tolerates(tolerations: tuple[Toleration, ...] | None, taint: Taint) -> bool:
    """Whether one of the tolerations covers the taint (k8s.io/component-helpers, `ToleratesTaint`)."""
    for toleration in tolerations or ():
        if toleration.effect and toleration.effect != taint.effect:
            continue
        if toleration.key and toleration.key != taint.key:
            continue
        if toleration.operator == "Exists":
            return True
        if (
            toleration.key
            and toleration.operator in {None, "", "Equal"}
            and (toleration.value or "") == (taint.value or "")
        ):
            return True
    return False
