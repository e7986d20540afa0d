"""Which gangs get a claim now: one that needs whole nodes, is all there, and has no claim that acts for it."""

from collections.abc import Iterator
from datetime import timedelta
from itertools import count

from fleet.actions import CreateClaim
from fleet.gangs import Gang
from fleet.kueue.checks import fails_for_good
from fleet.marks import ENDED
from fleet.naming import claim_name, claim_spec
from fleet.resources import ClaimSpec, Phase, Policy, WholeNodeClaim
from fleet.statuses import failed_for
from fleet.upkeep import Context
from fleet.view import View
from fleet.wants import wants_claim

_SIZE_DUE_AFTER = timedelta(seconds=10)


def new_claims(context: Context) -> Iterator[CreateClaim]:
    """One claim for each gang that needs whole nodes and has no claim that still acts for it."""
    view = context.view
    taken = {(one.metadata.namespace, one.metadata.name) for one in view.claims.values()}
    for key in sorted(view.gangs):
        gang = view.gangs[key]
        if not wants_claim(view, gang) or not _size_is_due(context, gang):
            continue
        earlier, spec = view.claims_by_gang.get(key, ()), claim_spec(gang, view.takers(gang))
        if (
            any(_acts(one, spec) for one in earlier)
            or any(one.status.phase is Phase.BOUND for one in earlier)
            or _failed_for_good(view, earlier, gang)
        ):
            continue
        numbers = count(len(earlier))
        name = next(one for number in numbers if (gang.namespace, one := claim_name(gang, number)) not in taken)
        yield CreateClaim(gang.namespace, name, spec)


def _acts(claim: WholeNodeClaim, wanted: ClaimSpec) -> bool:
    """Whether the claim already does what `wanted` would: a preview is enough only for who wants no more."""
    enough = claim.spec.policy is not Policy.PREVIEW or wanted.policy is Policy.PREVIEW
    return enough and claim.status.phase not in ENDED


def _size_is_due(context: Context, gang: Gang) -> bool:
    """Pods may reach the caches before what says how many they are; if that stays away, the claim says so."""
    since = gang.pods[0].metadata.creation_timestamp
    if not gang.unsized or since is None or context.now >= since + _SIZE_DUE_AFTER:
        return True
    context.decision.wake(since + _SIZE_DUE_AFTER)
    return False


def _failed_for_good(view: View, earlier: tuple[WholeNodeClaim, ...], gang: Gang) -> bool:
    """A claim that missed its deadline is not renewed for the same pods; the owner submits again, or deletes it.

    Kueue submits again by itself: it is told of the failure, and reserves the quota anew.
    """
    at_our_check = fails_for_good(view, gang)
    if at_our_check is not None:
        return at_our_check
    return any(all(failed_for(one, pod) for pod in gang.pods) for one in earlier)
