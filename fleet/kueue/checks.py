"""Our admission check: which Workloads pass at once, which wait for their claims, and which are sent back."""

from collections.abc import Iterator
from typing import Final

from fleet.actions import Action, ActivateCheck, SetCheck
from fleet.cards import waiting
from fleet.gangs import Gang
from fleet.kueue.expected import MOST_CLAIMS, failed_claims, missing_flavors, sets_of, whole_sets
from fleet.kueue.gangs import conflict, keys_of, turns_by_gang, unanswered
from fleet.kueue.objects import PodSetUpdate
from fleet.kueue.turns import PENDING, READY, RETRY, Turn, gated_by_kueue, our_checks, turns
from fleet.marks import ENDED
from fleet.names import CLAIM_KEY
from fleet.objects import Pod, Toleration
from fleet.reasons import Reason
from fleet.resources import Phase, Policy, WholeNodeClaim
from fleet.view import View, age_key

_IN_PASSING: Final = frozenset(
    {
        Reason.PLANNED,
        Reason.HOLDING,
        Reason.SETTLING,
        Reason.PROVING,
        Reason.PROVED,
        Reason.LANDING,
        Reason.FREE_NODE,
        "",
    }
)
"""Reasons of a claim that goes on by itself, in seconds: not worth a write to the Workload."""
_GIVEN_UP: Final = "GivenUp"
_NO_FLAVOR: Final = "FlavorMissing"
_OTHERS_FIRST: Final = "WaitingForOtherChecks"


def check_actions(view: View) -> Iterator[Action]:
    """What our checks need now: to be active, and for each Workload whose turn it is our answer, if it is a new one."""
    ours = our_checks(view.checks)
    for check in view.checks:
        active = (one.type == "Active" and one.status == "True" for one in check.status.conditions or ())
        if check.metadata.name in ours and not any(active):
            yield ActivateCheck(check)
    for turn in turns(view):
        answer = _answer(view, turn) if turn.pending else _sent_back(view, turn)
        if answer is not None:
            yield answer


def _answer(view: View, turn: Turn) -> SetCheck | None:
    if not whole_sets(view, turn.workload):
        return SetCheck(turn.workload, turn.check, READY, "no pod of it takes a whole node: nothing is vacated for it")
    taken = conflict(view, turn.workload)
    if taken is not None:
        return _say(turn, Reason.KEY_TAKEN, taken)
    if turn.others:
        text = f"nodes are emptied when every other check is Ready; waits for {', '.join(turn.others)}"
        return _say(turn, _OTHERS_FIRST, text)
    gone = missing_flavors(turn.workload, view.flavors)
    if gone:
        return _say(turn, _NO_FLAVOR, f"no ResourceFlavor {', '.join(gone)}: which nodes it is for is not known")
    keys = keys_of(view, turn)
    claims = {key: claim for key in keys if (claim := _acting(view, key)) is not None}
    if len(claims) < len(keys):
        return _without_claim(view, turn, tuple(key for key in keys if key not in claims))
    if keys and all(_open(view, key, claim) for key, claim in claims.items()):
        nodes = ", ".join(claim.status.node_names for claim in claims.values())
        names = ", ".join(claim.metadata.name for claim in claims.values())
        text = f"claim {names} holds {nodes}, proved empty and open to it"
        return SetCheck(turn.workload, turn.check, READY, text, _updates(view, turn, claims))
    for claim in claims.values():
        if claim.status.reason not in _IN_PASSING:
            return _say(turn, f"{claim.status.reason} (claim {claim.metadata.name})", claim.status.message)
    return None


def _say(turn: Turn, head: str, text: str) -> SetCheck | None:
    """A Workload that waits is told why; new figures under the same head are not worth a write."""
    entries = turn.workload.status.admission_checks or ()
    if any(one.name == turn.check and one.message.startswith(f"{head}: ") for one in entries):
        return None
    return SetCheck(turn.workload, turn.check, PENDING, f"{head}: {text}")


def _acting(view: View, key: str) -> WholeNodeClaim | None:
    acting = [one for one in view.claims_by_gang.get(key, ()) if one.status.phase not in ENDED]
    return min(acting, key=lambda one: (one.spec.policy is Policy.PREVIEW, age_key(one)), default=None)


