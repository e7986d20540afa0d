"""Why a pod with fewer cards than a whole node waits: figures of the nodes it may have."""

from dataclasses import dataclass
from datetime import datetime

from fleet.agreements import consenting_namespaces, problems
from fleet.objects import Pod
from fleet.requests import Request, RequestClass
from fleet.view import View
from fleet.why.admission import admitted
from fleet.why.answers import Answer, Finding, No, Yes, beside, counted, first_no, left_out, listed, only_free
from fleet.why.attempts import scheduler_no
from fleet.why.explanations import Holder, Stage, Told, Wait
from fleet.why.supply import Ground, Supply


@dataclass(frozen=True, slots=True)
class _Case:
    ground: Ground
    pod: Pod
    request: Request
    told: Told
    now: datetime
    supply: Supply


def small_finding(ground: Ground, pod: Pod, request: Request, told: Told, now: datetime) -> Finding:
    """The stage at which a waiting pod that takes no whole node stands. Small pods are placed one by one."""
    case = _Case(ground, pod, request, told, now, _supply(ground, pod, request))
    never = _never(case)
    if never is not None:
        stage, no, checks = first_no([(Stage.CAPACITY, lambda: never)], lambda: scheduler_no(pod, told))
    else:
        questions = [
            (Stage.ADMISSION, lambda: admitted(pod, told.workload)),
            (Stage.GANG, lambda: Yes("small pods are placed one by one")),
            (Stage.CAPACITY, lambda: _capacity(case)),
            (Stage.TOPOLOGY, lambda: _topology(case)),
            (Stage.RESERVED, lambda: _reserved(case)),
            (Stage.AGREEMENT, lambda: _agreement(case)),
        ]
        stage, no, checks = first_no(questions, lambda: scheduler_no(pod, told))
    held = _held_seats(case) if stage is Stage.RESERVED else {}
    return Finding(stage, no, checks, _numbers(case), case.supply, None, holders_of(ground.view, held))


def _supply(ground: Ground, pod: Pod, request: Request) -> Supply:
    """Pools refuse what is larger than their nodes; a node of no pool may have so many cards."""
    if request.request_class is RequestClass.IMPOSSIBLE:
        outside = ground.supply(pod, request, outside=True)
        if outside.largest >= request.cards:
            return outside
    return ground.supply(pod, request)


def _never(case: _Case) -> No | None:
    impossible = case.request.request_class is RequestClass.IMPOSSIBLE and not case.supply.outside
    if not impossible and case.supply.largest >= case.request.cards:
        return None
    wanted = f"{case.request.cards} {case.request.resource}"
    if impossible:
        text = (
            f"Needs {wanted} on one node. No pool counts so many on a node, and no node outside the pools has so many: "
            "it can never start."
        )
    elif case.supply.largest:
        text = f"Needs {wanted} on one node, and no node that it may have has more than {case.supply.largest}."
    else:
        text = f"Needs {wanted}, and there is no node with such cards that takes pods smaller than a node."
    how = "the pod asks for less, or nodes with so many cards are added; waiting does not help"
    return No(Wait.NEVER, text, how)


def _wish(case: _Case) -> str:
    parts = "parts of " if case.request.shared else ""
    where = " on one node" if case.request.cards > 1 else ""
    return f"Needs {parts}{case.request.cards} {case.request.resource}{beside(case.request)}{where}"


def _capacity(case: _Case) -> Answer:
    supply, wanted = case.supply, case.request.cards
    if not supply.seats:
        text = (
            f"{_wish(case)}; none of the {counted(supply.nodes, 'node')} {supply.where} can be used{left_out(supply)}."
        )
        return No(Wait.NODES_SHUT, text, "nodes come back, or the pod's node selector and tolerations are corrected")
    if supply.cards_free < wanted and not supply.fitting:
        return No(Wait.NOT_ENOUGH, f"{_wish(case)}; {only_free(supply)}{left_out(supply)}.", "pods in its pools end")
    return Yes(f"{supply.cards_free} free on nodes {supply.where}, {wanted} needed")


