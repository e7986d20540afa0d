"""What a run of an experiment goes by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """`seed` of everything drawn; `only`: words, one of which the name of a part must contain; `say` tells people."""

    seed: int
    repetitions: int
    only: tuple[str, ...]
    out: Path
    say: Callable[[str], None]

    def wanted(self, part: str) -> bool:
        """Whether this part is to be run."""
        return not self.only or any(word in part for word in self.only)
