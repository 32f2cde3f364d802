"""Retention: deleting runs that have ended, and everything that a tenant has left."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from standfast.clock import MICROSECONDS, Instant, later
from standfast.durations import seconds
from standfast.errors import DeclarationError, RunNotFoundError, RunUnfinishedError, StoreBusyError
from standfast.keys import RecordKey
from standfast.stores.protocol import Check, Conflict, Delete, Put
from standfast.workflows.batch_purge import purge_together
from standfast.workflows.control import next_id
from standfast.workflows.records import HEADERS, ONCES, RUN_STATES, Found, Once, RunKeys, find, gone
from standfast.workflows.termination import clear_states, descendants, end_by_force, let_go

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from standfast.durations import Duration
    from standfast.stores.protocol import Change, Record
    from standfast.workflows.records import RunState
    from standfast.workflows.runtime import Runtime


PAGE: Final = 90
"""How many records one commit deletes; it has room for a hundred changes."""

TRIES: Final = 50
BY_FORCE: Final = "it was purged by force"


class Chosen(Struct, frozen=True, kw_only=True):
    """Which runs are meant. All that is said must hold.

    Attributes:
        before: Those that ended before this instant.
        status: Those that are so.
        workflow: Those of this workflow.
        force: Also those that have not ended; they are cancelled by force.
    """

    before: Instant | None = None
    status: Collection[str] | None = None
    workflow: str | None = None
    force: bool = False

    def takes(self, run: Found) -> bool:
        """Return True if a run is meant."""
        return self.takes_state(run.state)

    def takes_state(self, state: RunState) -> bool:
        """Return True if a run with this state is meant."""
        return (
            (state.has_ended or self.force)
            and (self.before is None or state.changed_at < self.before)
            and (self.status is None or state.status in self.status)
            and (self.workflow is None or state.workflow == self.workflow)
        )


async def purge_chosen(
    runtime: Runtime,
    run_id: str | None,
    *,
    before: datetime | None,
    older_than: Duration | None,
    status: str | Collection[str] | None,
    workflow: str | None,
    force: bool,
) -> int:
    """Delete one run, or all runs that are chosen, with everything that they have started; return how many."""
    chosen = Chosen(
        before=_instant(runtime, before, older_than),
        status={status} if isinstance(status, str) else status,
        workflow=workflow,
        force=force,
    )
    if (run_id is None) == (chosen == Chosen(force=force)):
        raise DeclarationError("purge", "give the id of a run, or say which runs: before, older_than, status, workflow")
    return await purge_all(runtime, chosen) if run_id is None else await purge(runtime, run_id, force=force)


def _instant(runtime: Runtime, before: datetime | None, older_than: Duration | None) -> Instant | None:
    if before is not None and older_than is not None:
        raise DeclarationError("purge", "give before or older_than, not both")
    if older_than is not None:
        return later(runtime.now(), -seconds(older_than, what="older_than"))
    if before is None:
        return None
    if not isinstance(before, datetime) or before.tzinfo is None:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise DeclarationError("purge", f"before is {before!r:.100}; it must be a datetime with a time zone")
    return Instant(int(before.timestamp() * MICROSECONDS))


async def purge(runtime: Runtime, run_id: str, *, force: bool, forget_after: float | None = None) -> int:
    """Delete a run that has ended and everything that it has started; return how many runs that were.

    Args:
        runtime: Where it lies.
        run_id: The run.
        force: Whether one that has not ended is meant as well.
        forget_after: Seconds for which its idempotency key and the count of its id stay; None: for ever.
    """
    run = await find(runtime.space, run_id)
    if not force:
        await _check_parent(runtime, run)
        await _check_inbox(runtime, run)
    family = await descendants(runtime.space, run)
    for each in (run, *family):
        if not each.state.has_ended and not force:
            raise RunUnfinishedError(each.id, each.state.status)
    if force:
        await end_by_force(runtime, run_id, BY_FORCE)
    for each in reversed(family):
        await _delete(runtime, each.id, forget_after=forget_after)
    await _delete(runtime, run_id, forget_after=forget_after)
    return 1 + len(family)


async def _check_parent(runtime: Runtime, run: Found) -> None:
    """Refuse to delete a child whose parent may still ask for its result."""
    try:
        parent = await find(runtime.space, run.header.parent) if run.header.parent else None
    except RunNotFoundError:
        return
    if parent is not None and not parent.state.has_ended:
        raise RunUnfinishedError(parent.id, parent.state.status)


async def _check_inbox(runtime: Runtime, run: Found) -> None:
    """Refuse to delete what was sent to a run that went on as another one, which may still take it."""
    last = run
    while last.state.continues:
        try:
            last = await find(runtime.space, next_id(last.id))
        except RunNotFoundError:
            return
    if not last.state.has_ended and last is not run:
        inbox = RunKeys(runtime.space, run.id).inbox()
        if (await runtime.space.scan(*inbox, limit=1)).records:
            raise RunUnfinishedError(last.id, last.state.status)


async def purge_all(runtime: Runtime, chosen: Chosen) -> int:
    """Delete all chosen runs that no other run has started, with everything that they have started."""
    purged, space = 0, runtime.space
    start, end = space.key("life").within()
    while True:
        page = await space.scan(start, end, limit=_page(runtime))
        states = ((key.parts[-1], RUN_STATES.decode(record.value)) for key, record in page.records.items())
        run_ids = [name for name, state in states if chosen.takes_state(state)]
        purged += await purge_some(runtime, run_ids, chosen.takes, force=chosen.force)
        if page.more is None:
            return purged
        start = page.more


async def purge_some(
    runtime: Runtime,
    run_ids: Sequence[str],
    takes: Callable[[Found], bool],
    *,
    force: bool = False,
    forget_after: float | None = None,
) -> int:
    """Delete those of some runs that ``takes`` still chooses: the simple ones together, others one after the other.

    A run that another one has started goes with that one. One of which something goes on is left.
    """
    purged, others = await purge_together(runtime.space, run_ids, takes=takes, forget_after=forget_after)
    for run_id in others:
        try:
            run = await find(runtime.space, run_id)
            if takes(run) and (not run.header.parent or not await _exists(runtime, run.header.parent)):
                purged += await purge(runtime, run_id, force=force, forget_after=forget_after)
        except (RunUnfinishedError, RunNotFoundError):
            continue  # something of it goes on; or another purge was faster
    return purged


def _page(runtime: Runtime) -> int:
    """Return how many records are deleted together: what a commit takes, with room for those that go with them."""
    return min(PAGE, runtime.space.at_most(100) - 10)


async def _exists(runtime: Runtime, run_id: str) -> bool:
    key = runtime.space.key("life", run_id)
    return bool((await runtime.space.read(key)).version(key))


# --- one run ------------------------------------------------------------------------------------------------------


async def make_room(runtime: Runtime, run_id: str) -> None:
    """Delete a run that has ended, and what it started, so that a new one can have its id.

    What was sent to it stays known.
    """
    try:
        run = await find(runtime.space, run_id)
        if run.state.continues:
            await make_room(runtime, next_id(run_id))
        for child in reversed(await descendants(runtime.space, run)):
            await end_by_force(runtime, child.id, "a new run has the id of its parent")
            await _delete(runtime, child.id)
        await _delete(runtime, run_id, keep_markers=True)
    except (RunNotFoundError, RunUnfinishedError):
        return  # another process was faster, and has perhaps started the new one


async def _delete(
    runtime: Runtime, run_id: str, *, keep_markers: bool = False, forget_after: float | None = None
) -> None:
    """Delete one run, in as many commits as it takes. Each holds only while the run is the one that was found."""
    space, keys = runtime.space, RunKeys(runtime.space, run_id)
    for _ in range(TRIES):
        run = await find(space, run_id)
        if not run.state.has_ended:
            raise RunUnfinishedError(run_id, run.state.status)
        if run.state.leaving:
            await let_go(runtime, run)
            continue
        records = await _leavings(runtime, keys, keep_markers=keep_markers)
        if len(records) < _page(runtime) - len(_beside(runtime, keys, run)):
            if await _is_gone(runtime, keys, run, records, forget_after):
                await clear_states(runtime, run)
                return
        elif run.state.purging:
            await _delete_some(runtime, keys, run, records, keep_markers=keep_markers)
        else:
            purging = RUN_STATES.encode_own(structs.replace(run.state, purging=True))
            await space.commit(Put(keys.state, purging, run.state_version))
    raise StoreBusyError(f"the run {run_id}", f"it changed {TRIES} times while it was deleted")


async def _leavings(runtime: Runtime, keys: RunKeys, *, keep_markers: bool) -> list[Record]:
    """Return what a run has left behind; as many records as one commit deletes, if there are more."""
    found: list[Record] = []
    most = _page(runtime)
    for start, end in keys.leavings(markers=not keep_markers):
        if len(found) < most:
            page = await runtime.space.scan(start, end, limit=most - len(found))
            found.extend(page.records.values())
    return found


async def _delete_some(
    runtime: Runtime, keys: RunKeys, run: Found, records: list[Record], *, keep_markers: bool
) -> None:
    """Delete page after page of a run that cannot be brought back any more."""
    guard = Check(keys.state, run.state_version)
    while len(records) == _page(runtime):
        deletes = (Delete(record.key, record.version) for record in records)
        if isinstance(await runtime.space.commit(guard, *deletes), Conflict):
            return
        records = await _leavings(runtime, keys, keep_markers=keep_markers)


def _beside(runtime: Runtime, keys: RunKeys, run: Found) -> list[RecordKey]:
    """Return where the single records of a run lie."""
    found = [keys.header, keys.counter, keys.progress, keys.ready, *keys.listed(run.state, run.header)]
    if run.state.until is not None:
        found.append(keys.timer(run.state.until))
    if run.header.idempotency_key:
        found.append(runtime.space.key("once", run.header.idempotency_key))
    return found


async def _is_gone(
    runtime: Runtime, keys: RunKeys, run: Found, records: list[Record], forget_after: float | None
) -> bool:
    """Delete the run itself and the last that it has left. That it was there stays: its idempotency key, and its id."""
    beside = _beside(runtime, keys, run)
    seen = await runtime.space.read(*beside)
    until = None if forget_after is None else later(seen.at, forget_after)
    changes: list[Change] = [Delete(keys.state, run.state_version)]
    changes += [Delete(record.key, record.version) for record in records]
    once = runtime.space.key("once", run.header.idempotency_key) if run.header.idempotency_key else None
    for key in beside:
        if key == once:
            changes.append(Put(key, ONCES.encode_own(Once(keys.id, purged=True)), seen.version(key), until))
        elif key == keys.header and (left := gone(run.header)) is not None:
            changes.append(Put(key, HEADERS.encode_own(left), seen.version(key), until))
        elif version := seen.version(key):
            changes.append(Delete(key, version))
    return not isinstance(await runtime.space.commit(*changes), Conflict)


# --- a tenant -----------------------------------------------------------------------------------------------------

KEPT: Final = frozenset({"presence", "worker", "fleet", "declared", "indexed"})
"""What is not a tenant's but the processes': it goes when they do; and that the index of runs is complete."""


async def erase(runtime: Runtime, tenant: str) -> int:
    """Delete every record of the engine's tenant; return how many that were."""
    space = runtime.space
    if tenant != space.tenant:
        raise DeclarationError(
            f"tenant {tenant!r:.100}", f"this engine is open for {space.tenant!r}; say that to erase it"
        )
    await purge_all(runtime, Chosen(force=True))
    erased = 0
    start, end = RecordKey(space.namespace, space.tenant).within()
    while True:
        page = await space.scan(start, end, limit=_page(runtime))
        doomed = [record for key, record in page.records.items() if key.parts[2] not in KEPT]
        if doomed and isinstance(await space.commit(*(Delete(each.key, each.version) for each in doomed)), Conflict):
            continue  # something was written meanwhile: look again
        erased += len(doomed)
        if page.more is None:
            return erased
        start = page.more
