"""The demonstration's scene: a busy shared fleet, teams that agreed, and jobs that need whole nodes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from kwok.nodes import GPU, make_nodes
from kwok.workloads import Manifest, make_pod

API = "wholenode.io/v1alpha1"
BENEFICIARY = "team-big"
LONG_JOB, SHORT_JOB = "job", "burst"
TEAMS = ("team-a", "team-b", "team-c", "team-d")

_CPU_PER_CARD, _MEMORY_GIB_PER_CARD = 4, 32


def _resources(cards: int) -> dict[str, str]:
    """Cards with the CPU and memory that go with them: kube-scheduler spreads by those, not by cards."""
    return {GPU: str(cards), "cpu": str(cards * _CPU_PER_CARD), "memory": f"{cards * _MEMORY_GIB_PER_CARD}Gi"}


@dataclass(frozen=True)
class Scene:
    """N nodes x C cards; the first `small_nodes` are for small pods, the others for whole-node jobs."""

    nodes: int = 50
    cards: int = 8
    small_nodes: int = 10
    busy_cards: int = 280
    grace_seconds: int = 5
    seed: int = 7

    def fleet(self) -> list[Manifest]:
        """The Node objects."""
        small = make_nodes(self.small_nodes, self.cards, "small", {"pool": "small"})
        return small + make_nodes(self.nodes - self.small_nodes, self.cards, "big", {"pool": "big"})

    def namespaces(self) -> list[Manifest]:
        """A namespace for each team."""
        names = (BENEFICIARY, *TEAMS)
        return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names]

    def pools(self) -> list[Manifest]:
        """One pool of each kind; idle whole nodes may be used by teams that agreed to give them back."""
        return [
            self._pool("small", {"accepts": "Small"}),
            self._pool("big", {"accepts": "WholeNode", "overflow": "Reclaimable", "drain": "Agreed"}),
        ]

    def _pool(self, name: str, more: dict[str, Any]) -> Manifest:
        spec = {"nodeSelector": {"matchLabels": {"pool": name}}, "cardsPerNode": self.cards, **more}
        return {"apiVersion": API, "kind": "GPUPool", "metadata": {"name": name}, "spec": spec}

    def agreements(self, teams: tuple[str, ...] = TEAMS) -> list[Manifest]:
        """Each team's written consent, in its own namespace."""
        return [
            {
                "apiVersion": API,
                "kind": "DrainAgreement",
                "metadata": {"name": "whole-nodes", "namespace": team},
                "spec": {"beneficiaries": [{"namespace": BENEFICIARY}], "victims": {"maxPriority": 0}},
            }
            for team in teams
        ]

    def busy(self) -> list[Manifest]:
        """The jobs that keep the fleet busy from the start, dealt out evenly: as kube-scheduler's default would.

        They are placed by name: a scheduler that learns of the nodes one by one would crowd the first ones.
        """
        names = [node["metadata"]["name"] for node in self.fleet()]
        pods = self.background()
        for index, pod in enumerate(pods):
            pod["spec"]["nodeName"] = names[index % len(names)]
        return pods

    def background(
        self, start: int = 0, count: int | None = None, seconds: float | None = None, name: str = LONG_JOB
    ) -> list[Manifest]:
        """Single-card jobs of the teams, in a seeded order; `seconds` is how long each runs (None: on and on).

        Jobs that run differently need another `name`: run times are learned from jobs of the same name.
        """
        source = random.Random(self.seed + start)
        number = self.busy_cards if count is None else count
        return [
            make_pod(
                f"{name}-{start + index:05d}",
                source.choice(TEAMS),
                resources=_resources(1),
                duration_seconds=seconds,
                term_delay=f"{self.grace_seconds}s",
                grace_seconds=self.grace_seconds,
                labels={"app": "training"},
            )
            for index in range(number)
        ]

    def whole_node_job(self, name: str) -> Manifest:
        """One pod that needs all cards of one node, and whose owner lets agreements be used at once."""
        return make_pod(
            name,
            BENEFICIARY,
            resources=_resources(self.cards),
            annotations={"wholenode.io/policy": "WaitThenEvict"},
            labels={"app": "big"},
        )
