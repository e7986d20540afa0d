"""A preview as text for people, readable in 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from cli.tables import WIDTH, number, table
from fleet.preview import Course, Preview, Verdict
from fleet.resources import Weighing
from fleet.times import format_duration
from fleet.why.answers import counted

_LABEL: Final = 15
_SHOWN_NODES: Final = 12


def told(found: Preview, origin: str, unread: tuple[str, ...] = (), *, every_node: bool = False) -> str:
    """What it would do now; what it would do if it might stop others; why not each other node; what would change it."""
    lines = [*_wrap(_head(found)), *_row("as of", f"{_at(found.at)}, {origin}")]
    if found.now is None:
        status = found.status
        lines += ["", *_wrap(f"NOW: {status.phase}, {status.reason}"), *_wrap(status.message, "  ")]
        if status.nodes:
            lines += _row("nodes", ", ".join(held.name for held in status.nodes))
    else:
        lines += ["", *_course("NOW", found.now, found.at, brief=found.if_allowed is not None)]
    if found.if_allowed is not None:
        lines += ["", *_course("IF IT MIGHT STOP OTHERS NOW", found.if_allowed, found.at)]
    widest = found.if_allowed or found.now
    if widest is not None:
        lines += [*_others(widest, every_node=every_node), *_change(widest)]
    for what in unread:
        lines += _row("not read", what)
    return "\n".join(line.rstrip() for line in lines)


def _head(found: Preview) -> str:
    claim, spec = found.claim, found.claim.spec
    where = f" of pool {spec.pool}" if spec.pool else ""
    one = f" in one {spec.topology_key}" if spec.topology_key else ""
    run = f", expected run {spec.expected_run}" if spec.expected_run else ""
    whose = f"claim {claim.metadata.namespace}/{claim.metadata.name}"
    if not found.exists:
        gang = spec.gang.name if spec.gang else ""
        whose = f"a gang of {claim.metadata.namespace} ({gang})"
    patience = f", patience {spec.patience}" if spec.patience != "0s" else ""
    return f"Plan for {whose}: {counted(spec.nodes, 'whole node')}{where}{one}, policy {spec.policy}{patience}{run}"


def _course(title: str, course: Course, now: datetime, *, brief: bool = False) -> Iterator[str]:
    """One decision. `brief`: who is on the nodes follows below, with the decision that may stop them."""
    plan = course.plan
    brief = brief and not course.takes
    if not course.takes:
        does = "waits"
    elif plan.victim_count:
        does = f"takes {counted(len(course.nodes), 'node')} and stops {counted(plan.victim_count, 'pod')}"
    else:
        does = f"takes {counted(len(course.nodes), 'free node')}, stops nobody"
    yield from _wrap(f"{title}: {does} | {course.reason}")
    yield from _wrap(course.message, "  ")
    if course.nodes:
        shown = ", ".join(course.nodes[:_SHOWN_NODES])
        more = len(course.nodes) - _SHOWN_NODES
        yield from _row("nodes" if course.takes else "would have", shown + (f" and {more} more" if more > 0 else ""))
    if plan.victim_count and not brief:
        best = "no set of nodes costs less" if plan.optimal else "a cheaper set may exist"
        lost = f"{number(plan.lost_gpu_seconds)} GPU-seconds of work lost"
        yield from _row("costs", f"{number(plan.cost)} GPU-seconds ({best}); {lost}")
        if plan.homeless:
            yield from _row("no other place", f"{counted(plan.homeless, 'pod')} of them could not start again at once")
    if course.stop_nobody_until is not None:
        yield from _row("stops nobody", f"before {_when(course.stop_nobody_until, now)}: they end by themselves")
    if plan.weighing is not None and not brief:
        yield from _row("weighed", _weighed(plan.weighing, course.message, now))
    if plan.expected_free_at is not None:
        yield from _row("free by itself", _when(plan.expected_free_at, now))
    if course.wake_at is not None and not course.takes:
        yield from _row("looks again", _when(course.wake_at, now))
    if not brief:
        yield from _victims(course)
        yield from _next_best(course)


def _weighed(one: Weighing, said: str, now: datetime) -> str:
    """The two costs and what follows; the note only if it is not `said` already."""
    parts = [f"{one.course}: stopping them now throws away {number(one.evict_cost)} GPU-seconds"]
    if one.wait_cost is not None:
        parts.append(f"waiting for natural ends costs {number(one.wait_cost)}")
    if one.break_even_at is not None:
        parts.append(f"break-even {_when(one.break_even_at, now)}")
    if one.wait_until is not None:
        parts.append(f"waits until {_when(one.wait_until, now)}")
    return "; ".join(parts if one.note in said else [*parts, one.note])


def _victims(course: Course) -> Iterator[str]:
    if not course.teams:
        return
    heads = ("TEAM", "AGREEMENT", "PODS", "CARDS", "GANGS", "LOST GPU-S")
    rows = [
        (
            one.namespace,
            one.agreement or "(none)",
            *map(str, (one.pods, one.cards, one.gangs)),
            number(one.lost_gpu_seconds),
        )
        for one in course.teams
    ]
    yield ""
    yield "  Who would be stopped" if course.takes else "  Who is on these nodes"
    yield from table(heads, rows, right=set(heads[2:]), indent="  ")
    left = course.plan.victim_count - len(course.plan.victims)
    if left > 0:
        yield f"  and {counted(left, 'pod')} more that the plan does not list"


def _next_best(course: Course) -> Iterator[str]:
    if not course.next_best:
        return
    yield ""
    yield "  Next best, and what each costs more than the costliest node above"
    heads = ("NODE", "PODS", "LOST GPU-S", "COST", "MORE")
    rows = [
        (one.node, str(one.victims), number(one.lost_gpu_seconds), number(one.cost), f"{one.more:+.1f}")
        for one in course.next_best
    ]
    yield from table(heads, rows, right=set(heads[1:]), indent="  ")


def _others(course: Course, *, every_node: bool) -> Iterator[str]:
    """Why not the other nodes: each, or counted by reason with one of them."""
    if not course.others:
        return
    yield ""
    yield f"Why not the other {counted(len(course.others), 'node')}"
    yield from _each(course.others) if every_node else _counted(course.others)


def _each(others: tuple[Verdict, ...]) -> list[str]:
    heads = ("NODE", "REASON", "PODS", "LOST GPU-S", "COST", "DETAIL")
    rows = [
        (one.node, one.reason, str(one.victims), number(one.lost_gpu_seconds), number(one.cost), _detail(one))
        for one in others
    ]
    return table(heads, rows, right={"PODS", "LOST GPU-S", "COST"}, indent="  ", cut=False)


def _counted(others: tuple[Verdict, ...]) -> list[str]:
    grouped: dict[str, list[Verdict]] = {}
    for one in others:
        grouped.setdefault(one.reason, []).append(one)
    ordered = sorted(grouped.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    rows = [(str(len(some)), reason, some[0].node, _detail(some[0])) for reason, some in ordered]
    return table(("NODES", "REASON", "EXAMPLE", "DETAIL"), rows, right={"NODES"}, indent="  ")


def _detail(one: Verdict) -> str:
    parts = [one.detail] if one.detail else []
    if one.from_ is not None:
        parts.append(f"from {_at(one.from_)}")
    if one.free_at is not None:
        parts.append(f"free {_at(one.free_at)}")
    return "; ".join(parts)


def _change(course: Course) -> Iterator[str]:
    if not course.consent_missing:
        return
    yield ""
    asked = ", ".join(f"{name} ({counted(nodes, 'node')})" for name, nodes in course.consent_missing)
    what = "More nodes to choose from" if course.takes else "What would change it"
    yield from _wrap(f"{what}: a DrainAgreement of {asked}")


def _row(label: str, text: str) -> list[str]:
    first, *rest = textwrap.wrap(text, WIDTH - 2 - _LABEL, break_on_hyphens=False) or [""]
    return [f"  {label:<{_LABEL}}{first}", *(" " * (2 + _LABEL) + more for more in rest)]


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def _when(moment: datetime, now: datetime) -> str:
    span = timedelta(seconds=round((moment - now).total_seconds()))
    relative = f"in {format_duration(span)}" if span > timedelta(0) else f"{format_duration(-span)} ago"
    return f"{relative} ({_at(moment)})"
