"""Progress of slow steps: plain lines where nobody sees a terminal, one line rewritten on a terminal."""

from __future__ import annotations

import io
import threading

import pytest

from kwok import progress
from kwok.progress import Progress, duration


class Terminal(io.StringIO):
    """A terminal that tells when a time so far was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        written = super().write(text)
        if "so far" in text:
            self.shown.set()
        return written


def test_durations() -> None:
    assert (duration(43.9), duration(365), duration(60)) == ("43 s", "6 min 05 s", "1 min 00 s")


def test_plain_lines_without_a_terminal() -> None:
    stream = io.StringIO()
    with Progress(stream).step("1/4 etcd", 43):
        pass
    first, last = stream.getvalue().splitlines()
    assert first == "building 1/4 etcd (about 43 s when nothing is cached, on 2 cores)"
    assert last == "done: 1/4 etcd after 0 s"


def test_a_terminal_sees_the_time_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "TERMINAL_EVERY_SECONDS", 0.001)
    stream = Terminal()
    with Progress(stream).step("2/4 kwok", 77):
        assert stream.shown.wait(30)
    text = stream.getvalue()
    assert "\r\x1b[2Kbuilding 2/4 kwok: 0 s so far (about 1 min 17 s" in text
    assert text.endswith("\r\x1b[2Kdone: 2/4 kwok after 0 s\n")


def test_a_step_that_fails_is_not_done() -> None:
    stream = io.StringIO()
    with pytest.raises(KeyboardInterrupt), Progress(stream).step("1/1 etcd", 43):
        raise KeyboardInterrupt
    assert stream.getvalue().endswith("stopped: 1/1 etcd after 0 s\n")


def test_a_closed_stream_does_no_harm() -> None:
    stream = io.StringIO()
    said = Progress(stream)
    stream.close()
    said.say("anything")
