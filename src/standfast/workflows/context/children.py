"""Runs that a run starts and waits for."""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec

from standfast.errors import InvalidWorkflowError, RunNotFoundError, StandfastError, WorkflowAlreadyExistsError
from standfast.workflows.context.asking import ask
from standfast.workflows.running.branches import Wait
from standfast.workflows.running.control import RunCancelled, Unload
from standfast.workflows.running.endings import raise_ending, stop_of
from standfast.workflows.starting.sending import cancel
from standfast.workflows.starting.starting import LONGEST_ID, Start, start
from standfast.workflows.starting.target import check_child
from standfast.workflows.storing.failures import describe, restore
from standfast.workflows.storing.records import HEADERS, LIVES, Life, Mark, RunKeys

if TYPE_CHECKING:
    from standfast.stores.protocol import Snapshot
    from standfast.workflows.declaring.definition import Workflow
    from standfast.workflows.running.activation import Activation
    from standfast.workflows.running.branches import Branch

CHILD: Final = ("child", "child_done", "cancelled")
DEEPEST: Final = 10
"""How deep runs may be nested."""


async def child(
    activation: Activation, branch: Branch, workflow: Workflow[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:  # noqa: ANN401 -- whatever the child returns
    """Start a child run, once, and return what it returns. If this run is cancelled, so is the child, first."""
    operation = branch.next_id(workflow.name)
    child_id = id_of(activation.keys.id, operation)
    packed = workflow.signature.pack(args, kwargs)
    mark = await activation.turn(branch, CHILD, operation)
    if mark is None:
        mark = await _start(activation, branch, operation, workflow, child_id, packed)
    if mark.kind == "child" and mark.failure is None:
        mark = await _end_of(activation, branch, operation, child_id)
    return _outcome(activation, workflow, child_id, mark)


def id_of(parent: str, operation: str) -> str:
    """Return the id of the child that an operation of a run starts: always the same, and readable while it is short."""
    name = f"{parent}.{operation.replace('/', '.')}"
    if len(name.encode()) <= LONGEST_ID:
        return name
    return f"{blake2b(name.encode(), digest_size=16).hexdigest()}.{operation[-60:].replace('/', '.')}"


async def _start(
    activation: Activation, branch: Branch, operation: str, workflow: Workflow[..., Any], child_id: str, packed: bytes
) -> Mark:
    if activation.header.depth + 1 >= DEEPEST:
        raise InvalidWorkflowError(
            workflow.name, f"runs are nested at most {DEEPEST} deep; start it on its own instead"
        )
    await activation.flush(branch, operation)
    await activation.check_may_act()
    now = activation.host.now()
    try:
        await ask(activation, check_child(activation.host, workflow, activation.keys.id))
        # By an id of its own: should this process die before the mark is written, the next one starts nothing new.
        started = start(activation.host, _start_of(activation, operation, workflow, child_id, packed))
        if not (await ask(activation, started)).is_new:
            await ask(activation, _check_own(activation, operation, child_id))
    except StandfastError as refused:
        mark = Mark("child", operation, now, failure=describe(refused, activation.host.known))
    else:
        mark = Mark("child", operation, now, msgspec.Raw(msgspec.json.encode(child_id)))
    activation.note(mark)
    return mark


async def _check_own(activation: Activation, operation: str, child_id: str) -> None:
    """Refuse a run that somebody else has started with the child's id: this one would not be told of its end."""
    keys = RunKeys(activation.host.space, child_id)
    seen = await activation.host.space.read(keys.header, keys.life)
    header, life = seen.get(keys.header), seen.get(keys.life)
    if header is None or life is None:
        return  # purged at this very moment
    found = HEADERS.decode(header.value)
    if (found.parent, found.parent_step) != (activation.keys.id, operation):
        raise WorkflowAlreadyExistsError(child_id, LIVES.decode(life.value).status, "parent")


def _start_of(
    activation: Activation, operation: str, workflow: Workflow[..., Any], child_id: str, packed: bytes
) -> Start:
    header = activation.header
    return Start(
        workflow=workflow,
        packed=packed,
        run_id=child_id,
        parent=activation.keys.id,
        parent_step=operation,
        root=header.root or activation.keys.id,
        depth=header.depth + 1,
        incarnation=header.incarnation,
        drive=activation.host.has_room() and (workflow.name, workflow.version) in activation.host.workflows,
    )


async def _end_of(activation: Activation, branch: Branch, operation: str, child_id: str) -> Mark:
    try:
        mark = await activation.turn(branch, CHILD, operation)
        return mark or await _wait_for(activation, branch, operation, child_id)
    except RunCancelled as cancelled:
        await _cancel(activation, branch, operation, child_id, cancelled)
        raise


async def _cancel(
    activation: Activation, branch: Branch, operation: str, child_id: str, cancelled: RunCancelled
) -> None:
    """Cancel the child and wait for its end, so that nothing of it goes on when its parent cleans up."""
    mark = await activation.turn(branch, CHILD, operation, is_leaving=True)
    if mark is None:
        await activation.flush()
        told = cancel(activation.host, child_id, f"its parent was cancelled: {cancelled.reason}")
        with suppress(RunNotFoundError):  # it was purged
            await ask(activation, told)
        await _wait_for(activation, branch, operation, child_id)


async def _wait_for(activation: Activation, branch: Branch, operation: str, child_id: str) -> Mark:
    keys = RunKeys(activation.host.space, child_id)

    async def ended() -> Life | None:
        return ending_in(await activation.host.space.read(keys.life), keys)

    async def look(wait: Wait) -> None:
        if (life := await ended()) is not None:
            wait.settle(life)

    as_of = activation.news.looks
    life: object = await ask(activation, ended())
    if life is None:
        wait = Wait(f"the child {child_id}", None, look, as_of=as_of)
        life = await activation.wait(branch, wait)
        if branch.cancel is not None:
            activation.raise_cancel(branch, operation)
        if not isinstance(life, Life):
            raise Unload
    assert isinstance(life, Life)  # noqa: S101 -- for the type checker
    failure, code = life.failure, activation.host.workflows.get((life.workflow, life.version))
    stopped = stop_of(child_id, life.status, life.cancel, None if code is None else code.timeout)
    if stopped is not None:
        failure = describe(stopped, activation.host.known)
    mark = Mark("child_done", operation, activation.host.now(), life.result, failure)
    activation.note(mark)
    return mark


def ending_in(seen: Snapshot, keys: RunKeys) -> Life | None:
    """Return how a child has ended; None: it has not. One that is gone was started, so an operator has deleted it."""
    record = seen.get(keys.life)
    life = Life("cancelled", "", "", seen.at, cancel="it was purged") if record is None else LIVES.decode(record.value)
    return life if life.has_ended else None


def _outcome(activation: Activation, workflow: Workflow[..., Any], child_id: str, mark: Mark) -> Any:  # noqa: ANN401 -- whatever the child returned
    if mark.failure is None:
        return workflow.signature.result.unpack(mark.value or b"null")
    known = activation.host.known_with(workflow.raises)
    if mark.kind == "child":
        raise restore(mark.failure, known)
    raise_ending(child_id, "failed", mark.failure, known)
    raise Unload
