"""Signalling a run that may have to be started first: run and signal are made by one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from msgspec import Struct, structs

from standfast.errors import (
    IdempotencyKeyPurgedError,
    InvalidWorkflowError,
    RunNotFoundError,
    StartOrSignalConflictError,
    StoreBusyError,
    WorkflowAlreadyExistsError,
    WorkflowTerminalError,
)
from standfast.workflows.operating.retention import make_room
from standfast.workflows.starting.posting import first_of
from standfast.workflows.starting.starting import start
from standfast.workflows.storing.records import LIVES, ONCES, RunKeys

if TYPE_CHECKING:
    from standfast.workflows.running.host import Host
    from standfast.workflows.starting.posting import Sending
    from standfast.workflows.starting.starting import Start

OnTerminal: TypeAlias = Literal["raise", "start_new"]
Outcome: TypeAlias = Literal["started", "signalled"]
TRIES: Final = 50


class Met(Struct, frozen=True):
    """The run that got the signal, and whether it had to be started for that."""

    run_id: str
    outcome: Outcome


def check_request(on_terminal: object, run_id: str | None, idempotency_key: str | None, signal_id: str | None) -> None:
    """Refuse what cannot work before anything is written."""
    if on_terminal not in ("raise", "start_new"):
        raise InvalidWorkflowError("on_terminal", f"{on_terminal!r:.100} is neither 'raise' nor 'start_new'")
    if (run_id is None) == (idempotency_key is None):
        raise InvalidWorkflowError("start_or_signal", "give an id or an idempotency_key: it says which run is meant")
    if on_terminal == "start_new" and (run_id is None or signal_id is None):
        problem = "on_terminal='start_new' needs an id and a signal_id, so that a call that is repeated starts nothing"
        raise InvalidWorkflowError("start_or_signal", problem)


async def start_or_signal(host: Host, asked: Start, signal: Sending, on_terminal: OnTerminal) -> Met:
    """Signal a run, and start it if it is not there. Of several who do so at once one starts it; all signals arrive."""
    for _ in range(TRIES):
        run_id = await _meant(host, asked)
        try:
            if run_id is not None:
                await _check_workflow(host, asked, run_id)
                return Met((await host.posts.send(run_id, signal)).run_id, "signalled")
            if await _is_started(host, asked, signal):
                return Met(asked.run_id, "started")
        except RunNotFoundError:
            continue  # purged at this very moment
        except WorkflowTerminalError as ended:
            if on_terminal == "raise":
                raise StartOrSignalConflictError(ended.run_id, ended.status) from None
            await make_room(host, run_id or asked.run_id)
    raise StoreBusyError(f"the run {asked.run_id}", f"others started and ended it {TRIES} times meanwhile")


async def _meant(host: Host, asked: Start) -> str | None:
    """Return the id of the run that is there; None if there is none."""
    run_id = asked.run_id
    if asked.idempotency_key:
        key = host.space.key("once", asked.idempotency_key)
        record = (await host.space.read(key)).get(key)
        if record is None:
            return None
        once = ONCES.decode(record.value)
        if once.purged:
            raise IdempotencyKeyPurgedError(asked.idempotency_key, once.run)
        run_id = once.run
    life = host.space.key("life", run_id)
    return run_id if (await host.space.read(life)).version(life) else None


async def _check_workflow(host: Host, asked: Start, run_id: str) -> None:
    keys = RunKeys(host.space, run_id)
    record = (await host.space.read(keys.life)).get(keys.life)
    life = None if record is None else LIVES.decode(record.value)
    if life is not None and life.workflow != asked.workflow.name:
        raise WorkflowAlreadyExistsError(run_id, life.status, "workflow")


async def _is_started(host: Host, asked: Start, signal: Sending) -> bool:
    """Start the run with the signal in its inbox; False if somebody else was first."""
    alongside: tuple[Any, ...] = first_of(RunKeys(host.space, asked.run_id), signal, host.now())
    try:
        started = await start(host, structs.replace(asked, alongside=(*asked.alongside, *alongside), drive=False))
    except WorkflowAlreadyExistsError:
        return False
    return started.is_new
