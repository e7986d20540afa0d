"""How long a slow step has taken and usually takes: one updated line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

TERMINAL_EVERY_SECONDS = 1.0
PLAIN_EVERY_SECONDS = 30.0


def duration(seconds: float) -> str:
    """Return e.g. `43 s` or `6 min 05 s`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


class Progress:
    """Says what is going on, to standard error by default."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.terminal = self.stream.isatty()

    def say(self, text: str) -> None:
        """Write one line."""
        with contextlib.suppress(ValueError, OSError):  # the stream may be closed or gone
            self.stream.write(f"{text}\n")
            self.stream.flush()

    @contextlib.contextmanager
    def step(self, title: str, expected_seconds: float) -> Iterator[None]:
        """Show a step while the body runs: its title, the time so far and the time it takes on two cores."""
        started = time.monotonic()
        ended = threading.Event()
        usual = f"about {duration(expected_seconds)} when nothing is cached, on 2 cores"

        def show() -> None:
            every = TERMINAL_EVERY_SECONDS if self.terminal else PLAIN_EVERY_SECONDS
            while not ended.wait(every):
                so_far = f"building {title}: {duration(time.monotonic() - started)} so far ({usual})"
                if self.terminal:
                    self._rewrite(so_far)
                else:
                    self.say(so_far)

        self.say(f"building {title} ({usual})")
        watcher = threading.Thread(target=show, name="progress", daemon=True)
        watcher.start()
        failed = True
        try:
            yield
            failed = False
        finally:
            ended.set()
            watcher.join()
            if self.terminal:
                self._rewrite("")
            outcome = "stopped" if failed else "done"
            self.say(f"{outcome}: {title} after {duration(time.monotonic() - started)}")

    def _rewrite(self, text: str) -> None:
        with contextlib.suppress(ValueError, OSError):
            self.stream.write(f"\r\x1b[2K{text}")
            self.stream.flush()
