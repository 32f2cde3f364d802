"""The records of a run that is started, and finding the run that was started so before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, structs

from standfast.clock import Instant, later
from standfast.errors import IdempotencyKeyPurgedError, RunNotFoundError, WorkflowAlreadyExistsError
from standfast.stores.protocol import Put
from standfast.workflows.storing.records import HEADERS, LIVES, NO_DUE, ONCES, READY, Header, Life, Once, RunKeys

if TYPE_CHECKING:
    from standfast.stores.protocol import Change, Conflict, Record, Snapshot
    from standfast.workflows.running.host import Host
    from standfast.workflows.storing.records import Standing


class Start(Struct, frozen=True, kw_only=True):
    """A start that is asked for."""

    workflow: Any
    packed: bytes
    run_id: str
    idempotency_key: str = ""
    delay: float = 0.0
    parent: str = ""
    parent_step: str = ""
    root: str = ""
    depth: int = 0
    drive: bool = False
    schedule: str = ""
    nominal_at: Instant | None = None
    tags: tuple[str, ...] = ()
    alongside: tuple[Any, ...] = ()
    forked_from: str = ""
    chosen: bool = False
    incarnation: int = 1
    over: int = 0
    """The version of what a deleted run has left under this id; 0: nothing."""


class Started(Struct, frozen=True):
    """The run that a start came to: a new one, or one that was there."""

    run_id: str
    is_new: bool


def header_of(asked: Start, now: Instant, lines: tuple[Standing, ...] = ()) -> Header:
    """Return the header of a run that is started now."""
    timeout = asked.workflow.timeout
    return Header(
        asked.workflow.name,
        asked.workflow.version,
        msgspec.Raw(asked.packed),
        now,
        root=asked.root,
        parent=asked.parent,
        parent_step=asked.parent_step,
        depth=asked.depth,
        deadline=None if timeout is None else later(now, asked.delay + timeout),
        begins_at=later(now, asked.delay) if asked.delay else None,
        idempotency_key=asked.idempotency_key,
        schedule=asked.schedule,
        nominal_at=asked.nominal_at,
        lines=lines,
        forked_from=asked.forked_from,
        tags=asked.tags,
        incarnation=asked.incarnation,
        chosen=asked.chosen,
    )


def first_life(asked: Start, now: Instant, presence: str) -> Life:
    """Return the life of a run that is started now, by a worker that drives it or for whoever comes."""
    name, version = asked.workflow.name, asked.workflow.version
    if presence:
        return Life("running", name, version, now, owner=presence, claims=1)
    if asked.delay:
        return Life("pending", name, version, now, until=later(now, asked.delay), waits_for="the time of its start")
    return Life("pending", name, version, now, waits_for="a worker")


def creation(
    host: Host, asked: Start, now: Instant, life: Life, lines: tuple[Standing, ...] = (), *, ready: bool = True
) -> list[Change]:
    """Return the changes that create a run. They are refused if it, or its idempotency key, exists."""
    keys = RunKeys(host.space, asked.run_id)
    changes: list[Change] = [
        Put(keys.header, HEADERS.encode_own(header_of(asked, now, lines)), asked.over),
        Put(keys.life, LIVES.encode_own(life)),
    ]
    if life.until is not None:
        changes.append(Put(keys.timer(life.until), NO_DUE))
    elif not life.owner and ready:
        changes.append(Put(keys.ready, READY))
    if asked.idempotency_key:
        once = host.space.key("once", asked.idempotency_key)
        changes.append(Put(once, ONCES.encode_own(Once(asked.run_id))))
    return changes


def after_gone(asked: Start, record: Record | None) -> Start | None:
    """Return a start that begins anew where a deleted run had the same id; None if there is something else, or nothing.

    Args:
        asked: The start.
        record: The header that it has met.
    """
    header = None if record is None else HEADERS.decode(record.value)
    if record is None or header is None or not header.is_gone or record.version == asked.over:
        return None
    return structs.replace(asked, incarnation=header.incarnation + 1, over=record.version)


async def found(host: Host, asked: Start, conflict: Conflict) -> Started:
    """Find the run that a start has met: the same one, or another with its name."""
    once_key = host.space.key("once", asked.idempotency_key) if asked.idempotency_key else None
    record = None if once_key is None else conflict.current.get(once_key)
    run_id = asked.run_id
    if record is not None:
        once = ONCES.decode(record.value)
        if once.purged:
            raise IdempotencyKeyPurgedError(asked.idempotency_key, once.run)
        run_id = once.run
    await check_same(host, asked, run_id)
    return Started(run_id, is_new=False)


async def find_there(host: Host, asked: Start, conflict: Conflict) -> Started | None:
    """Find the run that a start has met; None if it was purged at this very moment, so that the start is tried again.

    Of a start that brings changes along, those may have been refused: it is for whoever made them to try again.
    """
    try:
        return await found(host, asked, conflict)
    except RunNotFoundError:
        if asked.alongside:
            raise
        return None


async def check_same(host: Host, asked: Start, run_id: str) -> None:
    """Refuse a start that has the name of another run."""
    keys = RunKeys(host.space, run_id)
    compare(asked, keys, await host.space.read(keys.header, keys.life))


def compare(asked: Start, keys: RunKeys, seen: Snapshot) -> None:
    """Refuse a start that has the name of another run, as a snapshot of it shows; refuse it too if there is none."""
    header, life = seen.get(keys.header), seen.get(keys.life)
    if header is None or life is None:
        raise RunNotFoundError(keys.id)
    difference = _difference(asked, header)
    if difference:
        raise WorkflowAlreadyExistsError(keys.id, LIVES.decode(life.value).status, difference)


def _difference(asked: Start, record: Record) -> str:
    header = HEADERS.decode(record.value)
    if header.workflow != asked.workflow.name:
        return "workflow"
    return "input" if bytes(header.input) != asked.packed else ""
