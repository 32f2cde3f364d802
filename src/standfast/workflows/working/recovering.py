"""Looking for runs that can go on, on demand: what a worker does by itself all the time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from msgspec import Struct

from standfast.clock import Instant
from standfast.errors import InvalidWorkflowError, StandfastError, WorkflowTypeNotRegisteredForRecoveryError
from standfast.stores.protocol import Delete
from standfast.workflows.storing.committing import commit_over
from standfast.workflows.storing.records import LIVES, READY, Life, RunKeys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Record
    from standfast.workflows.running.host import Host
    from standfast.workflows.working.worker import Worker

PAGE: Final = 200
MOST_SAMPLES: Final = 20

How: TypeAlias = Literal["taken", "held", "told", "left", "waiting", "ended", "failed"]


class Looked(Struct, frozen=True):
    """What became of a look at a run.

    Attributes:
        run_id: The run.
        how: ``taken``: this engine drives it now. ``held``: another one does, or a run lock holds it. ``told``: this
            engine drives none, so the others were told. ``left``: its code is not here, does not fit, or it is
            quarantined. ``waiting``: nothing is due. ``ended``: it has ended. ``failed``: it could not be looked at.
        problem: Why it was not taken up, in words: who drives it, what is not here, what it waits for, what went wrong.
    """

    run_id: str
    how: How
    problem: str = ""


class Recovered(Struct, frozen=True):
    """What a recovery has found: the unfinished runs, and those of them whose workflow is not here."""

    found: tuple[str, ...]
    left: tuple[str, ...]


async def look_at(host: Host, worker: Worker | None, run_id: str) -> Looked:
    """Take a run up now if something of it is due; the worker of this process takes it up once, whoever asks."""
    life, is_due = await _state(host, run_id)
    if life is None or life.has_ended:
        return Looked(run_id, "ended")
    if worker is None:
        return await _tell(host, run_id, life, is_due=is_due)
    if is_due:
        await worker.look_at(run_id)
    return await _outcome(host, run_id)


async def _state(host: Host, run_id: str) -> tuple[Life | None, bool]:
    keys = RunKeys(host.space, run_id)
    seen = await host.space.read(keys.life, keys.ready)
    host.saw(seen.at)
    record = seen.get(keys.life)
    if record is None:
        return None, False
    life = LIVES.decode(record.value)
    due = life.until is not None and life.until <= seen.at
    return life, due or bool(seen.version(keys.ready))


async def _tell(host: Host, run_id: str, life: Life, *, is_due: bool) -> Looked:
    if not is_due:
        return Looked(run_id, "waiting", _wait_of(life))
    await commit_over(host.space, (), {RunKeys(host.space, run_id).ready: READY})
    return Looked(run_id, "told", "this engine drives nothing; workers that do were told")


async def _outcome(host: Host, run_id: str) -> Looked:
    life, is_due = await _state(host, run_id)
    if life is None or life.has_ended:
        return Looked(run_id, "ended")
    if life.owner:
        is_own = host.worker is not None and life.owner == host.worker.presence
        return Looked(run_id, "taken") if is_own else Looked(run_id, "held", f"the worker {life.owner} drives it")
    if life.lease_awaited:
        return Looked(run_id, "held", "a run lock holds it")
    if life.status == "quarantined":
        problem = f"it is quarantined: {life.deaths} workers died with it; find out why, then retry it"
    elif (life.workflow, life.version) not in host.workflows:
        problem = f"the workflow {_type(life.workflow, life.version)!r} is not here; start a worker that has it"
    elif host.is_mismatched(run_id):
        problem = "the code here does not fit its history; see RunCodeDiffers, and bring the old code back"
    elif not is_due:
        return Looked(run_id, "waiting", _wait_of(life))
    elif not host.has_room():
        problem = "this worker has no room for another run, or is stopping; it stays due"
    else:
        problem = "another worker, or the store, was in the way just now; it stays due"
    return Looked(run_id, "left", problem)


def _wait_of(life: Life) -> str:
    return f"it waits for {life.waits_for}" if life.waits_for else "nothing of it is due"


# --- all that is due ----------------------------------------------------------------------------------------------


async def sweep(host: Host, worker: Worker | None, limit: int) -> tuple[Looked, ...]:
    """Look at what is due, the longest due first, and then at what is ready."""
    if type(limit) is not int or limit < 1:
        raise InvalidWorkflowError("sweep", f"limit is {limit!r:.100}; it must be a whole number, at least 1")
    looked: dict[str, Looked] = {}
    async for run_id in _candidates(host):
        if len(looked) == limit:
            break
        if run_id not in looked:
            looked[run_id] = await look_safely(host, worker, run_id)
    return tuple(looked.values())


async def look_safely(host: Host, worker: Worker | None, run_id: str) -> Looked:
    """Look at a run; a problem with it is part of the answer, so that it does not keep others from being looked at."""
    try:
        return await look_at(host, worker, run_id)
    except StandfastError as problem:
        return Looked(run_id, "failed", f"{type(problem).__name__}: {problem}")


async def _candidates(host: Host) -> AsyncIterator[str]:
    space = host.space
    async for record, at in _records(space, *space.key("timer").within()):
        due_at, name = record.key.parts[-2:]
        if Instant(int(due_at)) > at:
            break
        if name.startswith("@"):  # a schedule
            continue
        if not (await space.read(space.key("life", name))).records:
            await space.commit(Delete(record.key, record.version))  # of a run that is gone
            continue
        yield name
    async for record, _ in _records(space, *space.key("ready").within()):
        yield record.key.parts[-1]


async def _records(scope: Scope, start: RecordKey, end: RecordKey) -> AsyncIterator[tuple[Record, Instant]]:
    while True:
        page = await scope.scan(start, end, limit=PAGE)
        for record in page.records.values():
            yield record, page.at
        if page.more is None:
            return
        start = page.more


# --- all that is unfinished ---------------------------------------------------------------------------------------


async def recover(host: Host, *, insist: bool) -> Recovered:
    """Find the unfinished runs; refuse, or tell of each, if the code of some is not here. Nothing is resumed."""
    found: list[str] = []
    missing: dict[str, Life] = {}
    async for record, at in _records(host.space, *host.space.key("life").within()):
        host.saw(at)
        life = LIVES.decode(record.value)
        if not life.has_ended:
            found.append(record.key.parts[-1])
            if (life.workflow, life.version) not in host.workflows:
                missing[found[-1]] = life
    if missing and insist:
        raise WorkflowTypeNotRegisteredForRecoveryError(
            tuple(sorted({_type(*each) for each in host.workflows})),
            tuple(sorted({_type(life.workflow, life.version) for life in missing.values()})),
            tuple(missing)[:MOST_SAMPLES],
            len(missing),
        )
    for run_id, life in missing.items():
        host.leave_alone(run_id, life)
    return Recovered(tuple(found), tuple(missing))


def _type(name: str, version: str) -> str:
    return f"{name} {version}" if version else name
