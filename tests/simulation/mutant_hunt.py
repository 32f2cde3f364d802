"""Hunting a mutant: code that is wrong is run with one seed after the other, until a check notices."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from tests.sizes import Tally, tallies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


REVEALING: Final[dict[str, tuple[int, ...]]] = {
    "a burst that fires still collects": (8,),
    "a chat whose watch forgets": (37,),
    "a commit of a turn is not fenced": (71,),
    "a follower that waits for the next event": (27,),
    "a forced end releases nothing": (10,),
    "a key is freed before it is handed over": (6,),
    "a mutex gets free without a look for waiters": (8,),
    "a mutex is joined that got free": (740,),
    "a record counts though its presence has fallen": (98,),
    "a record that comes after its run": (6, 5),
    "a request that fails with the store": (13,),
    "a server that does not see that it is replaced": (417,),
    "a session that is changed at once": (32,),
    "a stop reaches whoever has the key": (26,),
    "a stopped request that writes its end first": (205,),
    "a stream that waits for the next event": (27,),
    "a tool that waits for the next event": (27,),
    "a watch that forgets": (13,),
    "a worker that was replaced commits": (1037,),
    "acts without its presence": (332,),
    "an empty part of a history": (18,),
    "barging": (14,),
    "branches replayed in any order": (26,),
    "children end unheard": (18,),
    "commits that are not fenced by the turn": (375,),
    "deadline from the answer": (601,),
    "goes on inside of a lock": (653,),
    "last come, first served": (34,),
    "light ones pass a heavy one": (14,),
    "locks do not guard": (1617, 767),
    "locks of other branches are lost": (8, 334),
    "lowering permits evicts": (55,),
    "no fence": (2,),
    "no look without a hint": (16,),
    "nobody looks after lines": (34, 237),
    "one that asks again stays with its old presence": (110,),
    "one that is asked to stop goes on committing": (38,),
    "only those that are listed are counted": (4,),
    "release by slot": (8,),
    "takes the living for dead": (5,),
    "tells nobody who was turned out": (1,),
    "the dead are taken for alive": (7,),
    "the end of a request is not fenced": (56,),
    "the sole server does not guard its commits": (339,),
    "ticks that overlap": (248, 16),
    "waiters never expire": (30,),
    "waits for a purged child": (155,),
}
"""Seeds that caught a mutant, which are tried first.

They save the search for one, and nothing depends on them: if the code has changed so that they reveal nothing any more,
all others are tried as ever. The summary after the last test says which one did.
"""


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
    for found.done in dict.fromkeys([*REVEALING.get(name, ()), *range(most)]):
        try:
            run(found.done)
        except Exception as problem:  # noqa: BLE001 -- whatever gives it away
            found.problem = f"{type(problem).__name__}: {problem}".partition("\n")[0][:100]
            break
    found.seconds = time.monotonic() - started_at
    return found.problem
