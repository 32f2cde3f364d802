"""Flows that are wrong, each in the way of some real one: the very code, with one piece of it replaced.

The simulation has to find every one of them, by the same checks that the right code passes.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import structs

from standfast.flows import dispatcher as admitting
from standfast.flows import schedules as ticking
from standfast.flows import view as viewing
from standfast.flows.arbiter import in_store as shared
from standfast.flows.arbiter.in_memory import LocalArbiter, RequestLine
from standfast.flows.arbiter.in_store import SharedArbiter, SharedTurn
from standfast.flows.durable import DurableCommits, DurableExecution
from standfast.flows.idempotency import IdempotencyClaim, fingerprint_of, place_of
from standfast.flows.records import SESSIONS, SessionRecord, session_key
from standfast.flows.session import apply
from standfast.flows.task import DispatcherBackend
from standfast.locks.entry import ExtraChanges
from standfast.stores.protocol import Decision, Put
from standfast.workflows import debounce as collecting
from standfast.workflows.start import start
from tests.simulation.mutant_hunt import replaced

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractContextManager

    Patches = tuple[tuple[Any, str, Any], ...]


@asynccontextmanager
async def without_a_turn(_performing: DurableExecution) -> AsyncIterator[None]:
    """Run as soon as a worker is there."""
    yield None


def no_line(*_: object) -> tuple[()]:
    """Let durable requests stand in no line."""
    return ()


_leave_line: Final = RequestLine.leave


def last_come_first_served(line: RequestLine[Any], entrant: Any) -> Any:
    """Hand a key to whoever came last."""
    if line.holder is entrant and line.waiters:
        last = next(reversed(line.waiters))
        rest = [each for each in line.waiters if each is not last]
        waiters = {each: line.waiters[each] for each in (last, *rest)}
        line.waiters.clear()
        line.waiters.update(waiters)
    return _leave_line(line, entrant)


def still_collects(life: Any) -> bool:
    """Take a burst for open until it has ended."""
    return not life.has_ended and life.cancel is None


async def whoever_has_the_turn(turn: SharedTurn, extra_changes: ExtraChanges[int]) -> Any:
    """Commit for a request, whoever has the turn by now."""
    space = turn._arbiter.space
    return (
        await space.update(extra_changes.keys, lambda seen: Decision(None, tuple(extra_changes.decide(0, seen))))
    ).versions


def unguarded(_outcomes: DurableCommits, extra_changes: ExtraChanges[int]) -> ExtraChanges[int]:
    """Commit, whoever drives the run by now."""
    return extra_changes


_run: Final = DispatcherBackend.run


async def at_once(calls: DispatcherBackend, action: Any, inputs: Any, **options: Any) -> Any:
    """Write what an action does to its session when it has returned, whatever becomes of the request."""
    value = await _run(calls, action, inputs, **options)
    operations, server = calls.session.operations, calls._server
    key = session_key(server.space, calls._arrival.tenant, calls.session.id)

    def decide(_: int, seen: Any) -> tuple[Put, ...]:
        found = seen.get(key)
        state = {} if found is None else SESSIONS.decode(found.value).state
        return (Put(key, SESSIONS.encode(SessionRecord(apply(state, operations))), seen.version(key)),)

    await server.update(ExtraChanges((key,), decide))
    calls.session._operations.clear()
    return value


async def always_free(scope: Any, arrival: Any, packed: bytes, window: float) -> IdempotencyClaim:
    """Take every key for one that was never used."""
    key = place_of(scope, arrival)
    version = (await scope.read(key)).version(key)
    return IdempotencyClaim(key, version, fingerprint_of(arrival, packed), window)


async def always_there(_scope: object, _name: str) -> bool:
    """Take every server for alive."""
    return True


async def nobody(*_: object) -> None:
    """Look at no line."""


def whatever_was_written(outcomes: DurableCommits, record: Any, operations: Any) -> ExtraChanges[int]:
    """Write the end of a request over any other end."""
    keys = outcomes.keys
    del operations

    def decide(_: int, seen: Any) -> tuple[Any, ...]:
        found = seen.get(keys.record)
        return () if found is None else tuple(keys.end(record, found.version, seen))

    return ExtraChanges(keys.ending(record), decide)


async def without_a_second_try(performing: DurableExecution) -> None:
    """Let a request fail with the store."""
    problem = await performing._run()
    if problem is not None:
        raise problem


async def without_lines(host: Any, asked: Any, lines: Any) -> Any:
    """Start a tick whatever the one before does."""
    del lines
    return await _begin(host, asked, ())


_begin: Final = ticking._begin


async def and_forget_the_record(host: Any, asked: Any) -> Any:
    """Start the run of a request, and leave its record for later."""
    kept = tuple(each for each in asked.extra_changes if each.key.parts[2] != "request")
    started = await start(host, structs.replace(asked, extra_changes=kept))
    await host.space.commit(*(each for each in asked.extra_changes if each.key.parts[2] == "request"))
    return started


def never_lost(_arbiter: LocalArbiter) -> None:
    """Go on although another server may have taken over."""


MUTANTS: Final[dict[str, tuple[Literal["shared", "local"], Patches]]] = {
    "durable requests need no turn": ("local", ((DurableExecution, "_in_turn", without_a_turn),)),
    "durable requests stand in no line": (
        "shared",
        ((SharedArbiter, "standings", no_line), (DurableExecution, "_in_turn", without_a_turn)),
    ),
    "last come, first served": ("local", ((RequestLine, "leave", last_come_first_served),)),
    "a burst that fires still collects": ("shared", ((collecting, "_collects", still_collects),)),
    "commits that are not fenced by the turn": ("shared", ((SharedTurn, "update", whoever_has_the_turn),)),
    "a worker that was replaced commits": ("shared", ((DurableCommits, "_guarded", unguarded),)),
    "a session that is changed at once": ("shared", ((DispatcherBackend, "run", at_once),)),
    "idempotency keys that are always free": ("shared", ((admitting, "resolve", always_free),)),
    "the dead are taken for alive": ("shared", ((viewing, "is_present", always_there),)),
    "nobody looks after lines": ("shared", ((shared, "reap_lines_forever", nobody),)),
    "an end over another end": ("shared", ((DurableCommits, "_outcome", whatever_was_written),)),
    "ticks that overlap": ("shared", ((ticking, "_begin", without_lines),)),
    "a record that comes after its run": ("shared", ((admitting, "start", and_forget_the_record),)),
    "a request that fails with the store": ("shared", ((DurableExecution, "run", without_a_second_try),)),
    "a server that does not see that it is replaced": ("local", ((LocalArbiter, "_lost", never_lost),)),
}
"""By name: which arbiter has it, and what is replaced."""


def mutated(name: str) -> AbstractContextManager[None]:
    """Run with one mutant."""
    return replaced(MUTANTS[name][1])
