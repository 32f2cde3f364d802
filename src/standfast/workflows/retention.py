"""Deleting runs that have ended, and everything that a tenant has left."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from standfast.clock import Instant
from standfast.errors import InvalidWorkflowError, RunNotFoundError, RunUnfinishedError, StoreBusyError
from standfast.keys import RecordKey
from standfast.stores.protocol import Check, Conflict, Delete, Put
from standfast.workflows.control import next_id
from standfast.workflows.messages import Found, clear_states, descendants, end_by_force, find, let_go
from standfast.workflows.records import HEADERS, LIVES, ONCES, Once, RunKeys, gone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.stores.protocol import Change, Record
    from standfast.workflows.runtime import Host


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
        """Tell whether a run is meant."""
        life = run.life
        return (
            (life.has_ended or self.force)
            and (self.before is None or life.changed_at < self.before)
            and (self.status is None or life.status in self.status)
            and (self.workflow is None or life.workflow == self.workflow)
        )


async def purge(host: Host, run_id: str, *, force: bool) -> int:
    """Delete a run that has ended and everything that it has started; return how many runs that were."""
    run = await find(host.space, run_id)
    if not force:
        await _check_parent(host, run)
        await _check_inbox(host, run)
    family = await descendants(host.space, run)
    for each in (run, *family):
        if not each.life.has_ended and not force:
            raise RunUnfinishedError(each.id, each.life.status)
    if force:
        await end_by_force(host, run_id, BY_FORCE)
    for each in reversed(family):
        await _delete(host, each.id)
    await _delete(host, run_id)
    return 1 + len(family)


async def _check_parent(host: Host, run: Found) -> None:
    """Refuse to delete a child whose parent may still ask for its result."""
    try:
        parent = await find(host.space, run.header.parent) if run.header.parent else None
    except RunNotFoundError:
        return
    if parent is not None and not parent.life.has_ended:
        raise RunUnfinishedError(parent.id, parent.life.status)


async def _check_inbox(host: Host, run: Found) -> None:
    """Refuse to delete what was sent to a run that went on as another one, which may still take it."""
    last = run
    while last.life.continues:
        try:
            last = await find(host.space, next_id(last.id))
        except RunNotFoundError:
            return
    if not last.life.has_ended and last is not run:
        inbox = RunKeys(host.space, run.id).inbox()
        if (await host.space.scan(*inbox, limit=1)).records:
            raise RunUnfinishedError(last.id, last.life.status)


async def purge_all(host: Host, chosen: Chosen) -> int:
    """Delete all runs that are meant and that nobody has started, with everything that they have started."""
    purged = 0
    async for run in _lives(host, chosen):
        try:
            if not run.header.parent or not await _exists(host, run.header.parent):
                purged += await purge(host, run.id, force=chosen.force)
        except (RunUnfinishedError, RunNotFoundError):
            continue  # something of it goes on; or another purge was faster
    return purged


def _page(host: Host) -> int:
    """Return how many records are deleted together: what a commit takes, with room for those that go with them."""
    return min(PAGE, host.space.at_most(100) - 10)


async def _exists(host: Host, run_id: str) -> bool:
    key = host.space.key("life", run_id)
    return bool((await host.space.read(key)).version(key))


async def _lives(host: Host, chosen: Chosen) -> AsyncIterator[Found]:
    space = host.space
    start, end = space.key("life").within()
    while True:
        page = await space.scan(start, end, limit=_page(host))
        names = [key.parts[-1] for key in page.records]
        headers = await space.read(*(space.key("run", name) for name in names)) if names else page
        for name, record in zip(names, page.records.values(), strict=True):
            header = headers.get(space.key("run", name))
            if header is None:
                continue
            run = Found(name, HEADERS.decode(header.value), LIVES.decode(record.value), record.version)
            if chosen.takes(run):
                yield run
        if page.more is None:
            return
        start = page.more


# --- one run ------------------------------------------------------------------------------------------------------


async def make_room(host: Host, run_id: str) -> None:
    """Delete a run that has ended, and what it started, so that a new one can have its id.

    What was sent to it stays known.
    """
    try:
        run = await find(host.space, run_id)
        if run.life.continues:
            await make_room(host, next_id(run_id))
        for child in reversed(await descendants(host.space, run)):
            await end_by_force(host, child.id, "a new run has the id of its parent")
            await _delete(host, child.id)
        await _delete(host, run_id, keep_markers=True)
    except (RunNotFoundError, RunUnfinishedError):
        return  # somebody else was faster, and has perhaps started the new one


async def _delete(host: Host, run_id: str, *, keep_markers: bool = False) -> None:
    """Delete one run, in as many commits as it takes. Each holds only while the run is the one that was found."""
    space, keys = host.space, RunKeys(host.space, run_id)
    for _ in range(TRIES):
        run = await find(space, run_id)
        if not run.life.has_ended:
            raise RunUnfinishedError(run_id, run.life.status)
        if run.life.leaving:
            await let_go(host, run)
            continue
        records = await _leavings(host, keys, keep_markers=keep_markers)
        if len(records) < _page(host) - len(_beside(host, keys, run)):
            if await _is_gone(host, keys, run, records):
                await clear_states(host, run)
                return
        elif run.life.purging:
            await _delete_some(host, keys, run, records, keep_markers=keep_markers)
        else:
            purging = LIVES.encode_own(structs.replace(run.life, purging=True))
            await space.commit(Put(keys.life, purging, run.life_version))
    raise StoreBusyError(f"the run {run_id}", f"it changed {TRIES} times while it was deleted")


async def _leavings(host: Host, keys: RunKeys, *, keep_markers: bool) -> list[Record]:
    """Return what a run has left behind; as many records as one commit deletes, if there are more."""
    found: list[Record] = []
    most = _page(host)
    for start, end in keys.leavings(markers=not keep_markers):
        if len(found) < most:
            page = await host.space.scan(start, end, limit=most - len(found))
            found.extend(page.records.values())
    return found


async def _delete_some(host: Host, keys: RunKeys, run: Found, records: list[Record], *, keep_markers: bool) -> None:
    """Delete page after page of a run that nobody can bring back any more."""
    guard = Check(keys.life, run.life_version)
    while len(records) == _page(host):
        deletes = (Delete(record.key, record.version) for record in records)
        if isinstance(await host.space.commit(guard, *deletes), Conflict):
            return
        records = await _leavings(host, keys, keep_markers=keep_markers)


def _beside(host: Host, keys: RunKeys, run: Found) -> list[RecordKey]:
    """Return where the single records of a run lie."""
    found = [keys.header, keys.counter, keys.progress, keys.ready]
    if run.life.until is not None:
        found.append(keys.timer(run.life.until))
    if run.header.idempotency_key:
        found.append(host.space.key("once", run.header.idempotency_key))
    return found


async def _is_gone(host: Host, keys: RunKeys, run: Found, records: list[Record]) -> bool:
    """Delete the run itself and the last that it has left. That it was there stays: its idempotency key, and its id."""
    beside = _beside(host, keys, run)
    seen = await host.space.read(*beside)
    changes: list[Change] = [Delete(keys.life, run.life_version)]
    changes += [Delete(record.key, record.version) for record in records]
    once = host.space.key("once", run.header.idempotency_key) if run.header.idempotency_key else None
    for key in beside:
        if key == once:
            changes.append(Put(key, ONCES.encode_own(Once(keys.id, purged=True)), seen.version(key)))
        elif key == keys.header and (left := gone(run.header)) is not None:
            changes.append(Put(key, HEADERS.encode_own(left), seen.version(key)))
        elif version := seen.version(key):
            changes.append(Delete(key, version))
    return not isinstance(await host.space.commit(*changes), Conflict)


# --- a tenant -----------------------------------------------------------------------------------------------------

KEPT: Final = frozenset({"presence", "worker", "declared"})
"""What is not a tenant's but the processes': it goes when they do."""


async def erase(host: Host, tenant: str) -> int:
    """Delete every record of the host's tenant; return how many that were."""
    space = host.space
    if tenant != space.tenant:
        raise InvalidWorkflowError(
            f"tenant {tenant!r:.100}", f"this engine is open for {space.tenant!r}; say that to erase it"
        )
    await purge_all(host, Chosen(force=True))
    erased = 0
    start, end = RecordKey(space.namespace, space.tenant).within()
    while True:
        page = await space.scan(start, end, limit=_page(host))
        doomed = [record for key, record in page.records.items() if key.parts[2] not in KEPT]
        if doomed and isinstance(await space.commit(*(Delete(each.key, each.version) for each in doomed)), Conflict):
            continue  # something was written meanwhile: look again
        erased += len(doomed)
        if page.more is None:
            return erased
        start = page.more
