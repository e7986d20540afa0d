"""Where commands that read a cluster get it from: the API server, or a file that `wholenode dump` wrote."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from fleet.view import View

_SECONDS: Final = 60.0
STDIN: Final = "-"
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

kubeconfig_option: Final = click.option(
    "--kubeconfig", type=click.Path(path_type=Path), help="Else $KUBECONFIG or ~/.kube/config."
)
from_option: Final = click.option(
    "--from", "file", metavar="FILE", help="Read this file of `wholenode dump` instead of a cluster; - is stdin."
)


@dataclass(frozen=True, slots=True)
class Picture:
    """The cluster at `at`; `unread` says what could not be read of it, `origin` where it is from."""

    view: View
    at: datetime
    origin: str
    unread: tuple[str, ...] = ()


def picture(file: str | None, kubeconfig: Path | None, at: str | None = None) -> Picture:
    """The cluster, or the one in the file. Raises click.UsageError and click.ClickException.

    `at`: the time to take for now, with a file only; without it the file's own.
    """
    if file is None:
        if at is not None:
            raise click.UsageError("--at needs --from: of a running cluster only the present is known")
        return run(_live(kubeconfig))
    if kubeconfig is not None:
        raise click.UsageError("say --from or --kubeconfig, not both")
    view, moment = _saved(file, at)
    return Picture(view, moment, "standard input" if file == STDIN else file)


def _saved(file: str, at: str | None) -> tuple[View, datetime]:
    from cluster.dumps import DumpError, read_dump
    from fleet.errors import TimeError
    from fleet.times import parse_time

    try:
        asked = parse_time(at).astimezone(UTC) if at is not None else None
    except (TimeError, OverflowError) as error:
        raise click.UsageError(f"--at: {error}") from error
    try:
        dump = read_dump(_bytes(file))
    except OSError as error:
        raise click.ClickException(f"{file} cannot be read: {error.strerror or error}") from error
    except DumpError as error:
        raise click.ClickException(f"{file}: {error.message}") from error
    moment = asked or dump.taken_at
    if moment is None:
        raise click.ClickException(
            f"{file} does not say when it was taken: give the time with --at (plan), or use a file of `wholenode dump`"
        )
    return dump.view, moment


def _bytes(file: str) -> bytes:
    if file == STDIN:
        return sys.stdin.buffer.read()
    return Path(file).read_bytes()


async def _live(kubeconfig: Path | None) -> Picture:
    from cluster.client import connect
    from cluster.facts import whole

    async with connect(str(kubeconfig) if kubeconfig is not None else None) as api:
        at = datetime.now(UTC)
        found = await whole(api)
        return Picture(found.view, at, api.server, found.unread)


def run(asking: Coroutine[Any, Any, T], seconds: float = _SECONDS) -> T:
    """Run it; whatever the cluster answers instead, or no end after `seconds`, ends the program with one line."""
    from cluster.errors import ClusterError

    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await asking

    try:
        return asyncio.run(bounded())
    except TimeoutError as error:
        raise click.ClickException(f"no answer within {seconds:.0f} s") from error
    except ClusterError as error:
        raise click.ClickException(explained(error)) from error
    except BaseExceptionGroup as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        if isinstance(first, ClusterError):
            raise click.ClickException(explained(first)) from errors
        raise


def explained(error: Exception) -> str:
    """The error in one line, with what helps against it."""
    from cluster.errors import Forbidden, NotFound

    text = " ".join(str(error).split())
    if isinstance(error, Forbidden):
        return f"{text}. This lists nodes, pods and wholenode's kinds with your own rights; --from reads a saved file"
    if isinstance(error, NotFound):
        return f"{text}. wholenode's kinds are not served: is it installed?"
    return text
