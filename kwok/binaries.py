"""The programs of the control plane: ready-made ones where named, else built from the pinned modules and cached."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kwok.catalogue import ALL_MODULES, CONTROL_PLANE, NAMED_PATHS, Module, cache_dir, module_of
from kwok.catalogue import MODULES as MODULES_DIR
from kwok.errors import LabError, last_lines
from kwok.progress import Progress
from kwok.toolchain import find_go, required_version

COLD_BUILD_BYTES = 4 * 1024**3
MANIFEST = "manifest.json"
WORK_PREFIX = ".building-"

Binaries = dict[str, Path]


def ensure(programs: Sequence[str] = CONTROL_PLANE, progress: Progress | None = None) -> Binaries:
    """Return the path of each program, building what is missing.

    A named path (WHOLENODE_ETCD, WHOLENODE_KUBE_APISERVER, ...) wins over a file of KUBEBUILDER_ASSETS, and that over
    the cache. Raises LabError: a named path that cannot be run, no compiler, no space, a failed build.
    """
    progress = Progress() if progress is None else progress
    found = {name: path for name in programs if (path := _ready_made(name)) is not None}
    wanted = {module_of(name).name for name in programs if name not in found}
    modules = [module for module in ALL_MODULES if module.name in wanted]
    missing = []
    for module in modules:
        problem = _problem(module)
        if problem is not None:
            missing.append(module)
            if problem:
                progress.say(f"{module.name}: {problem}; building it again")
    if missing:
        _build_all(missing, progress)
    for module in modules:
        for name in module.programs:
            if name in programs and name not in found:
                found[name] = _home(module) / name
    return found


def module_dir(module_name: str, import_path: str) -> Path:
    """Return the directory of a Go module that one of ours requires (for Kueue's CRDs); it is downloaded if missing."""
    go = find_go(_writable_cache(), required_version(MODULES_DIR), Progress().say)
    directory = MODULES_DIR / module_name
    run = subprocess.run(
        [go, "mod", "download", "-json", import_path],
        cwd=directory,
        env=_go_environment(go),
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        raise LabError(f"cannot find the Go module {import_path}: {(run.stderr or run.stdout).strip()[-300:]}")
    return Path(json.loads(run.stdout)["Dir"])


def _ready_made(program: str) -> Path | None:
    module_of(program)
    variable = NAMED_PATHS[program]
    named = os.environ.get(variable)
    if named:
        path = Path(named).expanduser().absolute()
        if not path.is_file() or not os.access(path, os.X_OK):
            raise LabError(f"{variable} names {path}, which is not an executable file")
        return path
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        return None
    directory = Path(assets).expanduser().absolute()
    if not directory.is_dir():
        raise LabError(f"KUBEBUILDER_ASSETS names {directory}, which is not a directory")
    path = directory / program
    if path.is_file() and not os.access(path, os.X_OK):
        raise LabError(f"{path} (from KUBEBUILDER_ASSETS) is not executable")
    return path if path.is_file() else None


def _home(module: Module) -> Path:
    return cache_dir() / "bin" / f"{module.name}-{module.version}-{module.key()}"


def _problem(module: Module) -> str | None:
    """Return None if the cached build is whole, "" if there is none, else what is wrong with it."""
    home = _home(module)
    if not home.exists():
        return ""
    try:
        manifest = json.loads((home / MANIFEST).read_text(encoding="utf-8"))
        size, digest = int(manifest["size"]), str(manifest["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"the cached build in {home} was left half-written"
    binary = home / module.name
    try:
        if binary.stat().st_size != size:
            return f"the cached binary {binary} is truncated"
        if _sha256(binary) != digest:
            return f"the cached binary {binary} has been changed"
    except OSError:
        return f"the cached binary {binary} is missing"
    if not os.access(binary, os.X_OK) or not all((home / name).exists() for name in module.programs):
        return f"the cached build in {home} is incomplete"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _writable_cache() -> Path:
    cache = cache_dir()
    try:
        (cache / "bin").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache):
            pass
    except OSError as error:
        raise LabError(
            f"the cache directory {cache} cannot be written ({error.strerror}); set WHOLENODE_CACHE to one that can"
        ) from error
    return cache


@contextlib.contextmanager
def _locked(cache: Path, progress: Progress) -> Iterator[None]:
    """Let one build at a time into the cache; a second one waits and then finds the work done."""
    with (cache / "build.lock").open("w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("another build is running in this cache; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_all(modules: Iterable[Module], progress: Progress) -> None:
    cache = _writable_cache()
    with _locked(cache, progress):
        for leftover in (cache / "bin").glob(f"{WORK_PREFIX}*"):  # of a build that was killed: we hold the lock
            shutil.rmtree(leftover, ignore_errors=True)
        left = [module for module in modules if _problem(module) is not None]
        if not left:
            return
        free = shutil.disk_usage(cache).free
        if free < COLD_BUILD_BYTES:
            raise LabError(
                f"{free / 1024**3:.1f} GiB are free in {cache}, and a cold build needs about "
                f"{COLD_BUILD_BYTES / 1024**3:.0f} GiB; free some or set WHOLENODE_CACHE"
            )
        go = find_go(cache, required_version(MODULES_DIR), progress.say)
        for number, module in enumerate(left, start=1):
            _build(go, module, cache, progress, f"{number}/{len(left)}")


def _go_environment(go: Path) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in {"GOROOT", "GOOS", "GOARCH"}}
    own = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -trimpath", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    return {**environment, **own, "PATH": f"{go.parent}{os.pathsep}{os.environ.get('PATH', '')}"}


def _build(go: Path, module: Module, cache: Path, progress: Progress, step: str) -> None:
    home = _home(module)
    logs = cache / "logs"
    logs.mkdir(exist_ok=True)
    log = logs / f"build-{module.name}.log"
    work = Path(tempfile.mkdtemp(prefix=f"{WORK_PREFIX}{module.name}-", dir=cache / "bin"))
    try:
        binary = work / module.name
        command = [str(go), "build", "-ldflags", module.ldflags, "-o", str(binary), module.package]
        with log.open("wb") as output, progress.step(f"{step} {module.name} {module.version}", module.expected_seconds):
            run = subprocess.run(
                command,
                cwd=module.directory,
                env=_go_environment(go),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            )
        if run.returncode != 0:
            raise LabError(f"building {module.name} failed: {last_lines(log) or 'no message'} (full log: {log})")
        for name in module.programs:
            if name != module.name:
                (work / name).symlink_to(module.name)
        manifest = {"sha256": _sha256(binary), "size": binary.stat().st_size, "version": module.version}
        (work / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        if home.exists():
            shutil.rmtree(home)
        work.rename(home)
    finally:
        shutil.rmtree(work, ignore_errors=True)
