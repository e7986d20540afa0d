"""A random history of the simulated cluster, with rules that hold after every step of it."""

from datetime import timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fleet.actions import Answer, EvictionAnswer, Timing
from fleet.cards import terminating
from fleet.marks import ENDED
from fleet.names import CLAIM_KEY, POLICY
from fleet.objects import Taint
from tests.fleet.builders import agreement, node, owned, pod
from tests.fleet.scenes import gang
from tests.fleet.simulation import Simulation, replace

NODES = ("n1", "n2", "n3", "n4")
TIMING = Timing(
    drain_timeout=timedelta(seconds=20), landing_timeout=timedelta(seconds=15), avoid_for=timedelta(seconds=30)
)
FOREIGN = Taint("example.com/keep", "PreferNoSchedule", "x")
node_names = st.sampled_from(NODES)
tenants = st.sampled_from(["team-v", "team-w"])
picks = st.integers(0, 10**6)


class Cluster(RuleBasedStateMachine):
    """What people, schedulers and machines do to a small fleet while the controller works on it."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = Simulation(timing=TIMING, recreate=True)
        self.made = 0
        self.cordoned: set[str] = set()

    @initialize(busy=st.lists(node_names, max_size=8), size=st.integers(1, 3), lag_seconds=st.sampled_from([0, 0.3]))
    def start(self, busy: list[str], size: int, lag_seconds: float) -> None:
        self.scene.lag_seconds = lag_seconds
        for name in NODES:
            self.scene.add(node(name, taints=(FOREIGN,)))
        for name in busy:
            self.slip_in(name, "team-v", grace=2)
        self.agree("team-v", None)
        self.submit_a_gang(size, "WaitThenEvict")

    def name(self, prefix: str) -> str:
        self.made += 1
        return f"{prefix}{self.made}"

    # Pods

    @rule(name=node_names, ns=tenants, grace=st.integers(0, 8))
    def slip_in(self, name: str, ns: str, grace: int) -> None:
        """Another scheduler binds a small pod, whatever our marks say."""
        owner = owned("ReplicaSet", "web") if grace % 2 else None
        self.scene.bind(pod(self.name("small-"), ns=ns, grace=grace, created=self.scene.seconds, owner=owner), name)

    @rule(ns=tenants)
    def ask_for_a_card(self, ns: str) -> None:
        self.scene.add(pod(self.name("small-"), ns=ns, grace=1, created=self.scene.seconds))

    @rule(size=st.integers(1, 3), policy=st.sampled_from(["Wait", "WaitThenEvict", "WaitThenEvict", "Preview"]))
    def submit_a_gang(self, size: int, policy: str) -> None:
        if len(self.scene.view().gangs) < 40:
            self.scene.add(gang(size, self.name("gang-"), created=self.scene.seconds, notes={POLICY: policy}))

    @rule(pick=picks)
    def delete_a_pod(self, pick: int) -> None:
        uids = sorted(self.scene.pods)
        if uids:
            self.scene.delete(uids[pick % len(uids)])

    @rule(pick=picks, phase=st.sampled_from(["Succeeded", "Failed"]))
    def end_a_pod(self, pick: int, phase: str) -> None:
        running = sorted(uid for uid, one in self.scene.pods.items() if one.spec.node_name and not terminating(one))
        if running:
            self.scene.end(running[pick % len(running)], phase)

    @rule(pick=picks, kind=st.sampled_from([EvictionAnswer.BUDGET, EvictionAnswer.REFUSED]))
    def protect_from_eviction(self, pick: int, kind: EvictionAnswer) -> None:
        uids = sorted(self.scene.pods)
        if uids:
            self.scene.refusals[uids[pick % len(uids)]] = Answer(kind, "not now")

    @rule()
    def lift_protection(self) -> None:
        self.scene.refusals.clear()

    # Agreements

    @rule(ns=tenants, lasts=st.one_of(st.none(), st.integers(1, 60)))
    def agree(self, ns: str, lasts: int | None) -> None:
        expires = None if lasts is None else self.scene.seconds + lasts
        self.scene.add(agreement(self.name("a"), ns=ns, expires=expires))

    @precondition(lambda self: self.scene.agreements)
    @rule(pick=picks)
    def withdraw(self, pick: int) -> None:
        del self.scene.agreements[pick % len(self.scene.agreements)]

    # Nodes

    @rule(name=node_names, kind=st.sampled_from(["cordon", "cards", "not ready", "replace", "strip", "taint", "label"]))
    def harm_a_node(self, name: str, kind: str) -> None:
        """Something happens to a node, by a machine or by hand."""
        scene = self.scene
        seen = scene.nodes[name]
        bare = name not in scene.marked()
        match kind:
            case "cordon":
                self.cordoned.add(name)
                scene.change_node(name, unschedulable=True)
            case "cards":
                scene.nodes[name] = replace(seen, status=node(name, cards=7).status)
            case "not ready":
                scene.nodes[name] = replace(seen, status=node(name, ready=False).status)
            case "replace":
                for uid in [uid for uid, one in scene.pods.items() if one.spec.node_name == name]:
                    del scene.pods[uid]
                self.cordoned.discard(name)
                scene.nodes[name] = node(name, taints=(FOREIGN,), uid=self.name("node-"))
            case "strip":
                scene.change_node(name, labels={"pool": "big"}, taints=(FOREIGN,))
            case "taint" if bare:
                scene.change_node(name, taints=(FOREIGN, Taint(CLAIM_KEY, "NoSchedule", "nobody")))
            case "label" if bare:
                scene.change_node(name, labels={"pool": "big", CLAIM_KEY: "nobody"})

    @rule()
    def heal_all_nodes(self) -> None:
        for name in NODES:
            self.scene.change_node(name, unschedulable=None)
            self.scene.nodes[name] = replace(self.scene.nodes[name], status=node(name).status)
        self.cordoned.clear()

    # Claims and the controller

    @rule(pick=picks)
    def delete_a_claim(self, pick: int) -> None:
        uids = sorted(self.scene.claims)
        if uids:
            del self.scene.claims[uids[pick % len(uids)]]

    @rule(writes=st.integers(1, 12))
    def kill_soon(self, writes: int) -> None:
        self.scene.kill_after = self.scene.writes + writes

    @rule(seconds=st.sampled_from([0.1, 0.4, 0.7]))
    def wait_a_moment(self, seconds: float) -> None:
        self.scene.go_on(seconds)

    @rule(seconds=st.sampled_from([1.5, 3.0, 6.0, 12.0]))
    def wait(self, seconds: float) -> None:
        self.scene.go_on(seconds)

    @rule()
    def wait_long(self) -> None:
        """Longer than anything takes before it is given up, and than a node that was given back is avoided."""
        self.scene.go_on(35)

    # What holds after each step, beside what the simulation checks whenever the controller is at rest

    @invariant()
    def nothing_strays(self) -> None:
        """Within the next pass every mark of ours belongs to a live claim, and every claim has a reason."""
        if self.scene.nodes:
            self.scene.go_on(0.01)

    @invariant()
    def foreign_marks_stay(self) -> None:
        for name, one in self.scene.nodes.items():
            assert (one.spec.taints or ())[:1] == (FOREIGN,), "another's taint, in its place"
            assert bool(one.spec.unschedulable) == (name in self.cordoned), "another's cordon"

    @invariant()
    def losses_are_of_the_stopped(self) -> None:
        stopped = {one.uid for one in self.scene.evictions}
        for claim in self.scene.claims.values():
            uids = [one.uid for one in claim.status.victims]
            assert len(set(uids)) == len(uids)
            assert claim.status.lost_gpu_seconds >= 0
            if not claim.status.nodes:
                gone_by_itself = {uid for uid in uids if uid not in self.scene.pods or _ended(self.scene, uid)}
                assert set(uids) <= stopped | gone_by_itself, "who was not stopped is not counted"

    def teardown(self) -> None:
        """Once no gang is left, every node is open within 5 s."""
        for uid in [uid for uid, one in self.scene.pods.items() if one.metadata.namespace == "team-b"]:
            del self.scene.pods[uid]
        if self.scene.nodes:
            self.scene.go_on(5)
        assert self.scene.marked() == []
        acting = [one for one in self.scene.claims.values() if one.status.phase not in ENDED]
        assert acting == []


def _ended(scene: Simulation, uid: str) -> bool:
    return terminating(scene.pods[uid]) or scene.pods[uid].status.phase in {"Succeeded", "Failed"}


TestCluster = Cluster.TestCase
TestCluster.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
