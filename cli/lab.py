"""`wholenode lab`: a Kubernetes control plane with fake GPU nodes on this machine, in the background."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from kwok.errors import LabError

DEFAULT_NAME = "lab"


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    """Show a LabError as one line and exit with 1."""
    try:
        yield
    except LabError as error:
        raise click.ClickException(str(error)) from error


@click.group()
def lab() -> None:
    """Run a test fleet on this machine: real Kubernetes, fake nodes (KWOK), no containers."""


@lab.command()
@click.option("--nodes", default=50, show_default=True, type=click.IntRange(0, 5000), help="How many nodes.")
@click.option("--cards", default=8, show_default=True, type=click.IntRange(0, 64), help="GPU cards of each node.")
@click.option("--name", default=DEFAULT_NAME, show_default=True, help="Several labs run side by side by name.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the API server (else a free one).")
@click.option(
    "--scheduler-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A KubeSchedulerConfiguration, for example with an extender.",
)
def up(nodes: int, cards: int, name: str, port: int | None, scheduler_config: Path | None) -> None:
    """Start a lab and leave it running; programs that are missing are built first."""
    from kwok import lab as labs

    with _plainly():
        text = None if scheduler_config is None else scheduler_config.read_text(encoding="utf-8")
        found, started = labs.up(name, nodes=nodes, cards=cards, port=port, scheduler_config=text)
    if started:
        click.echo(f"lab {name!r} is up: {found.nodes} nodes with {found.cards} cards each at {found.url}")
    else:
        click.echo(f"lab {name!r} is already up ({found.nodes} nodes with {found.cards} cards each at {found.url})")
    click.echo(f"kubeconfig: {found.kubeconfig}")
    click.echo(f"export KUBECONFIG={found.kubeconfig}")


@lab.command()
@click.option("--name", help="Only this one.")
def status(name: str | None) -> None:
    """Show the labs; the exit code is 1 if one is not whole."""
    from kwok import lab as labs

    whole = True
    with _plainly():
        names = labs.everyone() if name is None else [name]
        if not names:
            click.echo("no lab is up; start one with `wholenode lab up`")
        for each in names:
            found = labs.find(each)
            if found is None:
                raise LabError(f"no lab {each!r} is up; start it with `wholenode lab up --name {each}`")
            whole &= _show(found)
    if not whole:
        raise click.exceptions.Exit(1)


def _show(found: object) -> bool:
    from kwok.lab import Lab

    if not isinstance(found, Lab):
        raise TypeError(found)
    if not found.supervisor.alive():
        click.echo(f"{found.name}: not running any more; `wholenode lab down --name {found.name}` clears what is left")
        return False
    dead = found.dead()
    state = f"running without {', '.join(dead)} (logs: {found.root}/logs)" if dead else "up"
    click.echo(f"{found.name}: {state}, {found.nodes} nodes x {found.cards} cards, {found.url}, {found.kubeconfig}")
    return not dead


@lab.command()
@click.option("--name", default=DEFAULT_NAME, show_default=True)
def down(name: str) -> None:
    """Stop a lab and remove its files."""
    from kwok import lab as labs

    with _plainly():
        stopped = labs.down(name)
    click.echo(f"lab {name!r} is down" if stopped else f"no lab {name!r} was running")


@lab.command()
@click.option("--kueue", is_flag=True, help="Build Kueue as well.")
def build(kueue: bool) -> None:
    """Build the programs that are missing in the cache, and say where each one is."""
    from kwok import kueuefiles
    from kwok.binaries import ensure
    from kwok.catalogue import CONTROL_PLANE, EVERYTHING

    with _plainly():
        found = ensure(EVERYTHING if kueue else CONTROL_PLANE)
        if kueue:
            kueuefiles.keep()
    for program, path in found.items():
        click.echo(f"{program}: {path}")


if __name__ == "__main__":
    lab()
