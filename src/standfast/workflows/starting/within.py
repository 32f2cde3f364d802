"""Starting a run within a transaction of the user's: there is such a run if and only if that is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import structs

from standfast.errors import (
    IdempotencyKeyPurgedError,
    InvalidWorkflowError,
    RunNotFoundError,
    StoreBusyError,
    UnsuitableConnectionError,
)
from standfast.stores.guests import guest_of
from standfast.stores.joining import converse, joining_of
from standfast.stores.protocol import Conflict, Put
from standfast.workflows.limiting.arriving import WAITS
from standfast.workflows.limiting.standing import standings_of
from standfast.workflows.limiting.waiting import waits_until
from standfast.workflows.starting.creating import Started, after_gone, compare, creation, first_life, header_of
from standfast.workflows.storing.records import ONCES, READY, RunKeys

if TYPE_CHECKING:
    from standfast.stores.joining import Joining, Talk
    from standfast.stores.protocol import Change
    from standfast.workflows.running.host import Host
    from standfast.workflows.starting.creating import Start
    from standfast.workflows.storing.records import Standing

TRIES: Final = 3


async def start_over(host: Host, asked: Start, connection: object) -> Started:
    """Start a run in the transaction of a connection that is used with ``await``."""
    guest = guest_of(connection)
    if guest.blocks:
        raise UnsuitableConnectionError(guest.kind, "it blocks; use standfast.blocking.Engine with it")
    return await converse(guest, await start_within(host, asked))


async def start_within(host: Host, asked: Start) -> Talk[Started]:
    """Return the talk that starts a run in a transaction, or finds the run that was started so before.

    Everything that can be refused without asking is refused here. Nobody drives the run until the transaction is
    committed: then a worker takes it up, and lets it enter its lines.
    """
    standings = standings_of(asked.workflow, asked.packed)
    _check_lines(asked, standings)
    joining = await joining_of(host.space.store, host.space.store.capabilities.backend)
    return _talk(host, asked, joining, standings)


def _check_lines(asked: Start, standings: tuple[Standing, ...]) -> None:
    for standing in standings:
        if standing.on_limit not in WAITS or standing.most_waiting is not None:
            raise InvalidWorkflowError(
                f"engine.start of {asked.workflow.name}",
                "whether its limit rejects or joins a start cannot be known before your transaction is committed; use "
                "on_limit='queue' without max_queued, or start it after the commit",
            )
    if standings and asked.delay:
        raise InvalidWorkflowError(
            f"engine.start of {asked.workflow.name}",
            "with a limit, a start within a transaction cannot have a delay; sleep in the workflow instead",
        )


def _changes(host: Host, asked: Start, standings: tuple[Standing, ...]) -> list[Change]:
    now = host.now()
    life, ready = first_life(asked, now, ""), RunKeys(host.space, asked.run_id).ready
    if standings:
        life = structs.replace(life, until=waits_until(header_of(asked, now, standings), now))
    changes = creation(host, asked, now, life, standings)
    if standings and life.until is not None:
        changes.append(Put(ready, READY))  # besides its timer: it is to be looked at now, to enter its lines
    return changes


def _talk(host: Host, asked: Start, joining: Joining, standings: tuple[Standing, ...]) -> Talk[Started]:
    header = RunKeys(host.space, asked.run_id).header
    for _ in range(TRIES):
        answer = yield from joining.write(_changes(host, asked, standings))
        if not isinstance(answer, Conflict):
            return Started(asked.run_id, is_new=True)
        if (anew := after_gone(asked, answer.current.get(header))) is not None:
            asked = anew
            continue
        run_id = _met(host, asked, answer)
        keys = RunKeys(host.space, run_id)
        seen = yield from joining.read((keys.header, keys.life))
        try:
            compare(asked, keys, seen)
        except RunNotFoundError:  # it was purged at this very moment
            continue
        return Started(run_id, is_new=False)
    raise StoreBusyError("a run", f"such runs came and went {TRIES} times while it was started; roll back and retry")


def _met(host: Host, asked: Start, conflict: Conflict) -> str:
    """Return the id of the run that a start has met."""
    key = host.space.key("once", asked.idempotency_key) if asked.idempotency_key else None
    record = None if key is None else conflict.current.get(key)
    if record is None:
        return asked.run_id
    once = ONCES.decode(record.value)
    if once.purged:
        raise IdempotencyKeyPurgedError(asked.idempotency_key, once.run)
    return once.run
