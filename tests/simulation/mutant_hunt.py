"""Hunting a mutant: code that is wrong is run with one seed after the other, until a check notices."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tests.sizes import Tally, tallies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


@dataclass
class Hunt(Tally):
    """The search for one mutant, and what gave it away."""

    problem: str = ""

    def __str__(self) -> str:
        found = f"caught by seed {self.done}" if self.problem else f"not caught by {self.full} seeds"
        return f"mutant {self.label}: {found} in {self.seconds:.0f} s ({self.problem})"


@contextmanager
def replaced(pieces: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Run code with some pieces of it replaced: of what, which attribute, and by what."""
    with ExitStack() as stack:
        for target, attribute, replacement in pieces:
            stack.enter_context(patch.object(target, attribute, replacement))
        yield


def hunt(name: str, most: int, run: Callable[[int], object]) -> str:
    """Run seeds until one fails; return what it failed with, nothing if none did. The summary tells of it."""
    found = Hunt(name, most)
    tallies.append(found)
    started_at = time.monotonic()
    for found.done in range(most):
        try:
            run(found.done)
        except Exception as problem:  # noqa: BLE001 -- whatever gives it away
            found.problem = f"{type(problem).__name__}: {problem}".partition("\n")[0][:100]
            break
    found.seconds = time.monotonic() - started_at
    return found.problem
