"""The scheduler's three verbs as plain functions from a question's bytes to an answer, whatever carries them."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from extender.metrics import Metrics
from extender.protocol import (
    error_answer,
    filter_answer,
    preemption_answer,
    priorities,
    read_args,
    read_preemption,
)
from extender.state import State
from fleet.objects import Pod
from fleet.placement import Placement, judge, not_ready, prefer, scores

Answer = tuple[int, bytes]
"""An HTTP status and a body: JSON with 200, a line of text otherwise."""
Verb = Callable[[bytes], Answer]

_PREFIXES: Final = ("", "/v1")
_OK: Final = 200
_BAD_REQUEST: Final = 400
_UNREADABLE: Final = (msgspec.DecodeError, RecursionError, UnicodeError)
_LOG: Final = logging.getLogger("wholenode.extender")


class Verbs:
    """Filter, prioritize and preempt over `state`, which the caller keeps filled.

    They never raise and never wait: a question that makes no sense, and even a fault of ours, has an answer that stops
    nobody's scheduling loop.
    """

    def __init__(self, state: State, metrics: Metrics, *, packing: bool = True) -> None:
        """`packing`: filter lets a small pod have only the best nodes, instead of leaving that to prioritize."""
        self._state = state
        self._metrics = metrics
        self._packing = packing
        self.by_name: Mapping[str, Verb] = {
            "filter": self.filter,
            "prioritize": self.prioritize,
            "preempt": self.preempt,
        }

    def filter(self, body: bytes) -> Answer:
        """Which nodes the pod may have. Always 200; `Error` only for a question that cannot be read."""
        started = time.perf_counter()
        try:
            args = read_args(body)
            placement = self._judge(args.pod, args.names(), packing=self._packing, now=datetime.now(UTC))
            answer = filter_answer(args, body, placement)
        except _UNREADABLE as error:
            self._metrics.bad("filter")
            return _OK, error_answer(f"wholenode: not an ExtenderArgs: {_said(error)}")
        except Exception:
            _LOG.exception("filter failed")
            return _OK, error_answer("wholenode: the extender failed, its log says where")
        self._metrics.decided(placement)
        self._metrics.took("filter", time.perf_counter() - started)
        return _OK, answer

    def prioritize(self, body: bytes) -> Answer:
        """How well each node suits the pod. Always 200: without an opinion an empty array."""
        started = time.perf_counter()
        try:
            args = read_args(body)
            answer = priorities(scores(args.pod, args.names(), self._state.board(), self._state.tally.touched))
        except _UNREADABLE:
            self._metrics.bad("prioritize")
            return _OK, priorities([])
        except Exception:
            _LOG.exception("prioritize failed")
            return _OK, priorities([])
        self._metrics.took("prioritize", time.perf_counter() - started)
        return _OK, answer

    def preempt(self, body: bytes) -> Answer:
        """Nobody is stopped on a node that the filter would then refuse; 400 for a question that cannot be read."""
        started = time.perf_counter()
        try:
            args = read_preemption(body)
            placement = self._judge(args.pod, tuple(args.candidates()))
            answer = preemption_answer(args, placement.passed)
        except _UNREADABLE as error:
            self._metrics.bad("preempt")
            return _BAD_REQUEST, f"wholenode: not an ExtenderPreemptionArgs: {_said(error)}".encode()
        except Exception:
            _LOG.exception("preempt failed")
            return _OK, b'{"NodeNameToMetaVictims":{}}'
        self._metrics.took("preempt", time.perf_counter() - started)
        return _OK, answer

    def _judge(
        self, pod: Pod, names: Sequence[str], *, packing: bool = False, now: datetime | None = None
    ) -> Placement:
        state = self._state
        if state.not_ready() is not None:
            return not_ready(pod, names, state.classifier)
        board = state.board()
        return prefer(pod, names, board, state.tally, now) if packing else judge(pod, names, board, now)


@dataclass
class Desk:
    """Where questions are handed in, whichever way they come."""

    verbs: Mapping[str, Verb]
    """By path."""
    max_body_bytes: int
    read_seconds: float
    """How long a request may take to arrive, from its first byte to its last."""
    leaving: bool = False
    """Set when the process is to end: it is not ready, and each answer is its connection's last."""

    @classmethod
    def of(cls, verbs: Verbs, max_body_bytes: int, read_seconds: float) -> "Desk":
        by_path = {f"{prefix}/{name}": verb for prefix in _PREFIXES for name, verb in verbs.by_name.items()}
        return cls(by_path, max_body_bytes, read_seconds)


def _said(error: Exception) -> str:
    """The error's words as they can be sent: a piece of the question in them may not be UTF-8."""
    return str(error).encode(errors="replace").decode()
