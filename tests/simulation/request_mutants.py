"""Arbiters that are wrong, each in the way of some real one: the very code, with one piece of it replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from standfast.flows.arbiter import in_store as shared_turn
from standfast.flows.arbiter.in_memory import LocalArbiter, LocalTurn, RequestLine
from standfast.flows.arbiter.in_store import SharedArbiter, SharedTurn
from standfast.locks.entry import ExtraChanges
from standfast.stores.protocol import Decision
from tests.simulation.mutant_hunt import replaced

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from standfast.flows.arbiter.protocol import Stop
    from standfast.keys import RecordKey
    from standfast.locks.entry import Answer
    from standfast.stores.protocol import Snapshot


leaving = shared_turn._leaving


def leaving_in_any_case(extra_changes: ExtraChanges[int] | None, following: SharedTurn | None) -> ExtraChanges[Answer]:
    """Commit the end of a request, whoever has the turn by now."""
    right = leaving(extra_changes, following)

    def decide(_: Any, seen: Snapshot) -> Any:
        return () if extra_changes is None else extra_changes.decide(0, seen)

    return ExtraChanges(right.keys, decide, right.on_grant)


async def update_without_guard(turn: SharedTurn, extra_changes: ExtraChanges[int]) -> Mapping[RecordKey, int]:
    """Look first and commit then, as if nothing could happen in between."""
    turn.check()
    space = turn._arbiter.space
    return (
        await space.update(extra_changes.keys, lambda seen: Decision(None, tuple(extra_changes.decide(0, seen))))
    ).versions


async def stop_whoever_is_there(arbiter: SharedArbiter, entries: Any) -> None:
    """Take a word for one entry for a word to whoever is on the same key here by now."""
    for stop in (await arbiter.stop_messages.read(entries)).values():
        for turn in list(arbiter._here.values()):
            turn.ask_to_stop(stop)
            turn.cancel()


async def commit_without_guard(
    arbiter: LocalArbiter, extra_changes: ExtraChanges[int], position: int, turn: LocalTurn
) -> Any:
    """Trust in being the sole server."""
    turn.check()
    return await arbiter._space.update(
        extra_changes.keys, lambda seen: Decision(None, tuple(extra_changes.decide(position, seen)))
    )


def leave_without_handing_over(line: RequestLine[Any], entrant: Any) -> Any:
    """Free the key, and let whoever comes first have it."""
    if line.holder is entrant:
        line.holder = None
    else:
        line.waiters.pop(entrant, None)


def free_a_taken_place(arbiter: LocalArbiter, turn: LocalTurn) -> None:
    """Give a place back by its key: whoever has it by now."""
    line = arbiter._lines.get(turn.ask.address)
    if line is not None and line.holder is not None:
        _leave(arbiter, line.holder)
    _leave(arbiter, turn)


_leave: Final = LocalArbiter.leave


def keep_committing(turn: LocalTurn, stop: Stop) -> None:
    """Ask one to stop without telling that its work counts for nothing any more."""
    turn.stop = stop
    if turn.ask.on_stop is not None:
        turn.ask.on_stop(stop)
    if not turn.is_at_front:
        turn.is_lost = True
        turn._arbiter.leave(turn)
    turn.wake()


MUTANTS: Final[dict[str, tuple[bool, tuple[tuple[Any, str, Any], ...]]]] = {
    "the end of a request is not fenced": (False, ((shared_turn, "_leaving", leaving_in_any_case),)),
    "a commit of a turn is not fenced": (False, ((SharedTurn, "update", update_without_guard),)),
    "a stop reaches whoever has the key": (False, ((SharedArbiter, "_pass_on", stop_whoever_is_there),)),
    "the sole server does not guard its commits": (True, ((LocalArbiter, "commit", commit_without_guard),)),
    "a key is freed before it is handed over": (True, ((RequestLine, "leave", leave_without_handing_over),)),
    "a place is given back by its key": (True, ((LocalArbiter, "leave", free_a_taken_place),)),
    "one that is asked to stop goes on committing": (True, ((LocalTurn, "ask_to_stop", keep_committing),)),
}
"""By name: whether it is the local arbiter, and what is replaced."""


def mutated(name: str) -> AbstractContextManager[None]:
    """Run with one mutant."""
    return replaced(MUTANTS[name][1])
