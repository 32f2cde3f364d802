"""Engines that are wrong, each in the way of some real one: the very code, with one piece of it replaced.

The simulation has to find every one of them, by the same checks that the right code passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from standfast.stores.protocol import Check
from standfast.workflows.running.activation import Activation
from standfast.workflows.running.host import Host
from standfast.workflows.running.journal import Journal
from standfast.workflows.running.mail import Letter, Mail
from standfast.workflows.running.replay import LIVE, Live, Mismatch, Replay, show
from standfast.workflows.starting.posting import Sending
from standfast.workflows.working import worker
from tests.simulation.hunting import replaced

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager

    from standfast.workflows.storing.records import Mark, RunKeys

    Patches = tuple[tuple[Any, str, Any], ...]


def no_fence(journal: Journal) -> tuple[Check, ...]:
    """Write whoever drives the run by now: guard by its header, which never changes."""
    header, records = journal._keys.header, journal._host.space.store.backend._memory._records  # type: ignore[attr-defined] # of the memory store
    held = (Check(key, held.fence) for key, held in journal.holds.items())
    return (Check(header, records[header].version), *held)


def always(_host: Host, _presence: str | None = None) -> bool:
    """Act although others may take this process for dead."""
    return True


async def all_are_dead(_scope: object, names: list[str]) -> tuple[list[str], dict[str, str]]:
    """Take everybody else for dead."""
    return names, {}


def left_there(mail: Mail, letter: Letter) -> Check:
    """Take a letter, and leave it in the inbox."""
    if letter in mail._letters:
        mail._letters.remove(letter)
    return Check(letter.key, letter.version)


def unknown(_sending: Sending, _keys: RunKeys) -> None:
    """Remember no id."""


async def never_looks(_worker: worker.Worker) -> None:
    """Rely on hints."""


def in_any_order(replay: Replay, branch: str, kinds: Collection[str], operation_id: str) -> Mark | Live | Mismatch:
    """Let each branch replay its own marks, whatever the others do."""
    waiting = replay._by_branch.get(branch)
    if not waiting:
        return LIVE
    mark = replay._marks[waiting[0]]
    if mark.id != operation_id or mark.kind not in kinds:
        return Mismatch(show(mark.kind, mark.id), show(next(iter(kinds)), operation_id))
    waiting.popleft()
    replay._position += 1
    return mark


def no_due(_activation: Activation) -> None:
    """Say that nothing is ever due."""


MUTANTS: Final[dict[str, Patches]] = {
    "no fence": ((Journal, "guards", no_fence),),
    "acts without its presence": ((Host, "may_act", always),),
    "takes the living for dead": ((worker, "find_dead", all_are_dead),),
    "signals stay in the inbox": ((Mail, "take", left_there),),
    "signals without ids": ((Sending, "marker", unknown),),
    "effects before records": ((Journal, "is_dirty", property(lambda _: False)),),
    "no look without a hint": ((worker.Worker, "_look_around", never_looks),),
    "branches replayed in any order": ((Replay, "ask", in_any_order),),
    "no timers": ((Activation, "due_at", no_due),),
}


def mutated(name: str) -> AbstractContextManager[None]:
    """Run the code with one of the mutants in it."""
    return replaced(MUTANTS[name])
