"""KWOK's configuration: how the fake kubelets start, finish and end pods, and keep nodes ready.

A pod's life is ruled by its annotations, all durations in Go style:

* `sim.wholenode.io/duration`: how long it runs. At start the end goes into `sim.wholenode.io/finish-at` (RFC 3339),
  because KWOK counts a delay anew after every update of the pod; without it the pod runs on.
* `sim.wholenode.io/term-delay`: how long its end takes once it is deleted (else 100 ms); very long = a stuck pod.
* `sim.wholenode.io/outcome: failed`: it ends as Failed (exit code 1) instead of Succeeded.

A node with the annotation `sim.wholenode.io/down` gets no status from us: a test may then set its conditions itself.
"""

from __future__ import annotations

from typing import Any

import yaml

DURATION = "sim.wholenode.io/duration"
FINISH_AT = "sim.wholenode.io/finish-at"
TERM_DELAY = "sim.wholenode.io/term-delay"
OUTCOME = "sim.wholenode.io/outcome"
NODE_DOWN = "sim.wholenode.io/down"
STUCK = "8760h"
TERM_DELAY_MILLISECONDS = 100
UNMARKED_RETRY_MILLISECONDS = 5000
HEARTBEAT_MILLISECONDS = 600_000
"""kube-controller-manager takes a node for lost after three of them."""

RUNNING = """\
{{ $now := Now }}
phase: Running
startTime: {{ $now | Quote }}
conditions:
- {type: Initialized, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: Ready, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: ContainersReady, status: "True", lastTransitionTime: {{ $now | Quote }}}
containerStatuses:
{{ range .spec.containers }}
- {name: {{ .name | Quote }}, image: {{ .image | Quote }}, ready: true, started: true, restartCount: 0, \
state: {running: {startedAt: {{ $now | Quote }}}}}
{{ end }}
{{ with PodIPsWith .spec.nodeName false ( or .metadata.uid "" ) .metadata.name .metadata.namespace }}
podIP: {{ index . 0 | Quote }}
podIPs:
- ip: {{ index . 0 | Quote }}
{{ end }}
"""

FINISH = f"""\
annotations:
  {FINISH_AT}: {{{{ now | dateModify (printf "+%s" (index .metadata.annotations "{DURATION}")) \
| date "2006-01-02T15:04:05.000000Z07:00" | Quote }}}}
"""


def _ended(phase: str, reason: str, exit_code: int) -> str:
    return f"""\
{{{{ $now := Now }}}}
{{{{ $started := or .status.startTime $now }}}}
phase: {phase}
conditions:
- {{type: Ready, status: "False", reason: Pod{reason}, lastTransitionTime: {{{{ $now | Quote }}}}}}
- {{type: ContainersReady, status: "False", reason: Pod{reason}, lastTransitionTime: {{{{ $now | Quote }}}}}}
containerStatuses:
{{{{ range .spec.containers }}}}
- {{name: {{{{ .name | Quote }}}}, image: {{{{ .image | Quote }}}}, ready: false, started: false, restartCount: 0, \
state: {{terminated: {{exitCode: {exit_code}, reason: {reason}, startedAt: {{{{ $started | Quote }}}}, \
finishedAt: {{{{ $now | Quote }}}}}}}}}}
{{{{ end }}}}
"""


NODE_STATUS = """\
{{ $now := Now }}
{{ $since := or .metadata.creationTimestamp $now }}
phase: Running
conditions:
{{ range NodeConditions }}
- {type: {{ .type | Quote }}, status: {{ .status | Quote }}, reason: {{ .reason | Quote }}, \
message: {{ .message | Quote }}, lastHeartbeatTime: {{ $now | Quote }}, lastTransitionTime: {{ $since | Quote }}}
{{ end }}
addresses:
- {type: InternalIP, address: {{ NodeIP | Quote }}}
- {type: Hostname, address: {{ NodeName | Quote }}}
"""


def _annotation(name: str) -> str:
    return f'.metadata.annotations["{name}"]'


def _absent(key: str) -> dict[str, Any]:
    return {"key": key, "operator": "DoesNotExist"}


