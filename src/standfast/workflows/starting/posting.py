"""Putting things into inboxes: those that meet in one process are written together, in the order of the calls."""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Final, Literal, final

from msgspec import Raw, Struct

from standfast.errors import RunNotFoundError, StoreBusyError, WorkflowTerminalError
from standfast.stores.protocol import Check, Conflict, Put
from standfast.workflows.running.continuing import next_id
from standfast.workflows.storing.records import COUNTERS, ITEMS, LIVES, READY, Counter, Item, Life, RunKeys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.clock import Instant
    from standfast.keys import RecordKey
    from standfast.stores.protocol import Change, Record
    from standfast.workflows.running.host import Host

TRIES: Final = 1_000
MOST_TOGETHER: Final = 40
"""How many items one commit takes at most: each may bring a marker along, and three records come with them."""

MOST_BYTES: Final = 1_000_000
"""How many bytes one commit takes, unless a single item has more."""

PATIENCE: Final = 0.001
"""Seconds that are waited after the second refusal of a commit; ten times as long from the tenth on."""


class Sending(Struct, frozen=True):
    """Something to put into a run's inbox. An empty id: it has none, and is not known again."""

    kind: Literal["signal", "update"]
    name: str
    packed: bytes
    id: str = ""
    is_named: bool = False

    def marker(self, keys: RunKeys) -> RecordKey | None:
        """Return the key that tells whether it was sent before; None if it is not known again."""
        if not self.is_named:
            return None
        return keys.signal_seen(self.name, self.id) if self.kind == "signal" else keys.update_seen(self.id)

    def changes(self, keys: RunKeys, number: int, at: Instant) -> tuple[Change, ...]:
        """Return the changes that put it into the inbox under a number."""
        item = Item(self.kind, self.name, at, self.id, Raw(self.packed), self.is_named)
        put = Put(keys.item(number), ITEMS.encode_own(item))
        marker = self.marker(keys)
        return (put,) if marker is None else (put, Put(marker, READY))


class Sent(Struct, frozen=True):
    """That something lies in a run's inbox.

    Attributes:
        run_id: Whose: a run that has gone on as a new one hands it over to that.
        is_new: False if it lay there before: its id was seen already.
    """

    run_id: str
    is_new: bool


def first_of(keys: RunKeys, sending: Sending, at: Instant) -> tuple[Change, ...]:
    """Return the changes that put something into the inbox of a run that is about to be created by the same commit."""
    return (*sending.changes(keys, 0, at), Put(keys.counter, COUNTERS.encode_own(Counter(1))))


class _Waiting(Struct, frozen=True, eq=False):
    sending: Sending
    answer: asyncio.Future[Sent]


