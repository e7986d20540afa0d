"""Writes generated files, or says which checked-in ones are out of date."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click


def write_files(directory: Path, files: Mapping[str, str]) -> None:
    """Write each text below `directory`, made if missing. Raises click.ClickException if one cannot be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename}: {error.strerror}") from error


def check_files(directory: Path, files: Mapping[str, str], remedy: str) -> None:
    """Raise click.ClickException if files below `directory` are missing or differ; it names them and `remedy`."""
    stale = [name for name, text in files.items() if _read(directory / name) != text]
    if stale:
        raise click.ClickException(f"out of date in {directory}: {', '.join(stale)}; run: {remedy}")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise click.ClickException(f"cannot read {path}: {error.strerror}") from error
