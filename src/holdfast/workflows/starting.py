"""Starting runs: the run is durable before its first step, and a start that is asked for twice happens once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from holdfast.clock import Instant, later
from holdfast.errors import (
    IdempotencyKeyPurgedError,
    InvalidWorkflowError,
    RunNotFoundError,
    StoreBusyError,
    WorkflowAlreadyExistsError,
)
from holdfast.ids import new_id
from holdfast.stores.protocol import Conflict, Put
from holdfast.workflows.activation import Activation
from holdfast.workflows.journal import Claim
from holdfast.workflows.lines import standings_of, start_in_lines
from holdfast.workflows.records import (
    HEADERS,
    LIVES,
    NO_DUE,
    ONCES,
    OWNERSHIPS,
    READY,
    Header,
    Life,
    Once,
    Ownership,
    RunKeys,
)

if TYPE_CHECKING:
    from holdfast.stores.protocol import Change, Record
    from holdfast.workflows.definition import Workflow
    from holdfast.workflows.host import Host
    from holdfast.workflows.records import Standing

LONGEST_ID: Final = 240
_TEXT: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")
TRIES: Final = 20


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


class Started(Struct, frozen=True):
    """The run that a start came to: a new one, or one that was there."""

    run_id: str
    is_new: bool


def checked_id(what: str, text: str) -> str:
    """Return an id that a user has given; refuse what cannot be one."""
    is_text = isinstance(text, str) and _TEXT.fullmatch(text) is not None  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
    if not is_text or len(text.encode("utf-8", "surrogatepass")) > LONGEST_ID:
        raise InvalidWorkflowError(f"{what} {text!r:.240}", f"it must be 1 to {LONGEST_ID} bytes of printable text")
    return text


def as_start(
    workflow: Workflow[..., Any],
    args: tuple[Any, ...],
    *,
    run_id: str | None,
    idempotency_key: str | None,
    delay: float,
    drive: bool,
) -> Start:
    """Return a checked start. What cannot be stored is refused here, before anything is written."""
    if run_id is not None and idempotency_key is not None:
        raise InvalidWorkflowError("engine.start", "give an id or an idempotency_key: an id is one already")
    packed = workflow.signature.pack(args, {})
    chosen = new_id() if run_id is None else checked_id("run id", run_id)
    key = "" if idempotency_key is None else checked_id("idempotency key", idempotency_key)
    return Start(workflow=workflow, packed=packed, run_id=chosen, idempotency_key=key, delay=delay, drive=drive)


async def start(host: Host, asked: Start) -> Started:
    """Start a run, or find the one that was started so before."""
    standings = standings_of(asked.workflow, asked.packed)
    if standings:
        return await start_in_lines(host, asked, standings)
    for _ in range(TRIES):
        worker = await host.attend() if asked.drive and not asked.delay else None
        now = host.now()
        life = first_life(asked, now, worker.presence if worker is not None else "")
        keys = RunKeys(host.space, asked.run_id)
        changes = [*creation(host, asked, now, life), *asked.alongside]
        own = keys.own("" if worker is None else worker.presence)
        if worker is not None:
            changes += worker.guard, Put(own, OWNERSHIPS.encode_own(Ownership(keys.id, now)))
        answer = await host.space.commit(*changes)
        host.saw(answer.at)
        if not isinstance(answer, Conflict):
            host.emit_moved(keys.id, life, 0, now)
            if worker is not None:
                right = Claim(own, answer.versions[own], worker.presence, answer.versions[keys.life], is_first=True)
                header = header_of(asked, now)
                host.take(Activation(host, keys, asked.workflow, header, life, right, ()))
            return Started(asked.run_id, is_new=True)
        if worker is not None and worker.guard.key in answer.current:
            host.lost_presence()
            continue
        return await _found(host, asked, answer)
    raise StoreBusyError("a run", f"it could not be started in {TRIES} tries, because this worker is taken for dead")


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
        idempotency_key=asked.idempotency_key,
        schedule=asked.schedule,
        nominal_at=asked.nominal_at,
        lines=lines,
        forked_from=asked.forked_from,
        tags=asked.tags,
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
        Put(keys.header, HEADERS.encode_own(header_of(asked, now, lines))),
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


async def _found(host: Host, asked: Start, conflict: Conflict) -> Started:
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


async def check_same(host: Host, asked: Start, run_id: str) -> None:
    """Refuse a start that has the name of another run."""
    keys = RunKeys(host.space, run_id)
    seen = await host.space.read(keys.header, keys.life)
    header, life = seen.get(keys.header), seen.get(keys.life)
    if header is None or life is None:
        raise RunNotFoundError(run_id)
    difference = _difference(asked, header)
    if difference:
        raise WorkflowAlreadyExistsError(run_id, LIVES.decode(life.value).status, difference)


def _difference(asked: Start, record: Record) -> str:
    header = HEADERS.decode(record.value)
    if header.workflow != asked.workflow.name:
        return "workflow"
    return "input" if bytes(header.input) != asked.packed else ""