def _topology(case: _Case) -> Answer:
    supply, wanted = case.supply, case.request.cards
    fitting = supply.fitting
    if fitting:
        return Yes(f"{counted(len(fitting), 'node')} with room for {wanted}")
    best = supply.best
    most = best.free if best else 0
    but = "no card has room for it" if most >= wanted else f"no single node has more than {most} free"
    free = f"{supply.cards_free} are free on {counted(len(supply.seats), 'node')} {supply.where}"
    text = f"{_wish(case)}; {free}, but {but}{left_out(supply)}."
    return No(Wait.FRAGMENTED, text, "pods on one of its nodes end")


def _held_seats(case: _Case) -> dict[str, frozenset[str]]:
    return {seat.name: seat.held_for for seat in case.supply.fitting if seat.held_for}


def _reserved(case: _Case) -> Answer:
    fitting = case.supply.fitting
    if any(not seat.held_for for seat in fitting):
        return Yes("a node with room is not held for anybody")
    names = listed(holder_text(one) for one in holders_of(case.ground.view, _held_seats(case)))
    nodes, one = listed(seat.name for seat in fitting), len(fitting) == 1
    held = "has room and is held for a whole-node gang" if one else "have room and are held for whole-node gangs"
    text = f"{_wish(case)}; {nodes} {held}: {names}."
    return No(Wait.HELD, text, "the gang is bound or gives the node back, or there is room elsewhere")


def _agreement(case: _Case) -> Answer:
    view, namespace = case.ground.view, case.pod.metadata.namespace
    open_to_it = [seat for seat in case.supply.fitting if not seat.held_for]
    lent = [seat for seat in open_to_it if seat.lent]
    if len(lent) < len(open_to_it) or namespace in consenting_namespaces(view.agreements, case.now):
        return Yes("not needed" if len(lent) < len(open_to_it) else f"namespace {namespace} has an agreement in force")
    void = [one.metadata.name for one in view.agreements if one.metadata.namespace == namespace]
    void = sorted(name for name in void if _is_void(view, namespace, name, case.now))
    has = f"that of namespace {namespace} is void ({listed(void)})" if void else f"namespace {namespace} has none"
    text = (
        f"{_wish(case)}; only idle whole nodes have room ({listed(seat.name for seat in lent)}). They are lent to "
        f"namespaces with a DrainAgreement, and {has}."
    )
    how = (
        f"somebody who may write in namespace {namespace} makes a DrainAgreement there (its pods may then be stopped "
        "for the gangs it names), or there is room in a Small pool"
    )
    return No(Wait.NOT_LENT, text, how)


def _is_void(view: View, namespace: str, name: str, now: datetime) -> bool:
    found = [one for one in view.agreements if (one.metadata.namespace, one.metadata.name) == (namespace, name)]
    return any(problems(one, now) for one in found)


def _numbers(case: _Case) -> dict[str, int]:
    supply, best = case.supply, case.supply.best
    return {
        "cardsNeeded": case.request.cards,
        "nodesNeeded": 1,
        "nodes": supply.nodes,
        "nodesUsable": len(supply.seats),
        "cardsFree": supply.cards_free,
        "cardsFreeOnHeldNodes": supply.cards_held,
        "bestNodeFree": best.free if best else 0,
    }


def holders_of(view: View, held: dict[str, frozenset[str]]) -> tuple[Holder, ...]:
    """The claims that stand behind marks, with the nodes concerned; `held`: node name -> claim UIDs."""
    nodes: dict[str, list[str]] = {}
    for name in sorted(held):
        for uid in held[name]:
            nodes.setdefault(uid, []).append(name)
    found = []
    for uid in sorted(nodes):
        claim = view.claims.get(uid)
        if claim is None:
            found.append(Holder(uid, nodes=tuple(nodes[uid])))
        else:
            meta, phase = claim.metadata, str(claim.status.phase)
            found.append(Holder(uid, meta.namespace, meta.name, phase, tuple(nodes[uid])))
    return tuple(sorted(found, key=lambda one: (one.namespace, one.name, one.uid)))


def holder_text(holder: Holder) -> str:
    if not holder.name:
        return f"a mark of claim UID {holder.uid or '(none)'}, which does not exist"
    return f"claim {holder.namespace}/{holder.name} ({holder.phase})"
