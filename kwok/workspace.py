"""The directories of one cluster: files and logs on disk, etcd's data in memory if it fits; locked while used."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

PREFIX = "wholenode-lab-"
MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of our own is made in it, with mkdtemp
MEMORY_BYTES_NEEDED = 1024**3
LOCK = "lock"


@dataclass(frozen=True)
class Workspace:
    """`root` holds keys, kubeconfigs and `logs/`; `data` is etcd's; `locks` are held by the supervisor."""

    root: Path
    data: Path
    locks: tuple[int, ...]

    @property
    def logs(self) -> Path:
        """The log directory."""
        return self.root / "logs"

    def release(self) -> None:
        """Close this program's copies of the locks, once the supervisor holds its own."""
        for lock in self.locks:
            with contextlib.suppress(OSError):
                os.close(lock)

    def remove(self) -> None:
        """Remove everything (only for a workspace without a supervisor)."""
        shutil.rmtree(self.data, ignore_errors=True)
        shutil.rmtree(self.root, ignore_errors=True)


def _bases() -> tuple[Path, Path]:
    temporary = Path(tempfile.gettempdir())
    try:
        roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_NEEDED
    except OSError:
        roomy = False
    return temporary, MEMORY if roomy else temporary


def _make(base: Path) -> tuple[Path, int]:
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    # Locked before it gets its name, so that a sweep never finds it free.
    lock = os.open(directory / "new-lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (directory / "new-lock").rename(directory / LOCK)
    return directory, lock


def create() -> Workspace:
    """Make the directories of a new cluster, after removing those of clusters that died with their supervisor."""
    temporary, memory = _bases()
    for base in {temporary, memory}:
        sweep(base)
    root, root_lock = _make(temporary)
    data, data_lock = _make(memory)
    (root / "logs").mkdir()
    return Workspace(root, data, (root_lock, data_lock))


def sweep(base: Path) -> list[Path]:
    """Remove directories in `base` that no supervisor holds any more; return them. Kept logs have no lock and stay."""
    removed = []
    for directory in base.glob(f"{PREFIX}*"):
        try:
            lock = os.open(directory / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            shutil.rmtree(directory, ignore_errors=True)
            removed.append(directory)
        finally:
            os.close(lock)
    return removed
