"""`wholenode doctor`: what is wrong with a cluster's settings, with figures and the fix; nothing is changed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.source import from_option, kubeconfig_option, picture, run

if TYPE_CHECKING:
    from fleet.doctor.checkup import Checkup, KueueConfiguration
    from fleet.doctor.schedulers import Configuration

_SECONDS = 90.0
"""Beside the watch itself."""
_MOST_BYTES = 1024 * 1024
"""As much as a ConfigMap holds."""


class Unchecked(click.ClickException):
    """Nothing could be checked."""

    exit_code = 2


def _names(_: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    from fleet.doctor.registry import NAMES

    wanted = tuple(name.strip() for one in names for name in one.split(","))
    for name in wanted:
        if name not in NAMES:
            raise click.BadParameter(f"{name!r} is no check; there are: {', '.join(NAMES)}", param=parameter)
    return wanted


@click.command()
@click.option("--only", metavar="NAME", multiple=True, callback=_names, help="This check only; may be given again.")
@click.option(
    "--scheduler-config",
    "scheduler_files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A KubeSchedulerConfiguration; else those in the cluster's ConfigMaps. May be given again.",
)
@click.option(
    "--kueue-config",
    "kueue_file",
    type=click.Path(path_type=Path),
    help="Kueue's Configuration; else the one in its ConfigMap.",
)
@click.option(
    "--watch-seconds",
    type=click.FloatRange(0, 600),
    default=0,
    show_default=True,
    help="Look twice, so far apart, to see which way it goes.",
)
@from_option
@kubeconfig_option
@click.option("--json", "as_json", is_flag=True, help="For programs; docs/doctor.md explains the fields.")
def doctor(
    only: tuple[str, ...],
    scheduler_files: tuple[Path, ...],
    kueue_file: Path | None,
    watch_seconds: float,
    file: str | None,
    kubeconfig: Path | None,
    as_json: bool,
) -> None:
    """Check a cluster's settings against what keeps whole nodes from being free, or found, or used. Only reads.

    Each check says ok, warning, problem or unknown, shows the figures and the exact fix.

    Exit codes: 0 if there is no problem, 1 if there is one, 2 if something could not be checked.
    """
    from fleet.doctor.registry import examine

    configs = tuple(one for path in scheduler_files for one in _scheduler_configs(path)) if scheduler_files else None
    kueue = _kueue_config(kueue_file) if kueue_file is not None else None
    if file is not None:
        if watch_seconds or scheduler_files or kueue_file:
            raise click.UsageError("--from reads a saved picture: there is nothing to watch, and no settings are in it")
        seen, origin = _saved(file, kubeconfig)
    else:
        seen, origin = _live(kubeconfig, watch_seconds, configs, kueue)
    report = examine(seen, only)
    from cli import doctor_text

    click.echo(doctor_text.document(report, seen, origin) if as_json else doctor_text.told(report, seen, origin))
    raise SystemExit(report.exit_code)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise Unchecked(f"{path} is larger than 1 MiB: that is no configuration")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise Unchecked(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise Unchecked(f"{path} is no text: {error}") from error


def _scheduler_configs(path: Path) -> tuple[Configuration, ...]:
    from cluster.configs import scheduler_configs

    found = scheduler_configs(os.fsencode(path).decode(errors="replace"), _text(path))
    if not found:
        raise Unchecked(f"{path}: there is no KubeSchedulerConfiguration in it")
    return found


def _kueue_config(path: Path) -> KueueConfiguration:
    from cluster.configs import kueue_config

    found = kueue_config(_text(path))
    if found is None:
        raise Unchecked(f"{path}: there is no Configuration of config.kueue.x-k8s.io in it that can be read")
    return found


def _saved(file: str, kubeconfig: Path | None) -> tuple[Checkup, str]:
    from fleet.doctor.checkup import Checkup
    from fleet.kueue.expected import is_expected

    try:
        seen = picture(file, kubeconfig)
    except click.UsageError:
        raise
    except click.ClickException as error:
        raise Unchecked(error.message) from error
    # Pods that Kueue has yet to make wait for Kueue, not for a scheduler.
    pods = {uid: pod for uid, pod in seen.view.pods.items() if not is_expected(pod)}
    return Checkup(replace(seen.view, pods=pods), seen.at, saved=True), seen.origin


def _live(
    kubeconfig: Path | None,
    watch_seconds: float,
    configs: tuple[Configuration, ...] | None,
    kueue: KueueConfiguration | None,
) -> tuple[Checkup, str]:
    async def read() -> tuple[Checkup, str]:
        from cluster.checkup import watched
        from cluster.client import connect

        async with connect(str(kubeconfig) if kubeconfig is not None else None) as api:
            return await watched(api, watch_seconds, configs, kueue), api.server

    try:
        return run(read(), _SECONDS + watch_seconds)
    except click.ClickException as error:
        raise Unchecked(error.message) from error
