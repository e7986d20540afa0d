"""`wholenode dump`: everything decisions look at, in one file, for `plan --from` and `ledger --from`."""

from __future__ import annotations

from pathlib import Path

import click

from cli.source import kubeconfig_option, picture


@click.command()
@kubeconfig_option
def dump(kubeconfig: Path | None) -> None:
    """Write nodes, pods, jobs, budgets and wholenode's own objects to standard output, as one JSON List.

    Only fields that decisions read are kept: no environment, no arguments, no images, no Secrets. Nothing is changed.
    """
    from cluster.dumps import write_dump

    found = picture(None, kubeconfig)
    click.echo(write_dump(found.view, found.at), nl=False)
    for what in found.unread:
        click.echo(f"not read: {what}", err=True)
