"""A random history of the simulated cluster, with rules that hold after every step of it."""

from dataclasses import replace as changed
from datetime import timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fleet.actions import Action, Answer, CreateRecord, EvictionAnswer, Timing
from fleet.cards import terminating
from fleet.errors import FleetError
from fleet.marks import ENDED, HOLDING
from fleet.names import CLAIM_KEY, GANG, LAST_CHECKPOINT, POLICY
from fleet.objects import BudgetSpec, DisruptionBudget, LabelSelector, Metadata, Taint
from fleet.resources import Budget, Checkpoint, DrainRecord, Outcome, Window
from fleet.times import format_time, parse_time
from tests.fleet.builders import agreement, node, owned, pod
from tests.fleet.scenes import gang
from tests.fleet.simulation import Eviction, Simulation, replace

NODES = ("n1", "n2", "n3", "n4")
TIMING = Timing(
    drain_timeout=timedelta(seconds=20),
    landing_timeout=timedelta(seconds=15),
    avoid_for=timedelta(seconds=30),
    cool_down=timedelta(seconds=10),
)
BUDGETS = st.one_of(
    st.none(),
    st.builds(Budget, evictions_per_hour=st.integers(0, 4)),
    st.builds(Budget, gpu_seconds_per_day=st.integers(0, 60)),
    st.builds(Budget, evictions_per_job_per_day=st.integers(1, 2)),
)
CHECKPOINTS = st.sampled_from(
    [
        None,
        None,
        Checkpoint(request=True, timeout="3s"),
        Checkpoint(request=True, required=True, timeout="3s"),
        Checkpoint(required=True),
    ]
)
WINDOWS = st.one_of(
    st.none(),
    st.none(),
    st.builds(
        lambda minute, lasts: (Window(f"{minute} 12 * * *", lasts),), st.integers(0, 9), st.sampled_from(["30s", "3m"])
    ),
)
WEB = {"app": "web"}
HIGH = 8
"""Pods with so many seconds of grace have a priority of 7, those with a controller (an odd grace) the label of WEB."""
VICTIMS = st.sampled_from(
    [
        {},
        {},
        {"max_priority": 7},
        {"select": LabelSelector(WEB), "max_priority": 7},
        {"select": LabelSelector()},
        {"keep_ready": 1, "max_priority": 7},
        {"patience": "5s"},
    ]
)
"""Who may be stopped: pods without priority, all, those of one label, nobody (it is void), what a service spares."""
FOREIGN = Taint("example.com/keep", "PreferNoSchedule", "x")
node_names = st.sampled_from(NODES)
tenants = st.sampled_from(["team-v", "team-v", "team-w"])
picks = st.integers(0, 10**6)


