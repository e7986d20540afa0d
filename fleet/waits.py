"""The reason that stands between a claim and its nodes, with the figures behind it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from fleet.backfill import expected_run
from fleet.candidates import Candidate
from fleet.combining import Hindrance
from fleet.domains import Domain
from fleet.fitness import Obstacle
from fleet.outlook import hopeful
from fleet.reasons import Reason
from fleet.resources import WholeNodeClaim
from fleet.times import clock, format_duration

_SHOWN_DETAILS = 3

Wait = tuple[Reason, str]


def can_never_fit(domains: tuple[Domain, ...], count: int, where: str) -> Wait | None:
    """Why waiting would be in vain as things are: too few nodes in any one domain, or too few that could ever serve.

    `where`: the topology the nodes must share, in words; empty if there is none.
    """
    sizes = [(domain, [one for one in domain.nodes if one.refused != Obstacle.OWN_GANG]) for domain in domains]
    largest, nodes = max(sizes, key=lambda pair: len(pair[1]), default=(Domain("", ()), []))
    if len(nodes) < count:
        beside = " beside those its members run on" if len(nodes) < len(largest.nodes) else ""
        if not where:
            return Reason.TOO_FEW_NODES, f"needs {count} whole nodes; its pools have {len(nodes)}{beside}"
        most = f"the largest, {largest.name}, has {len(nodes)}{beside}" if largest.name else "no node has that label"
        return Reason.TOO_FEW_NODES, f"needs {count} whole node(s) in {where}; {most}"
    best, nodes = max(sizes, key=lambda pair: sum(one.never is None for one in pair[1]))
    able = sum(one.never is None for one in nodes)
    if able >= count:
        return None
    why = _figures(one.never for one in nodes)
    there = f" in {where}" if where else ""
    named = f" of {best.name}" if best.name else ""
    text = f"needs {count} whole node(s){there}; {able} of the {len(nodes)} nodes{named} could serve it even if empty"
    return Reason.NO_USABLE_NODE, f"{text}; the others: {why}"


def fragmented(domains: tuple[Domain, ...], count: int, where: str, elsewhere: int, *, may_stop: bool) -> Wait:
    """Enough nodes, but not in one domain. `elsewhere`: nodes that could be taken if domains did not matter."""

    def usable(domain: Domain) -> int:
        return sum(one.refused is None and (may_stop or not one.occupied) for one in domain.nodes)

    text = f"needs {count} whole node(s) in {where}; {elsewhere} could be taken across domains"
    if not domains:
        return Reason.TOPOLOGY, text
    best = max(domains, key=usable)
    text += f", but the best domain, {best.name}, has {usable(best)} of {len(best.nodes)}"
    figures = _figures(one.refused for one in best.nodes)
    return Reason.TOPOLOGY, f"{text} (the others there: {figures})" if figures else text


def behind_older(claim: WholeNodeClaim, nodes: tuple[Candidate, ...]) -> Wait:
    """Enough nodes are free, but an older claim waits for them; what would let this one go ahead."""
    moments = [one.kept_until for one in nodes if one.kept]
    known = [moment for moment in moments if moment is not None]
    text = f"{len(moments)} of the {len(nodes)} node(s) it could have now are kept for an older claim"
    if len(known) < len(moments):
        return Reason.OLDER_CLAIM, f"{text}; it is not known when that one starts, so nobody goes ahead of it"
    text += f", which may start at {clock(min(known))}"
    run = expected_run(claim)
    if run is None:
        return Reason.OLDER_CLAIM, f"{text}; a gang whose wholenode.io/expected-run is over before may go ahead"
    return Reason.OLDER_CLAIM, f"{text}; the expected run of {format_duration(run)} is too long to go ahead of it"


def why(nodes: Sequence[Candidate], count: int, hindered: Hindrance | None, where: str) -> Wait:
    """What keeps the claim from these nodes. `hindered`: why it may not have several of them together."""
    open_now = [one for one in nodes if one.refused is None]
    blocked = Counter(one.refused for one in nodes if one.refused)
    there = f" in {where}" if where else ""
    text = f"needs {count} whole node(s){there}, {len(open_now)} of {len(nodes)} may be taken"
    text += ", but not together" if len(open_now) >= count else ""
    others = _figures(one.refused for one in nodes)
    text += f"; the others: {others}" if others else ""
    missing = sorted({namespace for one in nodes for namespace in one.consent_missing})
    if missing:
        text += f"; would have to consent: {', '.join(missing)}"
    hindered = hindered or Hindrance()
    together = [*map(str, hindered.short), *(one.text for one in hindered.overdrafts), hindered.ceiling]
    details = dict.fromkeys(one for one in [*together, *(one.detail for one in nodes)] if one)
    text += "".join(f"; {detail}" for detail in list(details)[:_SHOWN_DETAILS])
    if len(open_now) >= count:
        if hindered.ceiling:
            return Reason.COST_CEILING, text
        return Reason.AGREEMENT_BUDGET if hindered.overdrafts else Reason.KEEP_READY, text
    soft = Counter(one.refused for one in nodes if one.soft and one.refused != Obstacle.HELD)
    for reason in (
        Reason.AGREEMENT_TIME,
        Reason.COOL_DOWN,
        Reason.AGREEMENT_BUDGET,
        Reason.KEEP_READY,
        Reason.CHECKPOINT_MISSING,
        Reason.AGREEMENT_MISSING,
        Reason.AGREEMENT_TERMS,
        Reason.DRAIN_DISABLED,
        Reason.UNEVICTABLE,
        Reason.BUDGET,
        Reason.GRACE_TOO_LONG,
    ):
        if len(open_now) + soft[reason] >= count:
            return reason, text
    if soft and len(hopeful(tuple(nodes))) >= count:
        return Reason(str(soft.most_common(1)[0][0])), text
    if blocked[Reason.OLDER_CLAIM]:
        return Reason.OLDER_CLAIM, text
    return Reason.NO_USABLE_NODE, text


def waits_until(text: str, expected: datetime | None) -> str:
    """The text with the natural end that is expected, if one is."""
    return f"{text}; expected to end by itself at {clock(expected)}" if expected else text


def _figures(reasons: Iterable[str | None]) -> str:
    counted = Counter(reason for reason in reasons if reason)
    return ", ".join(f"{number} {reason}" for reason, number in sorted(counted.items(), key=lambda kv: (-kv[1], kv[0])))
