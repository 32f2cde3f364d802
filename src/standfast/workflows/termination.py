"""Ending runs whatever their code does, and releasing what they held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import structs

from standfast.errors import RunNotFoundError, StoreBusyError
from standfast.locks.entry import ExtraChanges, LeaveRequest, Left, LineEntries
from standfast.stores.protocol import Conflict, Put
from standfast.workflows.context_locks import release_all
from standfast.workflows.context_state import clear_execution, clear_run
from standfast.workflows.handover import leave_all
from standfast.workflows.limits import Ending, entry_id_of, spec_of
from standfast.workflows.records import (
    HEADERS,
    READY,
    RUN_STATES,
    Found,
    RunKeys,
    RunState,
    commit_over,
    deletion_of,
    far_children,
    find,
    listing,
    relisting,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from standfast.keys import RecordKey
    from standfast.locks.entry import Answer
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Snapshot
    from standfast.workflows.records import Header
    from standfast.workflows.runtime import Runtime


TRIES: Final = 50
DESCENDANTS: Final = 100

SHORT_ID: Final = 100
"""The children of a run with an id of this length or less are named after it; see :func:`descendants`."""


async def descendants(scope: Scope, run: Found) -> list[Found]:
    """Return every run that a run has started, and those that they have; parents before their children."""
    found = await _named_after(scope, run)
    for each in (run, *found):
        if len(each.id) <= SHORT_ID:
            continue
        for child_id in await far_children(scope, each.id):
            try:
                child = await find(scope, child_id)
            except RunNotFoundError:
                continue  # purged already
            if child.header.parent == each.id:
                found += [child, *await descendants(scope, child)]
    return found


async def _named_after(scope: Scope, run: Found) -> list[Found]:
    """Return the descendants whose ids begin with that of a run: its id, a dot, the step."""
    root = run.header.root or run.id
    start, end = scope.key("life", f"{run.id}."), scope.key("life", f"{run.id}/")  # a slash is right after the dot
    found: list[Found] = []
    while True:
        page = await scope.scan(start, end, limit=scope.at_most(DESCENDANTS))
        names = [key.parts[-1] for key in page.records]
        headers = await scope.read(*(scope.key("run", name) for name in names)) if names else page
        for name, state in zip(names, page.records.values(), strict=True):
            record = headers.get(scope.key("run", name))
            if record is not None and (header := HEADERS.decode(record.value)).root == root:
                found.append(Found(name, header, RUN_STATES.decode(state.value), state.version))
        if page.more is None:
            return found
        start = page.more


async def end_by_force(
    runtime: Runtime, run_id: str, reason: str, *, only: Callable[[RunState], bool] | None = None
) -> RunState:
    """End a run as cancelled, whatever its code does, and everything that it has started.

    The worker that drives it loses the right to: the fence of the run's owner is gone in the same commit.

    Args:
        runtime: The engine.
        run_id: The run.
        reason: Why, in words.
        only: Tells by a run's life whether it is meant; if not it is left as it is.
    """
    run = await find(runtime.space, run_id)
    if only is not None and not only(run.state):
        return run.state
    if run.state.ticket is not None and run.state.claims == 0:  # it waits in a line, and has nothing besides
        ending = Ending("cancelled", reason, only_waiting=False)
        unstarted = await end_unstarted(runtime, run_id, run.header, run.state, run.state_version, ending)
        if unstarted is not None:
            return unstarted
        return await end_by_force(runtime, run_id, reason, only=only)
    ended = run.state if run.state.has_ended else await _end(runtime, run, reason, only)
    if not ended.has_ended:
        return ended
    await let_go(runtime, run)
    for child in await descendants(runtime.space, run):
        if not child.state.has_ended:
            await end_by_force(runtime, child.id, f"its parent was cancelled: {reason}")
    return ended


async def _end(runtime: Runtime, run: Found, reason: str, only: Callable[[RunState], bool] | None) -> RunState:
    space, keys = runtime.space, RunKeys(runtime.space, run.id)
    for _ in range(TRIES):
        state = run.state
        if state.has_ended or (only is not None and not only(state)):
            return state
        beside = [keys.own(state.owner)] if state.owner else []
        beside += [keys.timer(state.until)] if state.until is not None else []
        beside += keys.listed(state, run.header)
        seen = await space.read(keys.state, *beside)
        runtime.saw(seen.at)
        ended = structs.replace(
            state,
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
        changes: list[Change] = [Put(keys.state, RUN_STATES.encode_own(ended), run.state_version)]
        changes += [*deletion_of(seen, *beside), *listing(keys, ended, run.header)]
        # Its worker is to stop soon, another one to see that the run lets go, and its parent to look.
        over: dict[RecordKey, bytes | None] = {keys.ready: READY, **no_longer_listed(space, run)}
        if run.header.parent:
            over[RunKeys(space, run.header.parent).ready] = READY
        if not isinstance(await commit_over(space, changes, over), Conflict):
            loaded = runtime.loaded.get(run.id)
            if loaded is not None and loaded.claim is not None:
                loaded.evict()
            runtime.emit_moved(run.id, ended, 0, state, run.header)
            return ended
        run = await find(space, run.id)
    raise StoreBusyError(f"the run {run.id}", f"its life changed {TRIES} times while it was to be ended")


def no_longer_listed(scope: Scope, run: Found) -> dict[RecordKey, bytes | None]:
    """Return what is deleted when a run is quarantined no longer."""
    return (
        dict.fromkeys(RunKeys(scope, run.id).quarantined(run.header.tags)) if run.state.status == "quarantined" else {}
    )


async def let_go(runtime: Runtime, run: Found) -> None:
    """Release everything that an ended run may still hold: places in lines, and locks. Doing it twice is harmless."""
    await release_all(runtime, run.id)
    await leave_all(runtime, run.id, run.header)
    await _has_left(runtime, run.id)


async def clear_states(runtime: Runtime, run: Found) -> None:
    """Delete the states that only a run, or the runs that it has started, could see."""
    await clear_run(runtime, run.id)
    if not run.header.root:
        await clear_execution(runtime, run.id)


async def _has_left(runtime: Runtime, run_id: str) -> None:
    keys = RunKeys(runtime.space, run_id)
    for _ in range(TRIES):
        run = await find(runtime.space, run_id)
        if not run.state.leaving:
            return
        left = RUN_STATES.encode_own(structs.replace(run.state, leaving=False))
        if not isinstance(await runtime.space.commit(Put(keys.state, left, run.state_version)), Conflict):
            return


# --- runs that end before they began --------------------------------------------------------------------------------


class MovedError(Exception):
    """The run is not as it was: another process has dealt with it, or it has its turn. Caught in here."""


async def end_unstarted(
    runtime: Runtime, run_id: str, header: Header, state: RunState, version: int, ending: Ending
) -> RunState | None:
    """End a run that waits in a line, and leave its lines, in one commit; None: it is not as it was.

    With ``ending.only_waiting`` it does not end if it has its turn by now.
    """
    keys, standing = RunKeys(runtime.space, run_id), header.lines[state.admitted]
    ended = structs.replace(
        state,
        status=ending.status,
        changed_at=runtime.now(),
        until=None,
        waits_for="",
        admitted=0,
        ticket=None,
        cancel=ending.reason,
    )
    leave = LeaveRequest(standing.address, spec_of(standing), entry_id_of(run_id, standing), ticket=state.ticket)
    others = [
        LeaveRequest(each.address, spec_of(each), entry_id_of(run_id, each)) for each in header.lines[: state.admitted]
    ]
    try:
        answered = await LineEntries(runtime.lines).leave_waiting(
            leave,
            others,
            only_waiting=ending.only_waiting,
            extra_changes=_unstarted(runtime, keys, header, state, version, ended, only_waiting=ending.only_waiting),
        )
    except MovedError:
        return None
    runtime.saw(answered.sight.at)
    runtime.emit_moved(run_id, ended, 0, state, header)
    return ended


def _unstarted(
    runtime: Runtime,
    keys: RunKeys,
    header: Header,
    state: RunState,
    version: int,
    ended: RunState,
    *,
    only_waiting: bool,
) -> ExtraChanges[Answer]:
    parent = RunKeys(runtime.space, header.parent).ready if header.parent else None
    timer = None if state.until is None else keys.timer(state.until)

    def decide(answer: Answer, seen: Snapshot) -> Sequence[Change]:
        has_its_turn = only_waiting and isinstance(answer, Left) and answer.was_holding
        if has_its_turn or seen.version(keys.state) != version:
            raise MovedError
        put = Put(keys.state, RUN_STATES.encode_own(ended), version)
        changes = [put, *deletion_of(seen, keys.ready), *([] if timer is None else deletion_of(seen, timer))]
        changes += relisting(keys, header, state, ended, seen)
        if parent is not None:
            changes.append(Put(parent, READY, seen.version(parent)))
        return changes

    listed = {*keys.listed(state, header), *keys.listed(ended, header)}
    named = (keys.state, keys.ready, timer, parent, *listed)
    return ExtraChanges(tuple(key for key in named if key is not None), decide)


async def end_if_unstarted(runtime: Runtime, run_id: str, ending: Ending) -> bool:
    """End a run that waits for its turn, whatever it is to be; False: it does not wait in a line."""
    keys = RunKeys(runtime.space, run_id)
    seen = await runtime.space.read(keys.header, keys.state)
    header, record = seen.get(keys.header), seen.get(keys.state)
    if header is None or record is None:
        return False
    shown, state = HEADERS.decode(header.value), RUN_STATES.decode(record.value)
    if state.has_ended or state.owner or state.admitted >= len(shown.lines):
        return False
    return await end_unstarted(runtime, run_id, shown, state, record.version, ending) is not None
