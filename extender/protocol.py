"""kube-scheduler's extender protocol, to the letter (k8s.io/kube-scheduler/extender/v1).

Keys are the Go field names; the form that is not used is null; a failure map is never null.
"""

from collections.abc import Mapping

import msgspec

from fleet.objects import Metadata, Pod
from fleet.placement import Placement


class _Message(msgspec.Struct, frozen=True, rename="pascal", gc=False):
    pass


class NamedNode(msgspec.Struct, frozen=True, gc=False):
    metadata: Metadata


class NamedNodes(msgspec.Struct, frozen=True, gc=False):
    items: tuple[NamedNode, ...] | None = None


class ExtenderArgs(_Message, frozen=True):
    """What filter and prioritize are asked: NodeNames with `nodeCacheCapable: true`, whole Nodes without."""

    pod: Pod
    nodes: NamedNodes | None = None
    node_names: list[str] | None = None

    def names(self) -> list[str]:
        """The nodes in question, whichever form they came in."""
        if self.node_names is not None:
            return self.node_names
        items = self.nodes.items if self.nodes is not None else None
        return [node.metadata.name for node in items or ()]


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
    failed_nodes: Mapping[str, str] = {}
    failed_and_unresolvable_nodes: Mapping[str, str] = {}
    error: str = ""


class HostPriority(_Message, frozen=True):
    host: str
    score: int


class MetaPod(_Message, frozen=True):
    uid: str = msgspec.field(name="UID", default="")


class MetaVictims(_Message, frozen=True):
    """Who would be stopped on one node, by UID only."""

    pods: tuple[MetaPod, ...] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class Victims(_Message, frozen=True):
    pods: tuple[Pod, ...] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)

    def short(self) -> MetaVictims:
        return MetaVictims(tuple(MetaPod(pod.metadata.uid) for pod in self.pods or ()), self.num_pdb_violations)


class ExtenderPreemptionArgs(_Message, frozen=True):
    """What preempt is asked: candidate nodes and who would be stopped there, in the short or the long form."""

    pod: Pod
    node_name_to_victims: dict[str, Victims | None] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims | None] | None = None

    def candidates(self) -> dict[str, MetaVictims]:
        if self.node_name_to_meta_victims is not None:
            return {name: victims or MetaVictims() for name, victims in self.node_name_to_meta_victims.items()}
        long = self.node_name_to_victims or {}
        return {name: victims.short() if victims else MetaVictims() for name, victims in long.items()}


class PreemptionResult(_Message, frozen=True):
    node_name_to_meta_victims: dict[str, MetaVictims]


_ARGS = msgspec.json.Decoder(ExtenderArgs)
_PREEMPTION = msgspec.json.Decoder(ExtenderPreemptionArgs)
_RAW = msgspec.json.Decoder(_RawArgs)
_ENCODER = msgspec.json.Encoder()


def read_args(body: bytes) -> ExtenderArgs:
    """Raises msgspec.DecodeError (ValidationError among it) with a text that says where."""
    return _ARGS.decode(body)


def read_preemption(body: bytes) -> ExtenderPreemptionArgs:
    """Raises msgspec.DecodeError."""
    return _PREEMPTION.decode(body)


def preemption_answer(args: ExtenderPreemptionArgs, allowed: list[str]) -> bytes:
    """The candidates that are left, with the victims as they were given; always in the short form."""
    candidates = args.candidates()
    return _ENCODER.encode(PreemptionResult({name: candidates[name] for name in allowed}))


def filter_answer(args: ExtenderArgs, body: bytes, placement: Placement) -> bytes:
    """The answer in the form that was asked. Raises UnicodeDecodeError if whole nodes are asked about and not UTF-8."""
    failed, final = placement.for_now, placement.refused
    if args.node_names is not None or args.nodes is None:
        return _ENCODER.encode(ExtenderFilterResult(None, placement.passed, failed, final))
    body.decode()  # the nodes go back as they came, parts that nobody has read among them
    passed = set(placement.passed)
    raw = _RAW.decode(body).nodes
    kept = [item for item, name in zip((raw.items if raw else None) or (), args.names(), strict=True) if name in passed]
    nodes = NodeList(kept)
    return _ENCODER.encode(ExtenderFilterResult(nodes, None, failed, final))


def error_answer(text: str) -> bytes:
    """A filter answer that makes the scheduling cycle fail with this text: only for questions that make no sense."""
    return _ENCODER.encode(ExtenderFilterResult(error=text))


def priorities(scored: list[tuple[str, int]]) -> bytes:
    """A bare array of hosts and whole scores."""
    return _ENCODER.encode([HostPriority(host, score) for host, score in scored])
