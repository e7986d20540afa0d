"""What both programs do alike around their work: read settings, log JSON lines, end with one line for people."""

import gc
import logging
import sys
from collections.abc import Callable
from typing import TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings
from pythonjsonlogger.json import JsonFormatter

from cluster.errors import ClusterError

S = TypeVar("S", bound=BaseSettings)

_COLLECT_EVERY = 50_000
"""Objects made and not freed between two looks of the garbage collector."""


class StartError(Exception):
    """Something outside keeps a program from starting; the message says what it is and what to do."""


def tame_collector() -> None:
    """To be called once the caches are full: what they hold stays, and what a pass makes goes with the pass.

    To look through both again and again took a third of each pass of the controller.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY)


def run_program(name: str, settings_type: type[S], log_level: Callable[[S], str], run: Callable[[S], None]) -> int:
    """Run `run` with settings from the environment. Returns 0 when it ends, 1 after an error, which is one line.

    Errors for people are ClusterError and StartError, alone or in groups; anything else is a bug and is raised.
    """
    try:
        settings = settings_type()
    except ValidationError as error:
        for one in error.errors():
            field = "_".join(str(part) for part in one["loc"])
            print(f"{name}: {'WHOLENODE_' + field.upper() + ': ' if field else ''}{one['msg']}", file=sys.stderr)
        return 1
    _log(log_level(settings))
    try:
        run(settings)
    except (ClusterError, StartError, BaseExceptionGroup) as error:
        first: BaseException = error
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        if not isinstance(first, ClusterError | StartError):
            raise
        print(f"{name}: {first}", file=sys.stderr)
        return 1
    return 0


def _log(level: str) -> None:
    handler = logging.StreamHandler()
    fields = {"asctime": "time", "levelname": "level", "name": "logger"}
    handler.setFormatter(JsonFormatter("%(asctime)s %(levelname)s %(name)s %(message)s", rename_fields=fields))
    logging.basicConfig(level=level, handlers=[handler])
