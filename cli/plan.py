"""`wholenode plan`: what a waiting pod's gang, or a made-up one, would do now; nothing is changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.pods import checked, which
from cli.source import Picture, from_option, kubeconfig_option, picture

if TYPE_CHECKING:
    from fleet.actions import Timing
    from fleet.preview import Preview
    from fleet.wishes import Wish


@click.command()
@click.argument("pod", required=False)
@click.option("-n", "--namespace", help="Of POD, if that is a name alone; or of the made-up gang.")
@click.option("--nodes", type=click.IntRange(1, 1024), help="Make up a gang that wants so many whole nodes.")
@click.option("--pool", help="Of this pool only.")
@click.option("--cards", type=click.IntRange(1, 64), help="Cards of one node; else as many as the pool's nodes have.")
@click.option("--policy", type=click.Choice(["Wait", "WaitThenEvict", "Preview"]), help="Wait, if not said.")
@click.option("--patience", metavar="DURATION", help="How long it waits before anybody is stopped: 10m.")
@click.option("--expected-run", metavar="DURATION", help="How long it would run: 6h.")
@click.option("--topology-key", metavar="LABEL", help="All nodes must have the same value of this label.")
@click.option("--queue", help="The Kueue LocalQueue it would come from.")
@from_option
@click.option("--at", metavar="TIME", help="With --from: plan for this time, not for when the file was written.")
@kubeconfig_option
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--all", "every_node", is_flag=True, help="Say of every node why not, one a line.")
@click.option("--dry-run", is_flag=True, help="Changes nothing, as always: a plan never does.")
def plan(
    pod: str | None,
    namespace: str | None,
    file: str | None,
    at: str | None,
    kubeconfig: Path | None,
    output: str,
    every_node: bool,
    dry_run: bool,
    **made_up: Any,
) -> None:
    """Show which nodes the gang of POD would get, whom that would cost what, and why no other node.

    Without POD the gang is made up: -n NAMESPACE --nodes 3 --pool big. Shown are what it would do now, by its own
    policy and patience, and what it would do if it might stop others now.

    Exit codes: 0 for a plan and for "it waits", 1 if there can be no plan, 2 wrong usage.
    """
    given = sorted(name.replace("_", "-") for name, value in made_up.items() if value is not None)
    if pod is not None and given:
        raise click.UsageError(f"--{given[0]} is for made-up gangs: leave it out, or leave out POD")
    wanted = which(pod, namespace) if pod is not None else _wish(namespace, **made_up)
    timing = _timing()
    seen = picture(file, kubeconfig, at)
    found = _preview(seen, wanted, timing)
    if output == "json":
        from cli.plan_json import document

        click.echo(document(found, seen.unread))
    else:
        from cli.plan_text import told

        click.echo(told(found, seen.origin, seen.unread, every_node=every_node))


def _wish(namespace: str | None, **options: Any) -> Wish:
    """The made-up gang. Raises click.UsageError."""
    from fleet.errors import FleetError
    from fleet.names import LABEL_KEY_LENGTH, LABEL_KEY_PATTERN
    from fleet.resources import Policy
    from fleet.times import parse_duration
    from fleet.wishes import Wish

    if namespace is None or options["nodes"] is None:
        raise click.UsageError("name a pod (NAMESPACE/POD), or make up a gang: -n NAMESPACE --nodes NUMBER")
    for name in ("patience", "expected_run"):
        try:
            parse_duration(options[name] or "0s")
        except FleetError as error:
            raise click.UsageError(f"--{name.replace('_', '-')}: {error}") from error
    key = options["topology_key"]
    if key is not None and not (len(key) <= LABEL_KEY_LENGTH and re.fullmatch(LABEL_KEY_PATTERN, key)):
        raise click.UsageError(f"--topology-key {key!r} is no key of a node label")
    policy = Policy(options.pop("policy") or Policy.WAIT)
    return Wish(checked(namespace), policy=policy, **options)


def _timing() -> Timing:
    """The controller's own settings, from the same environment variables."""
    from pydantic import ValidationError

    from controller.settings import Settings

    try:
        return Settings().timing()
    except ValidationError as error:
        first = error.errors()[0]
        name = "WHOLENODE_" + "_".join(map(str, first["loc"])).upper()
        raise click.ClickException(f"{name}: {first['msg']}") from error


def _preview(seen: Picture, wanted: tuple[str, str] | Wish, timing: Timing) -> Preview:
    from fleet.errors import AskError, FleetError
    from fleet.preview import preview
    from fleet.wishes import made_up, of_pod

    view, at = seen.view, seen.at
    try:
        asked = of_pod(view, *wanted, at) if isinstance(wanted, tuple) else made_up(view, wanted, at)
        return preview(asked, at, timing)
    except AskError as error:
        raise click.ClickException(f"{error} ({seen.origin})") from error
    except (FleetError, ArithmeticError) as error:
        raise click.ClickException(f"no plan can be made from {seen.origin}: {error}") from error
