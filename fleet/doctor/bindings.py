"""When pods were bound, and what waited meanwhile: read from what a later picture still shows."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from fleet.cards import gated_by, refused_before, scheduled, waiting
from fleet.fitness import closed, ready
from fleet.hami import cards_of, wishes
from fleet.names import CLAIM_KEY, DEFAULT_RESOURCE
from fleet.objects import Node, Pod
from fleet.selectors import node_wanted, tolerates
from fleet.tally import free_cards
from fleet.view import View

BIND_TIME: Final = "hami.io/bind-time"
FILTER_TIME: Final = "hami.io/vgpu-time"
"""Annotations of HAMi: when it bound the pod, and when it chose the node (seconds since 1970)."""
_HARD: Final = frozenset({"NoSchedule", "NoExecute"})


def unix(pod: Pod, key: str) -> datetime | None:
    """The time in an annotation of HAMi's."""
    text = pod.metadata.annotation(key) or ""
    return datetime.fromtimestamp(int(text), UTC) if text.isascii() and text.isdigit() and len(text) < 12 else None  # noqa: PLR2004


def bound_at(pod: Pod) -> datetime | None:
    """When the pod was bound: as the API server noted it, else as HAMi did, else when it was started."""
    if not pod.spec.node_name:
        return None
    said = scheduled(pod)
    if said is not None and said.status == "True" and said.last_transition_time is not None:
        return said.last_transition_time
    return unix(pod, BIND_TIME) or pod.status.start_time


@dataclass(frozen=True, slots=True)
class Pace:
    """What was placed while something waited without a break, up to now.

    `since`: when that began, at the earliest `window` ago; `stages` are the seconds from creation to HAMi's choice, and
    from there to the binding, of those placed, where HAMi says so.
    """

    since: datetime
    seconds: float
    placed: int
    waiting: int
    to_choice: tuple[float, ...]
    to_binding: tuple[float, ...]

    @property
    def per_second(self) -> float:
        return self.placed / self.seconds if self.seconds > 0 else 0.0


def untried(view: View, at: datetime, older_than_seconds: float) -> tuple[Pod, ...]:
    """GPU pods that wait for a scheduler to look at them: neither gated nor refused, and not just made."""
    found = []
    for uid in view.requests:
        pod = view.pods[uid]
        made = pod.metadata.creation_timestamp
        old = made is not None and (at - made).total_seconds() >= older_than_seconds
        if waiting(pod) and not gated_by(pod) and not refused_before(pod) and old:
            found.append(pod)
    return tuple(sorted(found, key=lambda pod: pod.key))


def has_room(view: View, pod: Pod) -> bool:
    """Whether some open node has free cards for the pod by itself, and is one it may go to."""
    return any(_takes(view, node, pod) for node in view.nodes.values())


def _takes(view: View, node: Node, pod: Pod) -> bool:
    request = view.classify(pod)
    if closed(node) or not ready(node) or not node_wanted(pod.spec, node, CLAIM_KEY):
        return False
    if not all(tolerates(pod.spec.tolerations, one) for one in node.spec.taints or () if one.effect in _HARD):
        return False
    use = view.tally.on(node.metadata.name)
    registered = cards_of(node) if request.resource == DEFAULT_RESOURCE else None
    if registered is not None:
        return not use.plain and wishes(pod.spec).fit_on(registered, use.cards)
    return free_cards(node, request.resource, use) >= request.cards > 0


def pace(view: View, waits: Iterable[Pod], at: datetime, window_seconds: float) -> Pace | None:
    """How fast GPU pods were placed while there was always one that waited; None if none waits."""
    since = min((made for pod in waits if (made := pod.metadata.creation_timestamp)), default=None)
    if since is None:
        return None
    placed = []
    for uid in view.requests:
        pod = view.pods[uid]
        moment, made = bound_at(pod), pod.metadata.creation_timestamp
        if moment is not None and made is not None and moment <= at:
            placed.append((moment, made, pod))
    # Those bound lately had waited too: the queue was never empty as far back as their waits reach each other.
    for moment, made, _ in sorted(placed, key=lambda one: one[0], reverse=True):
        if moment >= since:
            since = min(since, made)
    since = max(since, datetime.fromtimestamp(at.timestamp() - window_seconds, UTC))
    seconds = (at - since).total_seconds()
    lately = [(moment, made, pod) for moment, made, pod in placed if moment > since]
    choices = [(made, chosen, moment) for moment, made, pod in lately if (chosen := unix(pod, FILTER_TIME)) is not None]
    return Pace(
        since,
        seconds,
        len(lately),
        len(tuple(waits)),
        tuple(max(0.0, (chosen - made).total_seconds()) for made, chosen, _ in choices),
        tuple(max(0.0, (moment - chosen).total_seconds()) for _, chosen, moment in choices),
    )
