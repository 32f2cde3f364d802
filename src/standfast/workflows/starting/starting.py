"""Starting runs: the run is durable before its first step, and a start that is asked for twice happens once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from standfast.errors import InvalidWorkflowError, StoreBusyError
from standfast.ids import new_id
from standfast.stores.protocol import Conflict, Put
from standfast.workflows.limiting.entering import start_in_lines
from standfast.workflows.limiting.standing import standings_of
from standfast.workflows.running.activation import Activation
from standfast.workflows.running.journal import Claim
from standfast.workflows.starting.creating import (
    Start,
    Started,
    after_gone,
    check_same,
    creation,
    find_there,
    first_life,
    header_of,
)
from standfast.workflows.storing.records import OWNERSHIPS, Ownership, RunKeys

if TYPE_CHECKING:
    from standfast.workflows.running.host import Host
    from standfast.workflows.starting.target import Startable

__all__ = ["LONGEST_ID", "Start", "Started", "as_start", "check_same", "checked_id", "start"]

LONGEST_ID: Final = 240
_TEXT: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")
_NEXT: Final = re.compile(r"~[0-9]+$")
TRIES: Final = 20


def checked_id(what: str, text: str) -> str:
    """Return an id that a user has given; refuse what cannot be one."""
    is_text = isinstance(text, str) and _TEXT.fullmatch(text) is not None  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
    if not is_text or len(text.encode("utf-8", "surrogatepass")) > LONGEST_ID:
        raise InvalidWorkflowError(f"{what} {text!r:.240}", f"it must be 1 to {LONGEST_ID} bytes of printable text")
    if what == "run id" and text.startswith("@"):  # as schedules do in the timer index
        raise InvalidWorkflowError(f"{what} {text!r:.240}", "it must not begin with @")
    if what == "run id" and _NEXT.search(text):  # as those that go on as a new run
        raise InvalidWorkflowError(f"{what} {text!r:.240}", "it must not end in ~ and a number")
    return text


def as_start(
    workflow: Startable,
    packed: bytes,
    *,
    run_id: str | None,
    idempotency_key: str | None,
    delay: float,
    drive: bool,
) -> Start:
    """Return a checked start of a workflow with packed arguments."""
    if run_id is not None and idempotency_key is not None:
        raise InvalidWorkflowError("engine.start", "give an id or an idempotency_key: an id is one already")
    chosen = new_id() if run_id is None else checked_id("run id", run_id)
    key = "" if idempotency_key is None else checked_id("idempotency key", idempotency_key)
    return Start(
        workflow=workflow,
        packed=packed,
        run_id=chosen,
        idempotency_key=key,
        delay=delay,
        drive=drive,
        chosen=run_id is not None,
    )


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
        try:
            answer = await host.space.commit(*changes)
        except BaseException:
            host.dropped.add(keys.id)  # if it was written all the same, nobody here is about to load it
            raise
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
        if (anew := after_gone(asked, answer.current.get(keys.header))) is not None:
            asked = anew
        elif (there := await find_there(host, asked, answer)) is not None:
            return there
    problem = f"it could not be started in {TRIES} tries: this worker is taken for dead, or such runs come and go"
    raise StoreBusyError("a run", problem)
