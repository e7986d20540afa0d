"""Talking to the supervisor: start and stop a cluster's processes from any thread of the program that uses it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kwok import supervisor
from kwok.errors import LabError

START_TICKS_FIELD = 19  # field 22 of /proc/<pid>/stat, counted after the command's closing bracket


@dataclass(frozen=True)
class ProcessState:
    """One process as the supervisor sees it: its id and, once it has ended, its return code."""

    pid: int
    returncode: int | None


def start_ticks(pid: int) -> int | None:
    """Return when a process started (clock ticks since boot), or None if it is gone or only a zombie.

    Together with the id this names a process for good: ids are used again, pairs are not.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[START_TICKS_FIELD])


class Supervisor:
    """A running supervisor process, reached through its standard input and output; safe to use from threads."""

    def __init__(self, root: Path, data: Path, locks: Sequence[int]) -> None:
        settings = {"parent": os.getpid(), "root": str(root), "data": str(data)}
        # -I -S: nothing but the standard library, whatever the caller's path and environment say.
        command = [sys.executable, "-I", "-S", str(Path(supervisor.__file__)), json.dumps(settings)]
        self.log = root / "logs" / "supervisor.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=tuple(locks),
                start_new_session=True,  # Ctrl-C is for the user of the cluster, who stops it in order
            )
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._process.pid

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        with self._lock:
            try:
                if stdin is None or stdout is None:
                    raise BrokenPipeError
                stdin.write(json.dumps(request).encode() + b"\n")
                stdin.flush()
                line = stdout.readline()
            except (OSError, ValueError) as error:
                raise LabError("the cluster's supervisor process is gone; start the cluster again") from error
        if not line:
            raise LabError("the cluster's supervisor process has ended; start the cluster again")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise LabError(reply["error"])
        return reply

    def start(self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path | None = None) -> int:
        """Start a program and return its process id. Raises LabError if it cannot be started."""
        request = {
            "op": "start",
            "name": name,
            "argv": list(argv),
            "env": dict(env),
            "log": str(log),
            "cwd": None if cwd is None else str(cwd),
        }
        return int(self._ask(request)["pid"])

    def stop(self, name: str, grace_seconds: float = supervisor.GRACE_SECONDS) -> None:
        """End a process (SIGTERM, after `grace_seconds` SIGKILL) and wait until it is gone."""
        self._ask({"op": "stop", "name": name, "grace_seconds": grace_seconds})

    def states(self) -> dict[str, ProcessState]:
        """Return every process that was started and not stopped, by name."""
        found = self._ask({"op": "poll"})["processes"]
        return {name: ProcessState(state["pid"], state["returncode"]) for name, state in found.items()}

    def detach(self) -> None:
        """Let the processes outlive this program, and let go of the supervisor."""
        self._ask({"op": "detach"})
        self._close()
        self._process.returncode = 0  # it lives on, and is nobody's child to be waited for

    def shutdown(self, *, keep_logs: bool) -> None:
        """Stop everything in order, remove the cluster's files (but the logs, if wanted), and wait for the end."""
        with contextlib.suppress(LabError):
            self._ask({"op": "shutdown", "keep_logs": keep_logs})
        self._close()
        self._process.wait()

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
