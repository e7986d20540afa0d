"""Which nodes to empty together at the least harm: exact as far as the work allows, else the best that was found.

Pure arithmetic on options (nodes), the gangs they hit and the budgets they press on; decision 0015 says how it goes.
"""

from collections import Counter
from collections.abc import Sequence

from fleet.options import Found, Option, Terms
from fleet.searching import Search


def best(options: Sequence[Option], count: int, terms: Terms) -> Found | None:
    """`count` options that fit together, the first in the order of `Found.rank`; None if none were found."""
    ordered = sorted(options, key=lambda one: one.name)
    found: Found | None = None
    certain, work = True, terms.work
    for ceiling in sorted({one.priority for one in ordered}):
        able = [one for one in ordered if one.priority <= ceiling]
        for housed in (terms.housed, None) if terms.housed else (None,):
            search = Search(able, count, terms, housed, work)
            chosen = search.run()
            certain, work = certain and search.complete, max(search.work, terms.work // 4)
            if chosen is None:
                continue
            one = _found(chosen, terms, optimal=certain)
            if found is None or one.rank < found.rank:
                found = one
            if not found.excess:
                return found
    return found and Found(*_fields(found), optimal=certain)


def _fields(found: Found) -> tuple[tuple[Option, ...], int, int, bool, int, int]:
    return found.options, found.excess, found.priority, found.homeless, found.cost, found.gangs


def _found(chosen: Sequence[Option], terms: Terms, *, optimal: bool) -> Found:
    presses: Counter[str] = Counter()
    stopped: dict[str, tuple[int, int]] = {}
    for one in chosen:
        presses.update(dict(one.presses))
        for hit in one.hits:
            members, cards = stopped.get(hit.gang, (0, 0))
            stopped[hit.gang] = members + hit.members, cards + hit.cards
    return Found(
        tuple(sorted(chosen, key=lambda one: one.name)),
        sum(max(0, pods - terms.allowed.get(name, 0)) for name, pods in presses.items()),
        max((one.priority for one in chosen), default=0),
        terms.housed is not None and not terms.housed(chosen),
        sum(one.idle for one in chosen) + sum(terms.prices[gang].of(*hit) for gang, hit in stopped.items()),
        len(stopped),
        optimal,
    )