def _open(view: View, key: str, claim: WholeNodeClaim) -> bool:
    """Whether all nodes of the gang are proved empty and labelled for it: only then may its pods be made."""
    gang = view.gangs.get(key)
    takers = [pod for pod in view.takers(gang) if waiting(pod)]
    return claim.status.phase is Phase.LANDING and 0 < len(takers) <= len(claim.status.nodes)


def _without_claim(view: View, turn: Turn, keys: tuple[str, ...]) -> SetCheck | None:
    """Kueue is told of a failure, so that the quota goes to others; when that is in vain, the owner is."""
    failed = failed_claims(view, turn.workload, keys)
    if len(failed) >= MOST_CLAIMS:
        last = failed[-1]
        text = f"{len(failed)} claims have failed, the last, {last.metadata.name}, with {last.status.reason}: "
        text += f"{last.status.message}; none is made any more: mend that and create the job anew"
        return _say(turn, _GIVEN_UP, text)
    news = unanswered(view, turn, keys)
    if news is None:
        return None
    text = f"claim {news.metadata.name} has failed ({len(failed)} of {MOST_CLAIMS}): {news.status.reason}: "
    return SetCheck(turn.workload, turn.check, RETRY, text + news.status.message)


def _updates(view: View, turn: Turn, claims: dict[str, WholeNodeClaim]) -> tuple[PodSetUpdate, ...]:
    """Selector and toleration in one write, so that no pod ever has one without the other."""
    whole, sets = whole_sets(view, turn.workload), {one.name: one for one in sets_of(view, turn.workload)}
    any_claim = next(iter(claims.values()))
    found = []
    for pod_set in turn.workload.spec.pod_sets or ():
        expected = sets.get(pod_set.name)
        annotations = expected.annotations if expected else None
        if pod_set.name in whole:
            claim = claims.get(expected.key, any_claim) if expected else any_claim
            found.append(_sent_to(pod_set.name, annotations, claim.metadata.uid))
        elif annotations:
            found.append(PodSetUpdate(pod_set.name, annotations=annotations))
    return tuple(found)


def _sent_to(name: str, annotations: dict[str, str] | None, uid: str) -> PodSetUpdate:
    toleration = Toleration(CLAIM_KEY, "Equal", uid, "NoSchedule")
    return PodSetUpdate(
        name, annotations=annotations or None, node_selector={CLAIM_KEY: uid}, tolerations=(toleration,)
    )


def _sent_back(view: View, turn: Turn) -> SetCheck | None:
    """A Workload that was let in, none of whose pods runs, and whose pods are sent to nodes that no claim holds.

    They could never start; Kueue makes new ones when it has reserved the quota anew. A running job is left alone.
    """
    claims = [view.claims.get(uid) for uid in turn.claims]
    if not claims or any(_still_acts(one) for one in claims):
        return None
    gangs = [gang for key in keys_of(view, turn) if (gang := view.gangs.get(key)) is not None]
    pods = [pod for gang in gangs for pod in gang.pods]
    if any(pod.spec.node_name for pod in pods):
        return None
    pinned = [pod for pod in pods if (pod.spec.node_selector or {}).get(CLAIM_KEY) in turn.claims]
    timed_out = any(one is not None and one.status.reason == Reason.LANDING_TIMED_OUT for one in claims)
    if not pinned and (pods or not timed_out):
        return None
    text = "its pods are sent to nodes of a claim that has ended, and none of them runs: they must be made anew"
    return SetCheck(turn.workload, turn.check, RETRY, text)


def _still_acts(claim: WholeNodeClaim | None) -> bool:
    return claim is not None and (claim.status.phase not in ENDED or claim.status.phase is Phase.BOUND)


def turn_lost(view: View, gang: Gang | None) -> Pod | None:
    """A member that Kueue's gate keeps waiting although it is not our turn (any more): nobody is stopped for it."""
    if gang is None or gang.key in turns_by_gang(view):
        return None
    return next((pod for pod in gang.pods if waiting(pod) and gated_by_kueue(pod)), None)


def fails_for_good(view: View, gang: Gang) -> bool | None:
    """Whether a gang at our check gets no further claim; None for one that is not at our check."""
    turn = turns_by_gang(view).get(gang.key)
    if turn is None or not turn.pending:
        return None
    failed = failed_claims(view, turn.workload, (gang.key,))
    return len(failed) >= MOST_CLAIMS or unanswered(view, turn, (gang.key,)) is not None
