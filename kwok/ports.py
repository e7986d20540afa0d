"""Free TCP ports for a cluster's processes."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from kwok.errors import LabError

RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST_PORT = 15000
ATTEMPTS = 200


def is_free(port: int) -> bool:
    """Tell whether a server could listen on 127.0.0.1:`port` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _highest_port() -> int:
    try:
        return int(RANGE_FILE.read_text(encoding="ascii").split()[0]) - 1
    except (OSError, ValueError, IndexError):
        return 32767


def pick(taken: set[int]) -> int:
    """Return a free port and add it to `taken`.

    Below the kernel's range for outgoing connections where there is room: a client that keeps trying a server that is
    down would, inside that range, sooner or later get the server's port as its own and talk to itself.
    Raises LabError if no port is free.
    """
    highest = _highest_port()
    for _ in range(ATTEMPTS):
        if highest > LOWEST_PORT:
            port = random.randint(LOWEST_PORT, highest)
        else:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = int(probe.getsockname()[1])
        if port not in taken and is_free(port):
            taken.add(port)
            return port
    raise LabError(f"no free TCP port on 127.0.0.1 found in {ATTEMPTS} attempts")