@final
class Posts:
    """What this process is about to put into inboxes."""

    def __init__(self, host: Host) -> None:
        self._host: Final = host
        self._queues: Final[dict[str, list[_Waiting]]] = {}

    async def send(self, run_id: str, sending: Sending) -> Sent:
        """Put something into a run's inbox, once for each id, and make the run look."""
        waiting = _Waiting(sending, asyncio.get_running_loop().create_future())
        queue = self._queues.get(run_id)
        if queue is not None:
            queue.append(waiting)
        else:
            self._queues[run_id] = [waiting]
            asyncio.get_running_loop().create_task(self._serve(run_id)).add_done_callback(_look)
        return await waiting.answer

    async def _serve(self, run_id: str) -> None:
        queue = self._queues[run_id]
        try:
            most = min(MOST_TOGETHER, (self._host.space.at_most(100) - 3) // 2)
            while some := _cut(queue, most):
                await self._settle(run_id, some)
        finally:
            del self._queues[run_id]
            for left in queue:  # this was cancelled: they are not sent
                left.answer.cancel()

    async def _settle(self, run_id: str, some: list[_Waiting]) -> None:
        try:
            answers = await _put(self._host, run_id, [each.sending for each in some])
        except Exception as problem:  # noqa: BLE001 -- it is the answer of each of them
            answers = [problem] * len(some)
        except BaseException:
            for each in some:
                each.answer.cancel()
            raise
        for each, answer in zip(some, answers, strict=True):
            _tell(each.answer, answer)


def _cut(queue: list[_Waiting], most: int) -> list[_Waiting]:
    """Take the next ones out, without those who have gone meanwhile."""
    some: list[_Waiting] = []
    size = 0
    while queue and len(some) < most:
        size += len(queue[0].sending.packed)
        if some and size > MOST_BYTES:
            break
        if not (first := queue.pop(0)).answer.done():
            some.append(first)
    return some


def _tell(future: asyncio.Future[Sent], answer: Sent | Exception) -> None:
    if future.done():
        return
    if isinstance(answer, Sent):
        future.set_result(answer)
    else:
        future.set_exception(copy.copy(answer))  # raised at each of them by itself


def _look(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


async def _put(host: Host, run_id: str, some: Sequence[Sending]) -> list[Sent | Exception]:
    """Put things into one inbox, in one commit."""
    keys = RunKeys(host.space, run_id)
    markers = {marker for each in some if (marker := each.marker(keys)) is not None}
    watched = (keys.life, keys.counter, keys.ready, *markers)
    seen = await host.space.read(*watched)
    records: dict[RecordKey, Record | None] = {key: seen.get(key) for key in watched}
    at = seen.at
    for tried in range(TRIES):
        fresh = _fresh(keys, some, records)
        if not fresh:
            return [Sent(run_id, is_new=False)] * len(some)
        life = _life(keys, records)
        if life.continues:
            return await _hand_over(host, next_id(run_id), some, fresh)
        if life.has_ended:
            return _answers(run_id, some, fresh, WorkflowTerminalError(run_id, life.status))
        answer = await host.space.commit(*_changes(keys, fresh, records, at))
        if not isinstance(answer, Conflict):
            return _answers(run_id, some, fresh, Sent(run_id, is_new=True))
        records.update({key: record for key, record in answer.current.items() if key in records})
        at = answer.at
        if tried:
            await asyncio.sleep(PATIENCE * min(tried, 10))
    raise StoreBusyError(f"the run {run_id}", f"its inbox changed {TRIES} times while something was put into it")


def _answers(
    run_id: str, some: Sequence[Sending], fresh: Sequence[Sending], answer: Sent | Exception
) -> list[Sent | Exception]:
    """Return the answers to all: those that were sent before are told so, whatever has become of the run."""
    news = {id(each) for each in fresh}
    return [answer if id(each) in news else Sent(run_id, is_new=False) for each in some]


def _fresh(keys: RunKeys, some: Sequence[Sending], records: dict[RecordKey, Record | None]) -> list[Sending]:
    """Return those that were not sent before, each id once."""
    fresh: list[Sending] = []
    known: set[RecordKey] = set()
    for each in some:
        marker = each.marker(keys)
        if marker is None:
            fresh.append(each)
        elif records[marker] is None and marker not in known:
            known.add(marker)
            fresh.append(each)
    return fresh


def _life(keys: RunKeys, records: dict[RecordKey, Record | None]) -> Life:
    record = records[keys.life]
    if record is None:
        raise RunNotFoundError(keys.id)
    return LIVES.decode(record.value)


def _changes(
    keys: RunKeys, fresh: Sequence[Sending], records: dict[RecordKey, Record | None], at: Instant
) -> list[Change]:
    counter = records[keys.counter]
    number = 0 if counter is None else COUNTERS.decode(counter.value).next
    changes: list[Change] = [
        Check(keys.life, _version(records[keys.life])),
        Put(keys.counter, COUNTERS.encode_own(Counter(number + len(fresh))), _version(counter)),
        Put(keys.ready, READY, _version(records[keys.ready])),
    ]
    for each in fresh:
        changes += each.changes(keys, number, at)
        number += 1
    return changes


def _version(record: Record | None) -> int:
    return 0 if record is None else record.version


async def _hand_over(
    host: Host, run_id: str, some: Sequence[Sending], fresh: Sequence[Sending]
) -> list[Sent | Exception]:
    """Send to the run as which this one went on what it has not seen itself."""
    sent = dict(zip(map(id, fresh), await _put(host, run_id, fresh), strict=True))
    return [sent.get(id(each), Sent(run_id, is_new=False)) for each in some]
