"""Busy fleets made up as pictures, without a cluster: shared gangs, services, budgets of both kinds, waiting gangs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from fleet.names import GANG, GANG_MIN_SIZE, GANG_SIZE
from fleet.objects import (
    BudgetSpec,
    BudgetStatus,
    Condition,
    Container,
    DisruptionBudget,
    LabelSelector,
    Metadata,
    Node,
    NodeSpec,
    NodeStatus,
    OwnerReference,
    Pod,
    PodSpec,
    PodStatus,
    Resources,
)
from fleet.resources import (
    Accepts,
    AgreementSpec,
    Beneficiary,
    Budget,
    ClaimSpec,
    Drain,
    DrainAgreement,
    GangRef,
    GPUPool,
    KeepReady,
    Policy,
    PoolSelector,
    PoolSpec,
    WholeNodeClaim,
)
from fleet.view import View

NOW = datetime(2027, 1, 4, 12, tzinfo=UTC)
CARDS = 8
CARD = "nvidia.com/gpu"
WAITING = "waiting"
_LONGEST_RUN_SECONDS = 200_000
_SOME, _MANY = 0.15, 0.4


@dataclass(frozen=True)
class Shape:
    """How much there is: every node is full. `tight` is how narrow budgets are: 1 allows a few nodes at most."""

    nodes: int
    teams: int
    gangs: int
    services: int
    wanted: tuple[int, ...]
    tight: float = 0.0


def picture(shape: Shape, rng: random.Random) -> View:
    """A fleet of that shape; one claim for each number of nodes in `wanted`, for gangs that wait."""
    names = [f"n{index:04d}" for index in range(shape.nodes)]
    left = dict.fromkeys(names, CARDS)
    pods = [*_gangs(shape, left, rng), *_services(shape, left, rng), *_singles(shape, left, rng)]
    claims = [_claim(index, count) for index, count in enumerate(shape.wanted)]
    pods += [one for index, count in enumerate(shape.wanted) for one in _waiting(index, count)]
    selector = PoolSelector({"pool": "big"})
    return View(
        nodes={name: _node(name) for name in names},
        pods={pod.metadata.uid: pod for pod in pods},
        jobs={},
        pools=(GPUPool(Metadata("big"), PoolSpec(selector, Accepts.WHOLE_NODE, CARDS, drain=Drain.AGREED)),),
        agreements=tuple(_agreement(team, shape, rng) for team in range(shape.teams)),
        claims={one.metadata.uid: one for one in claims},
        budgets=tuple(_pdb(service, shape, rng) for service in range(shape.services)),
    )


def _gangs(shape: Shape, left: dict[str, int], rng: random.Random) -> Iterator[Pod]:
    for index in range(shape.gangs):
        open_ = [name for name, cards in left.items() if cards > 1]
        places = rng.sample(open_, min(len(open_), rng.randint(2, 5)))
        notes = {GANG: f"g{index}", GANG_SIZE: str(len(places))}
        if rng.random() < _SOME:
            notes[GANG_MIN_SIZE] = str(max(1, len(places) - rng.randint(1, 2)))
        age, team = rng.randint(60, _LONGEST_RUN_SECONDS), rng.randrange(shape.teams)
        for member, name in enumerate(places):
            cards = rng.randint(1, min(4, left[name]))
            left[name] -= cards
            yield _pod(f"g{index}-{member}", team, name, cards, age, notes)


def _services(shape: Shape, left: dict[str, int], rng: random.Random) -> Iterator[Pod]:
    for index in range(shape.services):
        open_ = [name for name, cards in left.items() if cards]
        for replica, name in enumerate(rng.sample(open_, min(len(open_), rng.randint(2, 6)))):
            left[name] -= 1
            owner = OwnerReference("ReplicaSet", f"s{index}", f"s{index}", controller=True)
            labels = {"app": f"s{index}"}
            yield _pod(f"s{index}-{replica}", index % shape.teams, name, 1, 100_000, {}, labels, owner)


def _singles(shape: Shape, left: dict[str, int], rng: random.Random) -> Iterator[Pod]:
    for name, room in left.items():
        number, free = 0, room
        while free:
            cards = rng.randint(1, min(2, free))
            free -= cards
            age = rng.randint(60, _LONGEST_RUN_SECONDS)
            yield _pod(f"{name}-{number}", rng.randrange(shape.teams), name, cards, age, {})
            number += 1


def _pod(
    name: str,
    team: int,
    node: str,
    cards: int,
    age_seconds: int,
    notes: dict[str, str],
    labels: dict[str, str] | None = None,
    owner: OwnerReference | None = None,
) -> Pod:
    asked: dict[str, str | int] = {CARD: str(cards), "cpu": "4"}
    since = NOW - timedelta(seconds=age_seconds)
    ready = Condition("Ready", "True", last_transition_time=since + timedelta(seconds=90))
    return Pod(
        Metadata(
            name,
            f"team-{team}",
            uid=f"{team}.{name}",
            labels=labels or {"app": "batch"},
            annotations=notes,
            owner_references=(owner,) if owner else None,
            creation_timestamp=since,
        ),
        PodSpec((Container("c", Resources(asked, asked)),), node_name=node, termination_grace_period_seconds=30),
        PodStatus("Running", start_time=since, conditions=(ready,)),
    )


def _waiting(index: int, count: int) -> Iterator[Pod]:
    asked: dict[str, str | int] = {CARD: str(CARDS), "cpu": "64"}
    notes = {GANG: f"w{index}", GANG_SIZE: str(count)}
    for member in range(count):
        name = f"w{index}-{member}"
        meta = Metadata(name, WAITING, uid=name, annotations=notes, creation_timestamp=NOW - timedelta(hours=1))
        yield Pod(meta, PodSpec((Container("c", Resources(asked, asked)),)), PodStatus("Pending"))


def _claim(index: int, count: int) -> WholeNodeClaim:
    return WholeNodeClaim(
        Metadata(f"w{index}", WAITING, uid=f"claim-{index}", creation_timestamp=NOW - timedelta(hours=1)),
        ClaimSpec(count, GangRef("Gang", f"w{index}"), policy=Policy.WAIT_THEN_EVICT),
    )


def _node(name: str) -> Node:
    there: dict[str, str | int] = {CARD: str(CARDS), "cpu": "128", "memory": "512Gi", "pods": "110"}
    ready = (Condition("Ready", "True"),)
    return Node(Metadata(name, uid=name, labels={"pool": "big"}), NodeSpec(), NodeStatus(there, there, ready))


def _agreement(team: int, shape: Shape, rng: random.Random) -> DrainAgreement:
    budget = None
    if shape.tight and rng.random() < _MANY:
        budget = Budget(
            gpu_seconds_per_day=round(rng.uniform(0.5, 4) * _LONGEST_RUN_SECONDS / shape.tight),
            evictions_per_hour=rng.randint(3, 12),
        )
    keep = KeepReady(1) if rng.random() < _SOME else None
    spec = AgreementSpec((Beneficiary(WAITING),), keep_ready=keep, budget=budget)
    return DrainAgreement(Metadata("yes", f"team-{team}", uid=f"agreement-{team}"), spec)


def _pdb(service: int, shape: Shape, rng: random.Random) -> DisruptionBudget:
    selector = LabelSelector({"app": f"s{service}"})
    allowed = BudgetStatus(rng.randint(1, 2))
    return DisruptionBudget(Metadata(f"s{service}", f"team-{service % shape.teams}"), BudgetSpec(selector), allowed)
