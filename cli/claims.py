"""`wholenode claims`: what every claim is doing, for whom, and what it has cost others."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.pods import checked
from cli.source import from_option, kubeconfig_option, picture, run
from cli.tables import number, table

if TYPE_CHECKING:
    from fleet.resources import WholeNodeClaim

_HEADS = ("NAMESPACE", "CLAIM", "PHASE", "REASON", "NODES", "FOR", "LOST", "AGE")
_SHOWN_NODES = 4


@click.command()
@click.option("-n", "--namespace", help="Only claims of this namespace.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@from_option
@kubeconfig_option
def claims(namespace: str | None, output: str, file: str | None, kubeconfig: Path | None) -> None:
    """List claims, oldest first: phase, reason, nodes, gang, GPU-seconds that others lost, and age.

    NODES are those it has; one that waits shows how many it wants.
    """
    from fleet.view import age_key

    only = checked(namespace) if namespace is not None else None
    found, now = _found(only, file, kubeconfig)
    ordered = sorted(found, key=age_key)
    if output == "json":
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode([_document(one, now) for one in ordered]), indent=2))
        return
    if not ordered:
        click.echo("no claims" + (f" in namespace {only}" if only else ""))
        return
    click.echo("\n".join(table(_HEADS, [_row(one, now) for one in ordered], right={"LOST", "AGE"}, cut=False)))


def _found(
    namespace: str | None, file: str | None, kubeconfig: Path | None
) -> tuple[tuple[WholeNodeClaim, ...], datetime]:
    if file is not None:
        seen = picture(file, kubeconfig)
        every = tuple(seen.view.claims.values())
        return tuple(one for one in every if namespace in (None, one.metadata.namespace)), seen.at
    return run(_live(namespace or "", kubeconfig))


async def _live(namespace: str, kubeconfig: Path | None) -> tuple[tuple[WholeNodeClaim, ...], datetime]:
    from datetime import UTC

    from cluster.client import connect
    from cluster.facts import claims_of

    async with connect(str(kubeconfig) if kubeconfig is not None else None) as api:
        return await claims_of(api, namespace), datetime.now(UTC)


def _row(claim: WholeNodeClaim, now: datetime) -> tuple[str, ...]:
    from fleet.marks import ENDED

    status = claim.status
    held = [one.name for one in status.nodes] or status.node_names.split(",")
    more = f" +{len(held) - _SHOWN_NODES}" if len(held) > _SHOWN_NODES else ""
    wants = "" if status.phase in ENDED else f"wants {claim.spec.nodes}"
    nodes = ",".join(held[:_SHOWN_NODES]) + more if any(held) else wants
    gang = claim.spec.gang.name if claim.spec.gang else "(preview)"
    meta = claim.metadata
    lost = number(status.lost_gpu_seconds)
    return (meta.namespace, meta.name, str(status.phase), status.reason, nodes, gang, lost, _age(claim, now))


def _age(claim: WholeNodeClaim, now: datetime) -> str:
    """In its largest unit, as kubectl has it: `45s`, `12m`, `3h`, `9d`."""
    created = claim.metadata.creation_timestamp
    if created is None:
        return ""
    seconds = max(0, int((now - created).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _document(claim: WholeNodeClaim, now: datetime) -> dict[str, object]:
    status, plan, created = claim.status, claim.status.plan, claim.metadata.creation_timestamp
    age = max(timedelta(0), now - created).total_seconds() if created else None
    return {
        "namespace": claim.metadata.namespace,
        "name": claim.metadata.name,
        "phase": status.phase,
        "reason": status.reason,
        "message": status.message,
        "nodesWanted": claim.spec.nodes,
        "nodes": [held.name for held in status.nodes],
        "gang": claim.spec.gang,
        "policy": claim.spec.policy,
        "plannedCost": plan.cost if plan else None,
        "plannedVictims": plan.victim_count if plan else None,
        "victims": len(status.victims),
        "lostGpuSeconds": status.lost_gpu_seconds,
        "ageSeconds": age,
    }
