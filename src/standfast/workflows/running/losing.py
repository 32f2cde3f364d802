"""Locks that a run has lost: those who rely on them are told at their next operation, and that is recorded there."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from standfast.errors import LeaseLostError
from standfast.workflows.running.control import Unload
from standfast.workflows.storing.failures import describe, restore
from standfast.workflows.storing.records import Mark

if TYPE_CHECKING:
    from standfast.stores.protocol import Conflict
    from standfast.workflows.running.activation import Activation
    from standfast.workflows.running.branches import Branch
    from standfast.workflows.running.journal import Held


def note_lost(activation: Activation, conflict: Conflict) -> bool:
    """Tell the branches whose locks were in the way of a commit; tell whether any was."""
    holds = {} if activation.journal is None else activation.journal.holds
    found = False
    for key, held in tuple(holds.items()):
        is_over = held.ends_at is not None and held.ends_at <= conflict.at
        if is_over or key in conflict.current:
            del holds[key]
            found = True
            _tell(activation, held, "its max_hold is over" if is_over else "it was released by force")
    return found


def _tell(activation: Activation, held: Held, reason: str) -> None:
    for branch in activation.branches:
        if is_within(branch.path, held.path):
            branch.lost = branch.lost or LeaseLostError(held.name, held.fence, reason)


def is_within(path: str, other: str) -> bool:
    """Tell whether a branch is another one, or was started by it or by one that it started."""
    return not other or path == other or path.startswith(f"{other}/")


def raise_lost(activation: Activation, branch: Branch, operation_id: str) -> NoReturn:
    """Raise that a lock is lost, and record that it was raised here."""
    lost, branch.lost = branch.lost, None
    if lost is None or activation.is_unloading:
        raise Unload
    failure = describe(lost, activation.host.known)
    activation.note(Mark("lost", operation_id, activation.host.now(), failure=failure))
    raise lost


def lost_again(activation: Activation, mark: Mark) -> Exception:
    """Return what was raised, and rely on that lock no longer."""
    if mark.failure is None:
        return LeaseLostError("a lock", 0, "no reason was recorded")
    lost = restore(mark.failure, activation.host.known)
    if isinstance(lost, LeaseLostError) and activation.journal is not None:
        holds = activation.journal.holds
        for key in [key for key, held in holds.items() if (held.name, held.fence) == (lost.key, lost.fence)]:
            del holds[key]
    return lost
