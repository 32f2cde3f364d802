"""What is sent to a run from outside: signals, updates, cancellations. All of it is durable when the call returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Raw, Struct, structs

from holdfast.errors import (
    InvalidWorkflowError,
    RunNotFoundError,
    StoreBusyError,
    WorkflowTerminalError,
)
from holdfast.stores.protocol import Check, Commit, Conflict, Put
from holdfast.workflows.committing import commit_over
from holdfast.workflows.records import COUNTERS, ITEMS, LIVES, READY, Counter, Item, Life, RunKeys

if TYPE_CHECKING:
    from holdfast.keys import RecordKey
    from holdfast.stores.protocol import Change, Record, Snapshot
    from holdfast.workflows.host import Host

LONGEST_SIGNAL_ID: Final = 128
TRIES: Final = 50


class Sent(Struct, frozen=True):
    """That something lies in a run's inbox. ``is_new`` is False if it did before: its id was seen already."""

    is_new: bool


def checked_signal_id(signal_id: str) -> str:
    """Return a signal's id; refuse what cannot be one."""
    if not signal_id or len(signal_id.encode("utf-8", "surrogatepass")) > LONGEST_SIGNAL_ID:
        raise InvalidWorkflowError(
            f"signal id {signal_id!r:.140}", f"it must be 1 to {LONGEST_SIGNAL_ID} bytes of UTF-8"
        )
    return signal_id


async def send(
    host: Host, run_id: str, kind: Literal["signal", "update"], name: str, packed: bytes, item_id: str | None
) -> Sent:
    """Put something into a run's inbox, once for each id, and make the run look."""
    keys = RunKeys(host.space, run_id)
    marker = keys.signal_seen(name, item_id) if item_id is not None and kind == "signal" else None
    watched = [keys.life, keys.counter, keys.ready, *([marker] if marker is not None else [])]
    seen = await host.space.read(*watched)
    for _ in range(TRIES):
        life = life_in(seen, keys)
        if life.has_ended:
            raise WorkflowTerminalError(run_id, life.status)
        if marker is not None and seen.version(marker):
            return Sent(is_new=False)
        number = _next(seen.get(keys.counter))
        item = Item(kind, name, seen.at, item_id or "", Raw(packed))
        changes: list[Change] = [
            Check(keys.life, seen.version(keys.life)),
            Put(keys.counter, COUNTERS.encode_own(Counter(number + 1)), seen.version(keys.counter)),
            Put(keys.item(number), ITEMS.encode_own(item)),
            Put(keys.ready, READY, seen.version(keys.ready)),
        ]
        if marker is not None:
            changes.append(Put(marker, READY))
        answer = await host.space.commit(*changes)
        if not isinstance(answer, Conflict):
            return Sent(is_new=True)
        seen = await host.space.read(*watched)
    raise StoreBusyError(f"the run {run_id}", f"its inbox changed {TRIES} times while something was put into it")


def _next(counter: Record | None) -> int:
    return 0 if counter is None else COUNTERS.decode(counter.value).next


def life_in(seen: Snapshot, keys: RunKeys) -> Life:
    """Return the life that a snapshot shows; refuse if there is no such run."""
    record = seen.get(keys.life)
    if record is None:
        raise RunNotFoundError(keys.id)
    return LIVES.decode(record.value)


async def change_life(
    host: Host,
    run_id: str,
    change: Any,
    *,
    over: dict[RecordKey, bytes | None] | None = None,  # noqa: ANN401 -- a function of a Life
) -> Life:
    """Change a run's life by a pure function that returns the new one, or None to leave it; return how it is then."""
    keys = RunKeys(host.space, run_id)
    seen = await host.space.read(keys.life)
    record = seen.get(keys.life)
    for _ in range(TRIES):
        if record is None:
            raise RunNotFoundError(run_id)
        life = LIVES.decode(record.value)
        changed = change(life, seen.at)
        if changed is None:
            return life
        put = Put(keys.life, LIVES.encode_own(changed), record.version)
        answer = await commit_over(host.space, (put,), over if over is not None else {keys.ready: READY})
        if isinstance(answer, Commit):
            return changed  # type: ignore[no-any-return] # the function returns a Life
        record = answer.current.get(keys.life)
    raise StoreBusyError(f"the run {run_id}", f"its life changed {TRIES} times while it was written")


async def cancel(host: Host, run_id: str, reason: str) -> Life:
    """Ask a run to stop. One that has ended is left as it is."""

    def change(life: Life, _at: object) -> Life | None:
        if life.has_ended or life.cancel is not None:
            return None
        return structs.replace(life, cancel=reason)

    return await change_life(host, run_id, change)
