"""A cluster that people leave running: started in the background, found by name, stopped by process id."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import select
import shutil
import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from kwok.admin import Admin, create_all
from kwok.catalogue import cache_dir
from kwok.controlplane import ControlPlane
from kwok.errors import LabError
from kwok.nodes import is_ready, make_nodes
from kwok.process import start_ticks
from kwok.progress import Progress

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
STOP_SECONDS = 60.0


@dataclass(frozen=True)
class ProcessMark:
    """A process id with its start time in clock ticks since boot: an id that is used again is not taken for it."""

    pid: int
    ticks: int

    def alive(self) -> bool:
        """Tell whether this very process runs."""
        return start_ticks(self.pid) == self.ticks


@dataclass(frozen=True)
class Lab:
    """A cluster in the background, as its state file tells."""

    name: str
    url: str
    kubeconfig: str
    root: str
    nodes: int
    cards: int
    supervisor: ProcessMark
    components: dict[str, ProcessMark]

    def dead(self) -> list[str]:
        """Return the names of the components that do not run."""
        return [name for name, mark in self.components.items() if not mark.alive()]


def _home() -> Path:
    return cache_dir() / "labs"


def _state_file(name: str) -> Path:
    if not NAME.fullmatch(name):
        raise LabError(f"{name!r} is no name for a lab: use up to 40 of a-z, 0-9 and -")
    return _home() / f"{name}.json"


@contextlib.contextmanager
def _locked(name: str) -> Iterator[Path]:
    path = _state_file(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix(".lock").open("w", encoding="ascii")
    except OSError as error:
        raise LabError(f"{path.parent} cannot be written ({error.strerror}); set WHOLENODE_CACHE") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(f"another command is starting or stopping the lab {name!r} right now") from None
        yield path


def find(name: str) -> Lab | None:
    """Return the lab of that name as written down (its processes may be gone), or None.

    Raises LabError if the state file cannot be read.
    """
    path = _state_file(name)
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        supervisor = ProcessMark(**state.pop("supervisor"))
        components = {part: ProcessMark(**mark) for part, mark in state.pop("components").items()}
        return Lab(**state, supervisor=supervisor, components=components)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LabError(
            f"the state file {path} is damaged; end its processes if any still run, remove it, and start again"
        ) from error


def everyone() -> list[str]:
    """Return the names of all labs that are written down."""
    return sorted(path.stem for path in _home().glob("*.json"))


def up(
    name: str,
    *,
    nodes: int,
    cards: int,
    port: int | None = None,
    scheduler_config: str | None = None,
    progress: Progress | None = None,
) -> tuple[Lab, bool]:
    """Start a lab with ready nodes and leave it running; return it, and False if it was running already.

    What a lab of that name that died has left is cleared first. Raises LabError.
    """
    with _locked(name) as path:
        known = find(name)
        if known is not None and known.supervisor.alive():
            return known, False
        if known is not None:
            _clear(known, path)
        plane = ControlPlane(apiserver_port=port, scheduler_config=scheduler_config, progress=progress)
        plane.start()
        try:
            asyncio.run(_fill(plane.kubeconfig, nodes, cards))
            kubeconfig = path.with_suffix(".kubeconfig")
            shutil.copy(plane.kubeconfig, kubeconfig)
            pids = plane.pids()
            marks = {part: ProcessMark(pid, start_ticks(pid) or 0) for part, pid in pids.items()}
            supervisor = marks.pop("supervisor")
            lab = Lab(name, plane.url, str(kubeconfig), str(plane.root), nodes, cards, supervisor, marks)
            _write(path, lab)
            plane.detach()
        except BaseException:
            path.unlink(missing_ok=True)
            plane.stop()
            raise
        return lab, True


async def _fill(kubeconfig: Path, count: int, cards: int) -> None:
    nodes = make_nodes(count, cards)
    async with Admin(kubeconfig) as admin:
        await create_all(admin, nodes)
        await admin.wait_for_all(
            "/api/v1/nodes", lambda found: len(found) == count and all(map(is_ready, found.values()))
        )


def _write(path: Path, lab: Lab) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(asdict(lab), indent=1), encoding="utf-8")
    temporary.replace(path)


def down(name: str) -> bool:
    """Stop a lab and remove its files; return False if it was not running. Raises LabError if it does not end."""
    with _locked(name) as path:
        known = find(name)
        if known is None:
            return False
        running = known.supervisor.alive()
        if running:
            _end(known.supervisor)
        _clear(known, path)
        return running


def _end(mark: ProcessMark) -> None:
    try:
        handle = os.pidfd_open(mark.pid)
    except ProcessLookupError:
        return
    try:
        if not mark.alive():
            return
        for number in (signal.SIGTERM, signal.SIGKILL):  # killed, its components are killed by the kernel
            signal.pidfd_send_signal(handle, number)
            if select.select([handle], [], [], STOP_SECONDS)[0]:
                return
    finally:
        os.close(handle)
    raise LabError(f"the lab's supervisor (process {mark.pid}) does not end")


def _clear(lab: Lab, path: Path) -> None:
    shutil.rmtree(lab.root, ignore_errors=True)
    Path(lab.kubeconfig).unlink(missing_ok=True)
    path.unlink(missing_ok=True)
