"""What a claim that cannot start now waits for: the nodes it would have first, and when that could be."""

from dataclasses import dataclass
from datetime import datetime

from fleet.candidates import Candidate
from fleet.domains import Domain, harm


@dataclass(frozen=True, slots=True)
class Outlook:
    """The nodes a waiting claim would have next, all of one domain.

    `start_at` is the earliest moment at which the claim could start, by what is known; None if that is not known.
    """

    domain: Domain
    wanted: tuple[Candidate, ...]
    start_at: datetime | None


def outlook(domains: tuple[Domain, ...], count: int, now: datetime, evict_from: datetime | None) -> Outlook:
    """The best domain and its nodes: complete before incomplete, then the earliest start, then the least harm.

    `evict_from`: from when the claim itself may have others stopped; None if never.
    """
    return min((_of(domain, count, now, evict_from) for domain in domains), key=lambda one: _rank(one, count, now))


def natural_start(domains: tuple[Domain, ...], count: int, now: datetime) -> datetime | None:
    """When enough nodes of one domain are expected to be free although nobody is stopped."""
    starts = (_of(domain, count, now, None).start_at for domain in domains)
    return min((start for start in starts if start is not None), default=None)


def hopeful(nodes: tuple[Candidate, ...]) -> list[Candidate]:
    """Nodes that may be taken, or that only the pods on them keep from it."""
    return [one for one in nodes if one.refused is None or one.soft]


def _of(domain: Domain, count: int, now: datetime, evict_from: datetime | None) -> Outlook:
    timed = [(_had_at(one, now, evict_from), one) for one in hopeful(domain.nodes)]
    timed.sort(key=lambda pair: (pair[0] is None, pair[0] or now, pair[1].order))
    first = timed[:count]
    known = [at for at, _ in first if at is not None]
    start_at = max(known) if len(known) == count else None
    # Nodes that could be had at once, if only all together, say nothing about when.
    later = start_at is not None and start_at > now
    return Outlook(domain, tuple(one for _, one in first), start_at if later else None)


def _rank(one: Outlook, count: int, now: datetime) -> tuple[object, ...]:
    start_at = one.start_at or now
    by_name = sorted(one.wanted, key=lambda each: each.node.metadata.name)
    then = tuple(_as_at(each, start_at) for each in by_name)
    return (count - len(one.wanted), one.start_at is None, start_at, harm(then), one.domain.name)


def _as_at(one: Candidate, moment: datetime) -> Candidate:
    """The node as it is expected to be then: nobody is harmed where all have ended by themselves."""
    if one.free_at is None or one.free_at > moment:
        return one
    return Candidate(one.node, kept=one.kept, domain=one.domain)


def _had_at(one: Candidate, now: datetime, evict_from: datetime | None) -> datetime | None:
    """When the node could be had: as its pods end, or as they may be stopped. An end that is overdue is not known."""
    if one.refused is None and not one.occupied:
        return now
    moments = [one.free_at] if one.free_at is not None and one.free_at > now else []
    if evict_from is not None and (one.refused is None or one.from_ is not None):
        moments.append(max(moment for moment in (now, evict_from, one.from_) if moment is not None))
    return min(moments, default=None)