def _present(key: str) -> dict[str, Any]:
    return {"key": key, "operator": "Exists"}


def _is(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


def _is_not(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "NotIn", "values": list(values)}


def _status(template: str) -> dict[str, Any]:
    return {"patch": {"subresource": "status", "root": "status", "template": template}}


def _metadata(template: str) -> dict[str, Any]:
    return {"patch": {"root": "metadata", "template": template}}


def _stage(kind: str, name: str, selector: list[dict[str, Any]], **rest: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": selector},
            **rest,
        },
    }


def _node_stages() -> list[dict[str, Any]]:
    ready = '.status.conditions.[] | select( .type == "Ready" ) | .status'
    up = _absent(_annotation(NODE_DOWN))
    heartbeat = {"durationMilliseconds": HEARTBEAT_MILLISECONDS}
    return [
        _stage("Node", "sim-node-ready", [_is_not(ready, "True"), up], steps=[_status(NODE_STATUS)]),
        _stage("Node", "sim-node-new", [_is(ready, "True"), up, _is_not(".status.phase", "Running")],
               steps=[_status(NODE_STATUS)]),
        _stage("Node", "sim-node-heartbeat", [_is(ready, "True"), up, _is(".status.phase", "Running")],
               delay=heartbeat, steps=[_status(NODE_STATUS)]),
    ]  # fmt: skip


def _pod_stages() -> list[dict[str, Any]]:
    alive = _absent(".metadata.deletionTimestamp")
    phase = ".status.phase"
    duration, finish_at = _annotation(DURATION), _annotation(FINISH_AT)
    at_finish = {"durationMilliseconds": 0, "durationFrom": {"expressionFrom": finish_at}}
    over = [alive, _is(phase, "Running"), _present(finish_at)]
    return [
        # The status goes first: the event of the second patch then finds the pod Running and starts the clock.
        _stage("Pod", "sim-pod-run", [alive, _is(phase, "Pending"), _present(duration)],
               steps=[_status(RUNNING), _metadata(FINISH)]),
        _stage("Pod", "sim-pod-run-on", [alive, _is(phase, "Pending"), _absent(duration)], steps=[_status(RUNNING)]),
        # Only if kwok was stopped between the two patches of sim-pod-run.
        _stage("Pod", "sim-pod-mark", [alive, _is(phase, "Running"), _present(duration), _absent(finish_at)],
               delay={"durationMilliseconds": UNMARKED_RETRY_MILLISECONDS}, steps=[_metadata(FINISH)]),
        _stage("Pod", "sim-pod-succeed", [*over, _is_not(_annotation(OUTCOME), "failed")], delay=at_finish,
               steps=[_status(_ended("Succeeded", "Completed", 0))]),
        _stage("Pod", "sim-pod-fail", [*over, _is(_annotation(OUTCOME), "failed")], delay=at_finish,
               steps=[_status(_ended("Failed", "Error", 1))]),
        # A running pod ends as Failed before it goes: a Job with a pod failure policy waits for an end.
        _stage("Pod", "sim-pod-terminate",
               [_present(".metadata.deletionTimestamp"), _is_not(phase, "Succeeded", "Failed")],
               delay=_term_delay(), steps=[_status(_ended("Failed", "Error", 143))]),
        _stage("Pod", "sim-pod-remove",
               [_present(".metadata.deletionTimestamp"), _is(phase, "Succeeded", "Failed")],
               steps=[{"delete": True}]),
    ]  # fmt: skip


def _term_delay() -> dict[str, Any]:
    return {
        "durationMilliseconds": TERM_DELAY_MILLISECONDS,
        "durationFrom": {"expressionFrom": _annotation(TERM_DELAY)},
    }


def configuration() -> str:
    """Return the whole configuration file for `kwok --config`, as YAML documents."""
    options = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "metadata": {"name": "kwok"},
        "options": {"podPlayStageParallelism": 16, "nodePlayStageParallelism": 8},
    }
    return yaml.safe_dump_all([options, *_node_stages(), *_pod_stages()], sort_keys=False)
