"""kube-scheduler's extender protocol, to the letter (k8s.io/kube-scheduler/extender/v1).

Keys are the Go field names; the form that is not used is null; a failure map is never null.
"""

import msgspec

from fleet.objects import Metadata, Pod
from fleet.placement import Placement


class _Message(msgspec.Struct, frozen=True, rename="pascal", gc=False):
    pass


class _NamedNode(msgspec.Struct, frozen=True, gc=False):
    metadata: Metadata


class _NodeNames(msgspec.Struct, frozen=True, gc=False):
    items: tuple[_NamedNode, ...] | None = None


class ExtenderArgs(_Message, frozen=True):
    """What filter and prioritize are asked: NodeNames with `nodeCacheCapable: true`, whole Nodes without."""

    pod: Pod
    nodes: _NodeNames | None = None
    node_names: tuple[str, ...] | None = None

    def names(self) -> tuple[str, ...]:
        """The nodes in question, whichever form they came in."""
        if self.node_names is not None:
            return self.node_names
        items = self.nodes.items if self.nodes is not None else None
        return tuple(node.metadata.name for node in items or ())


class _RawNodes(msgspec.Struct, frozen=True):
    items: tuple[msgspec.Raw, ...] | None = None


class _RawArgs(msgspec.Struct, frozen=True, rename="pascal"):
    nodes: _RawNodes | None = None


class NodeList(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw]
    metadata: dict[str, str] = {}


class ExtenderFilterResult(_Message, frozen=True):
    nodes: NodeList | None = None
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class HostPriority(_Message, frozen=True):
    host: str
    score: int


class _MetaPod(_Message, frozen=True):
    uid: str = msgspec.field(name="UID", default="")


class MetaVictims(_Message, frozen=True):
    """Who would be stopped on one node, by UID only."""

    pods: tuple[_MetaPod, ...] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _Victims(_Message, frozen=True):
    pods: tuple[Pod, ...] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)

    def short(self) -> MetaVictims:
        return MetaVictims(tuple(_MetaPod(pod.metadata.uid) for pod in self.pods or ()), self.num_pdb_violations)


class PreemptionArgs(_Message, frozen=True):
    """What preempt is asked: candidate nodes and who would be stopped there, in the short or the long form."""

    pod: Pod
    node_name_to_victims: dict[str, _Victims] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None

    def candidates(self) -> dict[str, MetaVictims]:
        if self.node_name_to_meta_victims is not None:
            return self.node_name_to_meta_victims
        return {name: victims.short() for name, victims in (self.node_name_to_victims or {}).items()}


class _PreemptionResult(_Message, frozen=True):
    node_name_to_meta_victims: dict[str, MetaVictims]


_ARGS = msgspec.json.Decoder(ExtenderArgs)
_PREEMPTION = msgspec.json.Decoder(PreemptionArgs)
_RAW = msgspec.json.Decoder(_RawArgs)
_ENCODER = msgspec.json.Encoder()


def read_args(body: bytes) -> ExtenderArgs:
    """Raises msgspec.DecodeError (ValidationError among it) with a text that says where."""
    return _ARGS.decode(body)


def read_preemption(body: bytes) -> PreemptionArgs:
    """Raises msgspec.DecodeError."""
    return _PREEMPTION.decode(body)


def preemption_answer(args: PreemptionArgs, allowed: list[str]) -> bytes:
    """The candidates that are left, with the victims as they were given; always in the short form."""
    candidates = args.candidates()
    return _ENCODER.encode(_PreemptionResult({name: candidates[name] for name in allowed}))


def filter_answer(args: ExtenderArgs, body: bytes, placement: Placement) -> bytes:
    """The answer in the form that was asked."""
    failed: dict[str, str] = dict(placement.for_now)
    final: dict[str, str] = dict(placement.refused)
    if args.node_names is not None or args.nodes is None:
        result = ExtenderFilterResult(
            node_names=placement.passed, failed_nodes=failed, failed_and_unresolvable_nodes=final
        )
        return _ENCODER.encode(result)
    passed = set(placement.passed)
    raw = _RAW.decode(body).nodes
    kept = [item for item, name in zip((raw.items if raw else None) or (), args.names(), strict=True) if name in passed]
    nodes = NodeList(kept)
    return _ENCODER.encode(ExtenderFilterResult(nodes=nodes, failed_nodes=failed, failed_and_unresolvable_nodes=final))


def error_answer(text: str) -> bytes:
    """A filter answer that makes the scheduling cycle fail with this text: only for questions that make no sense."""
    return _ENCODER.encode(ExtenderFilterResult(error=text))


def priorities(scored: list[tuple[str, int]]) -> bytes:
    """A bare array of hosts and whole scores."""
    return _ENCODER.encode([HostPriority(host, score) for host, score in scored])
