"""The keeper of one cluster's processes: starts and stops them, and takes them down when its user is gone.

Run as a script, with nothing but the standard library; the argument is `{"parent": pid, "root": dir, "data": dir}`.
It reads one JSON request a line on standard input and answers each with one JSON line: start (name, argv, env, log)
-> pid; stop (name, grace_seconds) -> returncode; poll -> processes; detach; shutdown (keep_logs). It holds the locks
of its directories by the file descriptors that it inherited.

A process of its own, because "die with the parent" (PR_SET_PDEATHSIG) is tied to the *thread* that forked: here there
is only one, whereas the thread of a test that starts a cluster may end long before the cluster. If its parent dies in
any way, it stops everything in order; if it is killed itself, the kernel kills the rest.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

STOP_ORDER = ("kube-scheduler", "kube-controller-manager", "kwok", "kube-apiserver", "etcd")
GRACE_SECONDS = 5.0
PR_SET_PDEATHSIG = 1

Reply = dict[str, Any]


def _die_with(parent: int) -> Callable[[], None]:
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


class Supervisor:
    """Keeps the processes of one cluster; used by one thread."""

    def __init__(self, root: Path, data: Path) -> None:
        self.root = root
        self.data = data
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.detached = False
        self.ended = False

    def start(self, request: Reply) -> Reply:
        """Start a process in a directory of its own log file; the name must not be running."""
        name = request["name"]
        known = self.processes.get(name)
        if known is not None and known.poll() is None:
            return {"error": f"{name} is already running as process {known.pid}"}
        with Path(request["log"]).open("ab") as log:
            try:
                process = subprocess.Popen(
                    request["argv"],
                    env=request["env"],
                    cwd=request.get("cwd") or self.root,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 - this program has one thread
                )
            except (OSError, subprocess.SubprocessError) as error:
                return {"error": f"cannot start {request['argv'][0]}: {error}"}
        self.processes[name] = process
        return {"pid": process.pid}

    def stop(self, request: Reply) -> Reply:
        """Ask a process to end, kill it after the grace period, and wait until it is gone."""
        process = self.processes.pop(request["name"], None)
        if process is None:
            return {"returncode": None}
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=request.get("grace_seconds", GRACE_SECONDS))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return {"returncode": process.returncode}

    def poll(self, _request: Reply) -> Reply:
        """Tell each process's id and, if it has ended, its return code."""
        found = {name: {"pid": p.pid, "returncode": p.poll()} for name, p in self.processes.items()}
        return {"processes": found}

    def detach(self, _request: Reply) -> Reply:
        """Outlive the parent from now on."""
        self.detached = True
        return {"detached": True}

    def shutdown(self, request: Reply) -> Reply:
        """Stop everything: extra programs first (newest first), then the control plane in its order; then tidy up."""
        extras = [name for name in reversed(self.processes) if name not in STOP_ORDER]
        for name in [*extras, *STOP_ORDER]:
            self.stop({"name": name})
        self._tidy(keep_logs=bool(request.get("keep_logs")))
        self.ended = True
        return {"ended": True}

    def _tidy(self, *, keep_logs: bool) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        if not keep_logs:
            shutil.rmtree(self.root, ignore_errors=True)
            return
        for entry in self.root.iterdir():
            if entry.name == "logs":
                continue
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)


def serve(supervisor: Supervisor, parent: int) -> None:
    """Answer requests until a shutdown, a SIGTERM, or (unless detached) the parent's end."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    terminated = False

    def on_term(_number: int, _frame: object) -> None:
        nonlocal terminated
        terminated = True

    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    actions = {
        "start": supervisor.start,
        "stop": supervisor.stop,
        "poll": supervisor.poll,
        "detach": supervisor.detach,
        "shutdown": supervisor.shutdown,
    }
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ, "requests")
        selector.register(wake_read, selectors.EVENT_READ, "signal")
        with contextlib.suppress(OSError):  # gone already, or no pidfd here: standard input's end says the same
            selector.register(os.pidfd_open(parent), selectors.EVENT_READ, "parent")
        buffer = b""
        while not supervisor.ended:
            if terminated or (os.getppid() != parent and not supervisor.detached):
                supervisor.shutdown({})
                return
            for key, _mask in selector.select():
                if key.data == "signal":
                    os.read(wake_read, 4096)
                    continue
                chunk = os.read(sys.stdin.fileno(), 65536) if key.data == "requests" else b""
                if not chunk:
                    selector.unregister(key.fileobj)
                    if not supervisor.detached:
                        supervisor.shutdown({})
                        return
                    continue
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    request = json.loads(line)
                    reply = actions[request["op"]](request)
                    _answer(reply)


def _answer(reply: Reply) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more; the end of standard input follows
        os.write(sys.stdout.fileno(), json.dumps(reply).encode() + b"\n")


def main() -> None:
    """Read the settings from the only argument and serve."""
    settings = json.loads(sys.argv[1])
    serve(Supervisor(Path(settings["root"]), Path(settings["data"])), int(settings["parent"]))


if __name__ == "__main__":
    main()