class Cluster(RuleBasedStateMachine):
    """What people, schedulers and machines do to a small fleet while the controller works on it."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = Simulation(timing=TIMING, recreate=True)
        self.made = 0
        self.cordoned: set[str] = set()
        self.losses: dict[str, float] = {}
        self.scene.after = self.work_out_loss

    @initialize(
        busy=st.lists(st.integers(0, 8), min_size=4, max_size=8),
        size=st.integers(1, 3),
        lag_seconds=st.sampled_from([0, 0, 0.3]),
        most=st.sampled_from([0, 0, 1, 2]),
        budget=BUDGETS,
        checkpoint=CHECKPOINTS,
        least=st.sampled_from([0, 0, 1, 2]),
        victims=VICTIMS,
    )
    def start(
        self,
        busy: list[int],
        size: int,
        lag_seconds: float,
        most: int,
        budget: Budget | None,
        checkpoint: Checkpoint | None,
        least: int,
        victims: dict[str, object],
    ) -> None:
        """Every node is busy with pods whose owners have agreed, and a gang wants some of the nodes."""
        self.scene.lag_seconds = lag_seconds
        self.scene.timing = changed(TIMING, most_draining=most)
        for name in NODES:
            self.scene.add(node(name, taints=(FOREIGN,)))
        for index, grace in enumerate(busy):
            self.slip_in(NODES[index % len(NODES)], "team-v", grace)
        self.agree("team-v", None, budget, checkpoint, None, "0s", victims)
        self.agree("team-w", None, None, None, None, "0s", {})
        if least:
            self.keep_pods("team-v", least)
        self.submit_a_gang(size, "WaitThenEvict")
        self.scene.go_on(1.2)

    def name(self, prefix: str) -> str:
        self.made += 1
        return f"{prefix}{self.made}"

    # Pods

    @rule(name=node_names, ns=tenants, grace=st.integers(0, 8))
    def slip_in(self, name: str, ns: str, grace: int) -> None:
        """Another scheduler binds a small pod, whatever our marks say."""
        owner = owned("ReplicaSet", "web") if grace % 2 else None
        more = {"labels": WEB if owner else {}, "priority": 7 if grace == HIGH else 0, "ready": True}
        one = pod(self.name("small-"), ns=ns, grace=grace, created=self.scene.seconds, owner=owner, **more)  # type: ignore[arg-type]
        self.scene.bind(one, name)

    @rule(first=node_names, second=node_names, ns=tenants)
    def slip_in_a_gang(self, first: str, second: str, ns: str) -> None:
        """Two pods that are one gang, on two nodes or on one."""
        name = self.name("pair-")
        for index, on in enumerate((first, second)):
            one = pod(f"{name}-{index}", ns=ns, gang=name, size=2, grace=1, created=self.scene.seconds)
            self.scene.bind(one, on)

    @rule(pick=picks, text=st.sampled_from(["now", "now", "later", "yesterday"]))
    def save_work(self, pick: int, text: str) -> None:
        """An owner reports a checkpoint: one just made, one in the future, or something that is no time."""
        running = sorted(uid for uid, one in self.scene.pods.items() if one.metadata.namespace != "team-b")
        if running:
            now = self.scene.now.replace(microsecond=0)
            told = {"now": format_time(now), "later": format_time(now + timedelta(hours=1))}.get(text, text)
            self.scene.annotate(running[pick % len(running)], LAST_CHECKPOINT, told)

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

    @rule(
        ns=tenants,
        lasts=st.one_of(st.none(), st.integers(1, 60)),
        budget=BUDGETS,
        checkpoint=CHECKPOINTS,
        windows=WINDOWS,
        runtime=st.sampled_from(["0s", "5s"]),
        victims=VICTIMS,
    )
    def agree(
        self,
        ns: str,
        lasts: int | None,
        budget: Budget | None,
        checkpoint: Checkpoint | None,
        windows: tuple[Window, ...] | None,
        runtime: str,
        victims: dict[str, object],
    ) -> None:
        expires = None if lasts is None else self.scene.seconds + lasts
        terms = {"budget": budget, "checkpoint": checkpoint, "windows": windows, "min_runtime": runtime, **victims}
        self.scene.add(agreement(self.name("a"), ns=ns, expires=expires, **terms))  # type: ignore[arg-type]

    @precondition(lambda self: self.scene.agreements)
    @rule(pick=picks, budget=BUDGETS)
    def change_a_budget(self, pick: int, budget: Budget | None) -> None:
        place = pick % len(self.scene.agreements)
        old = self.scene.agreements[place]
        self.scene.agreements[place] = replace(old, spec=replace(old.spec, budget=budget))

    @rule(ns=tenants, least=st.integers(0, 3))
    def keep_pods(self, ns: str, least: int) -> None:
        """A PodDisruptionBudget over all pods of a namespace; with a second one the API refuses every eviction."""
        if len(self.scene.kept) < 2:
            name = self.name("pdb-")
            budget = DisruptionBudget(Metadata(name, ns, uid=name), BudgetSpec(LabelSelector()))
            self.scene.kept.append((budget, least))

    @rule()
    def keep_pods_no_more(self) -> None:
        self.scene.kept.clear()

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

    @rule(seconds=st.sampled_from([1.0, 2.0, 4.0]))
    def wait_again(self, seconds: float) -> None:
        """As above: time passes more often than anything else happens."""
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

    @invariant()
    def a_claim_tells_what_its_records_tell(self) -> None:
        """Once nothing about it is open: the same pods, and the same sum."""
        for claim in self.scene.claims.values():
            mine = [one for one in self.scene.records.values() if one.spec.claim_uid == claim.metadata.uid]
            if claim.status.phase in HOLDING or any(one.status.outcome is Outcome.PENDING for one in mine):
                continue
            stopped = [one.spec for one in mine if one.status.outcome is Outcome.STOPPED]
            assert {one.uid for one in claim.status.victims} == {one.pod_uid for one in stopped}
            assert abs(claim.status.lost_gpu_seconds - sum(one.lost_gpu_seconds for one in stopped)) < 0.01

    @invariant()
    def each_loss_is_booked_once(self) -> None:
        """Whoever was stopped has one record that says so; a gang's loss stands in one of its records."""
        booked: dict[str, list[DrainRecord]] = {}
        for one in self.scene.records.values():
            if one.status.outcome is Outcome.STOPPED:
                booked.setdefault(one.spec.pod_uid, []).append(one)
                assert one.spec.pod_uid not in self.scene.pods or terminating(self.scene.pods[one.spec.pod_uid])
        assert all(len(some) == 1 for some in booked.values()), "one pod, one record"
        gangs: dict[str, list[Eviction]] = {}
        for each in self.scene.evictions:
            record = self.scene.records[each.record.metadata.uid]
            assert record.spec == each.record.spec, "a record is never changed"
            assert record.status.outcome is not Outcome.SPARED, f"{each.name} was stopped"
            if "pair-" in each.name:
                gangs.setdefault(record.spec.gang, []).append(each)
            elif each.uid in self.losses:
                assert abs(record.spec.lost_gpu_seconds - self.losses[each.uid]) < 1, "its time since it was saved"
        for key, some in gangs.items():
            records = [one for one in self.scene.records.values() if one.spec.gang == key]
            lost = sum(one.spec.lost_gpu_seconds for one in records if one.status.outcome is not Outcome.SPARED)
            latest = max(each.record.spec.at for each in some)
            assert lost <= 2 * (latest - self.scene.starts[some[0].uid]).total_seconds() + 0.01, "lost once at most"
            assert any(one.spec.lost_gpu_seconds > 0 for one in records) or all(map(self.just_saved, some))

    def just_saved(self, eviction: Eviction) -> bool:
        """Whether there may have been nothing to lose: the gang had begun, or saved its work, that very moment."""
        spec = eviction.record.spec
        return (spec.at - (spec.saved_at or self.scene.starts[eviction.uid])).total_seconds() < 1

    def work_out_loss(self, action: Action) -> None:
        """What a bare pod loses, worked out apart from the code when its record is written."""
        if not isinstance(action, CreateRecord):
            return
        one = self.scene.pods.get(action.record.spec.pod_uid)
        if one is None or one.metadata.controller() or one.metadata.annotation(GANG):
            return
        base, at = one.status.start_time or self.scene.now, action.record.spec.at
        try:
            saved = parse_time(one.metadata.annotation(LAST_CHECKPOINT) or "")
        except FleetError:
            saved = base
        self.losses[one.metadata.uid] = (at - (saved if base < saved <= at else base)).total_seconds()

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
