"""`wholenode ledger`: who lost what, for whom and under which agreement, and how long the others waited."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.ledger_text import as_csv, as_json, as_table
from cli.pods import checked
from cli.source import from_option, kubeconfig_option, picture, run

if TYPE_CHECKING:
    from fleet.resources import DrainRecord, WholeNodeClaim

    Read = tuple[tuple[DrainRecord, ...], tuple[WholeNodeClaim, ...], datetime, tuple[str, ...]]


@click.command()
@click.option("--since", default="7d", show_default=True, help="How far back: 7d, 12h, 90m, or a time (RFC 3339).")
@click.option(
    "--by",
    type=click.Choice(["victim", "beneficiary", "agreement", "claim", "job"]),
    help="One row for each of these; else for each victim, beneficiary and agreement.",
)
@click.option("-n", "--namespace", help="Only what pods of this namespace lost, and how long its own claims waited.")
@click.option("-o", "--output", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True)
@click.option("--waits", is_flag=True, help="With csv: the waits of beneficiaries instead of the losses.")
@from_option
@kubeconfig_option
def ledger(
    since: str,
    by: str | None,
    namespace: str | None,
    output: str,
    waits: bool,
    file: str | None,
    kubeconfig: Path | None,
) -> None:
    """Add up the DrainRecords: lost GPU-seconds, pods stopped and spared, and waits, by team and agreement.

    Records outlive claims. A gang's loss counts once, and so does a pod, whoever wrote it down.
    """
    from fleet.accounts import PARTIES, By, account

    if waits and output != "csv":
        raise click.UsageError("--waits goes with --output csv; the table and JSON have the waits anyway")
    only = checked(namespace) if namespace is not None else None
    _start(since, datetime.now(UTC))
    records, claims, now, unread = _read(only, file, kubeconfig)
    start = _start(since, now)
    if start > now:
        raise click.UsageError(f"--since {since} is in the future")
    found = account(records, claims, start, now, (By(by),) if by else PARTIES, only)
    if output == "csv":
        click.echo(as_csv(found, waits=waits), nl=False)
    elif output == "json":
        click.echo(as_json(found, unread))
    else:
        click.echo(as_table(found, unread))


def _start(since: str, now: datetime) -> datetime:
    from fleet.errors import FleetError
    from fleet.times import parse_span, parse_time

    try:
        moment = parse_time(since) if "-" in since[1:] or ":" in since else now - parse_span(since)
        return moment.astimezone(UTC)
    except (FleetError, OverflowError) as error:
        raise click.UsageError(f"--since: {error}") from error


def _read(namespace: str | None, file: str | None, kubeconfig: Path | None) -> Read:
    if file is not None:
        seen = picture(file, kubeconfig)
        return tuple(seen.view.records.values()), tuple(seen.view.claims.values()), seen.at, ()
    return run(_live(namespace or "", kubeconfig))


async def _live(namespace: str, kubeconfig: Path | None) -> Read:
    """Records first; whoever may read only those gets no waits, and is told so."""
    from cluster.client import connect
    from cluster.errors import Forbidden
    from cluster.facts import claims_of, drain_records

    async with connect(str(kubeconfig) if kubeconfig is not None else None) as api:
        records = await drain_records(api, namespace)
        try:
            return records, await claims_of(api, namespace), datetime.now(UTC), ()
        except Forbidden as error:
            return records, (), datetime.now(UTC), (error.message,)
