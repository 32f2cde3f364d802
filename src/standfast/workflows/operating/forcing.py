"""Ending runs whatever their code does, and finding what they have started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from standfast.errors import RunNotFoundError, StoreBusyError
from standfast.stores.protocol import Conflict, Delete, Put
from standfast.workflows.storing.committing import commit_over
from standfast.workflows.storing.records import HEADERS, LIVES, READY, Header, Life, RunKeys

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Snapshot
    from standfast.workflows.running.host import Host

TRIES: Final = 50
PAGE: Final = 100


class Found(Struct, frozen=True):
    """A run as its records show it."""

    id: str
    header: Header
    life: Life
    life_version: int


def found_in(seen: Snapshot, keys: RunKeys) -> Found:
    """Return the run that a snapshot of its header and its life shows; refuse if there is none."""
    header, life = seen.get(keys.header), seen.get(keys.life)
    if header is None or life is None:
        raise RunNotFoundError(keys.id)
    return Found(keys.id, HEADERS.decode(header.value), LIVES.decode(life.value), life.version)


async def find(scope: Scope, run_id: str) -> Found:
    """Read a run's header and life."""
    keys = RunKeys(scope, run_id)
    return found_in(await scope.read(keys.header, keys.life), keys)


async def descendants(scope: Scope, run: Found) -> list[Found]:
    """Return every run that a run has started, and those that they have, in the order of their ids."""
    root = run.header.root or run.id
    # Children are named after their parent: its id, a dot, the step. A slash comes right after the dot.
    start, end = scope.key("life", f"{run.id}."), scope.key("life", f"{run.id}/")
    found: list[Found] = []
    while True:
        page = await scope.scan(start, end, limit=scope.at_most(PAGE))
        names = [key.parts[-1] for key in page.records]
        headers = await scope.read(*(scope.key("run", name) for name in names)) if names else page
        for name, life in zip(names, page.records.values(), strict=True):
            record = headers.get(scope.key("run", name))
            if record is not None and (header := HEADERS.decode(record.value)).root == root:
                found.append(Found(name, header, LIVES.decode(life.value), life.version))
        if page.more is None:
            return found
        start = page.more


async def end_by_force(host: Host, run_id: str, reason: str, *, only: Callable[[Life], bool] | None = None) -> Life:
    """End a run as cancelled, whatever its code does, and everything that it has started.

    Whoever drives it loses the right to: the fence of the run's owner is gone in the same commit.

    Args:
        host: The engine.
        run_id: The run.
        reason: Why, in words.
        only: Tells by a run's life whether it is meant; if not it is left as it is.
    """
    run = await find(host.space, run_id)
    if only is not None and not only(run.life):
        return run.life
    ended = run.life if run.life.has_ended else await _end(host, run, reason, only)
    if not ended.has_ended:
        return ended
    await let_go(host, run)
    for child in await descendants(host.space, run):
        if not child.life.has_ended:
            await end_by_force(host, child.id, f"its parent was cancelled: {reason}")
    return ended


async def _end(host: Host, run: Found, reason: str, only: Callable[[Life], bool] | None) -> Life:
    space, keys = host.space, RunKeys(host.space, run.id)
    for _ in range(TRIES):
        life = run.life
        if life.has_ended or (only is not None and not only(life)):
            return life
        beside = [keys.own(life.owner)] if life.owner else []
        beside += [keys.timer(life.until)] if life.until is not None else []
        seen = await space.read(keys.life, *beside)
        host.saw(seen.at)
        ended = structs.replace(
            life,
            status="cancelled",
            owner="",
            changed_at=seen.at,
            until=None,
            waits_for="",
            cancel=reason,
            admitted=0,
            ticket=None,
            leaving=True,
        )
        changes: list[Change] = [Put(keys.life, LIVES.encode_own(ended), run.life_version)]
        changes += [Delete(key, version) for key in beside if (version := seen.version(key))]
        answer = await commit_over(space, changes, _tell(space, run))
        if not isinstance(answer, Conflict):
            _depose(host, run.id)
            host.emit_moved(run.id, ended, 0, life.changed_at, run.header.lines)
            return ended
        run = await find(space, run.id)
    raise StoreBusyError(f"the run {run.id}", f"its life changed {TRIES} times while it was to be ended")


def _tell(scope: Scope, run: Found) -> dict[RecordKey, bytes | None]:
    """Return the flags to set: for its parent, for whoever drives it to stop soon, and to see that it lets go."""
    over: dict[RecordKey, bytes | None] = {RunKeys(scope, run.id).ready: READY, **no_longer_listed(scope, run)}
    if run.header.parent:
        over[RunKeys(scope, run.header.parent).ready] = READY
    return over


def no_longer_listed(scope: Scope, run: Found) -> dict[RecordKey, bytes | None]:
    """Return what is deleted when a run is quarantined no longer."""
    return (
        dict.fromkeys(RunKeys(scope, run.id).quarantined(run.header.tags)) if run.life.status == "quarantined" else {}
    )


def _depose(host: Host, run_id: str) -> None:
    loaded = host.loaded.get(run_id)
    if loaded is not None and loaded.claim is not None:
        loaded.depose()


async def let_go(host: Host, run: Found) -> None:
    """Release everything that an ended run may still hold: places in lines, and locks. Doing it twice is harmless."""
    from standfast.workflows.context.lock_marks import release_all  # noqa: PLC0415 -- it needs claims, which need this
    from standfast.workflows.limiting.lines import leave_all  # noqa: PLC0415 -- starts need this to cancel

    await release_all(host, run.id)
    await leave_all(host, run.id, run.header)
    await _has_left(host, run.id)


async def clear_states(host: Host, run: Found) -> None:
    """Delete the states that only a run, or the runs that it has started, could see."""
    from standfast.workflows.context.state import (  # noqa: PLC0415 -- contexts need children, which need this
        clear_execution,
        clear_run,
    )

    await clear_run(host, run.id)
    if not run.header.root:
        await clear_execution(host, run.id)


async def _has_left(host: Host, run_id: str) -> None:
    keys = RunKeys(host.space, run_id)
    for _ in range(TRIES):
        run = await find(host.space, run_id)
        if not run.life.leaving:
            return
        left = LIVES.encode_own(structs.replace(run.life, leaving=False))
        if not isinstance(await host.space.commit(Put(keys.life, left, run.life_version)), Conflict):
            return
