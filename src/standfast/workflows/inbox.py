"""The inbox of a run: what was sent to it, how it is written there, and how a loaded run takes and answers it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, final

from msgspec import UNSET, Raw, Struct, UnsetType

from standfast.clock import later
from standfast.codec import Codec
from standfast.errors import RunNotFoundError, StandfastError, StoreBusyError, WorkflowTerminalError
from standfast.exits import FAILURES, failure_of
from standfast.keys import RecordKey
from standfast.stores.protocol import Check, Conflict, Delete, Put
from standfast.workflows.control import RunCancelled, Unload, next_id
from standfast.workflows.failures import Failure, describe, log_failure
from standfast.workflows.records import (
    COUNTERS,
    ITEMS,
    READY,
    RUN_STATES,
    Counter,
    HistoryEvent,
    InboxItem,
    RunKeys,
    RunState,
    state_in,
)
from standfast.workflows.values import PLAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.clock import Instant
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Record, Snapshot
    from standfast.workflows.activation import Activation


# --- A loaded run's inbox: signals that wait to be taken, and updates that wait to be answered ---------------------

PAGE: Final = 200
MOST_UNWRITTEN: Final = 40
"""How many changes a run collects before they are written though nothing needs them to be."""

ANSWER_KEPT: Final = 3_600.0
"""For how many seconds the answer to an update is kept whose sender gave it no id, and so cannot ask again."""


class Answer(Struct, frozen=True, omit_defaults=True):
    """What a run answered to an update."""

    how: Literal["accepted", "refused", "failed"]
    value: Raw | UnsetType = UNSET
    failure: Failure | None = None
    problem: str = ""


_log: Final = logging.getLogger("standfast.workflows")
ANSWERS: Final[Codec[Answer]] = Codec(Answer, what="the answer to an update")


class Handler(Struct, frozen=True):
    """What answers updates of one name."""

    answer: Callable[..., Any]
    validate: Callable[..., Any] | None


class LoadedItem(Struct, frozen=True):
    """An item of the inbox that is in memory.

    Attributes:
        place: The inbox, as runs of a chain hand theirs on, and the number in it; the smallest is the oldest.
        key: Where it lies.
        version: What its record is guarded with.
        item: What it says.
    """

    place: tuple[int, int]
    key: RecordKey
    version: int
    item: InboxItem


@final
class Inbox:
    """The inbox of one activation."""

    def __init__(self, activation: Activation) -> None:
        self._activation: Final = activation
        self._signals: Final[dict[str, deque[LoadedItem]]] = {}
        self._updates: Final[dict[tuple[int, int], LoadedItem]] = {}
        self._offered: Final[dict[str, None]] = {}  # the names of signals that have come since they were handed out
        self._next: Final[dict[int, int]] = {}
        self._fetched = False
        self.handlers: Final[dict[str, Handler]] = {}
        self.queries: Final[dict[str, Callable[..., Any]]] = {}

    async def fetch(self, sent: int | None = None) -> None:
        """Read what has come since; the first time, also what runs that went on as this one have left.

        ``sent`` says how many items were ever put into it, where that is known.
        """
        activation = self._activation
        inherited = activation.header.mail_from
        if not self._fetched:
            for age, run_id in enumerate(inherited):
                await self._fetch(age, RunKeys(activation.runtime.space, run_id))
        if sent is None or sent > self._next.get(len(inherited), 0):
            await self._fetch(len(inherited), activation.keys)
        self._fetched = True

    async def _fetch(self, age: int, keys: RunKeys) -> None:
        start, end = keys.item(self._next.get(age, 0)), keys.inbox()[1]
        while True:
            page = await self._activation.runtime.space.scan(start, end, limit=PAGE)
            for key, record in page.records.items():
                number = int(key.parts[-1])
                if number >= self._next.get(age, 0):
                    self._add(LoadedItem((age, number), key, record.version, ITEMS.decode(record.value)))
                    self._next[age] = number + 1
            if page.more is None:
                return
            start = page.more

    def _add(self, loaded: LoadedItem) -> None:
        if loaded.item.kind == "update":
            self._updates[loaded.place] = loaded
        else:
            self._signals.setdefault(loaded.item.name, deque()).append(loaded)
            self._offered[loaded.item.name] = None

    def left_in(self) -> tuple[str, ...]:
        """Return the runs in whose inboxes something may be left for the run as which this one goes on."""
        inherited = self._activation.header.mail_from
        left = (*self._updates.values(), *(each for items in self._signals.values() for each in items))
        ages = {loaded.place[0] for loaded in left} if self._fetched else range(len(inherited))
        return (*(run_id for age, run_id in enumerate(inherited) if age in ages), self._activation.keys.id)

    async def write_if_much(self) -> None:
        """Write down what was taken and answered when there is nearly as much of it as a commit takes."""
        journal = self._activation.journal
        if journal is not None and journal.is_heavy(
            self._activation.runtime.space.at_most(100) * MOST_UNWRITTEN // 100
        ):
            await self._activation.flush()

    # --- signals -------------------------------------------------------------------------------------------------

    async def find(self, name: str) -> LoadedItem | None:
        """Return the oldest signal of a name that was not taken."""
        if not self._fetched:
            await self.fetch()
        items = self._signals.get(name)
        return items[0] if items else None

    def hand_out(self) -> None:
        """End the waits whose signals are there. Each is taken out here, so that two waits do not get the same."""
        waiting = self._activation.branches.signals
        for name in self._offered:
            items, waits = self._signals[name], waiting.get(name, {})
            for wait in waits:
                if not items:
                    break
                if not wait.future.done():
                    wait.settle(items.popleft())
        self._offered.clear()

    def take(self, loaded: LoadedItem) -> Delete:
        """Take a letter out; return the change that does so in the store."""
        items = self._signals.get(loaded.item.name)
        if loaded.item.kind == "update":
            self._updates.pop(loaded.place, None)
        elif items and items[0] is loaded:  # else it was handed out, and is not among them
            items.popleft()
        return Delete(loaded.key, loaded.version)

    def give_back(self, loaded: LoadedItem) -> None:
        """Put an item back that was found for a branch that no longer wants it."""
        self._add(loaded)
        items = self._signals[loaded.item.name]
        items.rotate(1)
        if len(items) > 1 and items[0].place > items[1].place:  # others were given back before it
            self._signals[loaded.item.name] = deque(sorted(items, key=lambda each: each.place))

    # --- updates -------------------------------------------------------------------------------------------------

    def replay_update(self, event: HistoryEvent) -> None:
        """Do again what an update did to the run's variables."""
        handler = self.handlers.get(event.id.removeprefix("@"))
        if handler is None:
            self._activation.differ(f"update {event.id!r}", "no handler for it")
            return
        with contextlib.suppress(Exception):  # the caller was told when it happened
            handler.answer(*PLAIN.unpack(event.value or b"[]"))

    @property
    def has_updates(self) -> bool:
        """Whether updates have come that were not answered."""
        return bool(self._updates)

    async def answer_updates(self) -> None:
        """Answer the updates that have come, as far as there are handlers for them."""
        activation, has_answered = self._activation, False
        for loaded in tuple(self._updates.values()):
            handler = self.handlers.get(loaded.item.name)
            # Nothing that comes after the run's code has returned can change its result.
            if handler is not None and activation.branches and not activation.is_unloading:
                self._answer(loaded, handler)
                has_answered = True
                await self.write_if_much()
        journal = activation.journal
        if has_answered and journal is not None and journal.is_dirty:
            await activation.flush()

    def _answer(self, loaded: LoadedItem, handler: Handler) -> None:
        activation, item = self._activation, loaded.item
        activation.has_resumed = True
        answer, accepted = _called(handler, PLAIN.unpack(item.value or b"[]"), activation)
        if answer.failure is not None:
            run, name = activation.keys.id, item.name
            log_failure(_log, f"the update {name!r} of the run {run!r}", answer.failure, run=run, update=name)
        now = activation.runtime.now()
        until = None if item.is_named else later(now, ANSWER_KEPT)
        put = Put(activation.keys.answer(item.id), ANSWERS.encode(answer), expires_at=until)
        changes = (self.take(loaded), put)
        if accepted:
            activation.note(HistoryEvent("update", f"@{item.name}", now, item.value, link=item.trace), *changes)
            activation.check_predicates()
        else:
            activation.add_changes(*changes)


def _called(handler: Handler, args: Any, activation: Activation) -> tuple[Answer, bool]:  # noqa: ANN401 -- a list of JSON values
    if handler.validate is not None:
        try:
            handler.validate(*args)
        except FAILURES as raised:  # whatever it raises says no
            problem = failure_of(raised)
            return Answer("refused", problem=str(problem) or type(problem).__name__), False
    try:
        return Answer("accepted", Raw(PLAIN.pack(handler.answer(*args)))), True
    except FAILURES as raised:  # it is the caller's answer
        known = activation.runtime.known_with(activation.workflow.raises)
        return Answer("failed", failure=describe(failure_of(raised), known)), True


# --- news for a run in memory: what has come into its inbox, and whether what it waits for has happened ------------

MANY_CHILDREN: Final = 100
"""With more children than this a run rests after it has looked at them; see :data:`REST`."""

REST: Final = 0.000_02
"""Seconds of rest for each child that was looked at: about as long as that took."""


@final
class InboxPoll:
    """Polls the inbox whenever it is notified, one poll at a time.

    Attributes:
        is_waiting: There is news that was not looked at.
        polls: How often it has polled: branches that waited by then were told, and no others.
    """

    __slots__ = ("_activation", "_polling", "_rest", "_stopped", "is_waiting", "polls")

    def __init__(self, activation: Activation) -> None:
        self._activation: Final = activation
        self._polling: asyncio.Task[None] | None = None
        self._rest: asyncio.Future[None] | None = None
        self._stopped = self.is_waiting = False
        self.polls = 0

    @property
    def is_polling(self) -> bool:
        """Whether it is polling at the moment."""
        return self._polling is not None

    def notify(self) -> None:
        """Say that there is news."""
        activation = self._activation
        self.is_waiting = True
        if self._stopped:
            return  # its end is being written, and after that there is nothing to poll for
        if self._polling is None and not activation.is_unloading and activation.claim is not None:
            task = asyncio.get_running_loop().create_task(self._poll())
            self._polling = None if task.done() else task  # an eager task may be over by now

    def stop_at_once(self) -> bool:
        """Poll no more; False: it does at the moment, and :meth:`stop` waits for that."""
        self._stopped = True
        return self._polling is None and self._rest is None

    async def stop(self) -> None:
        """Wait until it no longer polls."""
        self._stopped = True
        if self._rest is not None:
            _end_rest(self._rest)
        while self._polling is not None:
            await asyncio.wait({self._polling})

    async def _poll(self) -> None:
        try:
            while self.is_waiting and not self._activation.is_unloading:
                self.is_waiting = False
                await self._poll_once()
                if (children := len(self._activation.branches.children)) > MANY_CHILDREN and not self._stopped:
                    await self._pause(children * REST)
        except Unload:
            return
        except StandfastError:
            self.is_waiting = True  # the next round of the worker polls again
        finally:
            self._polling = None
            self._activation.note_idleness()

    async def _pause(self, seconds: float) -> None:
        """Rest after many children were looked at: more of them end meanwhile, and are seen by one look."""
        loop = asyncio.get_running_loop()
        self._rest = loop.create_future()
        timer = loop.call_later(seconds, _end_rest, self._rest)
        try:
            await self._rest
        finally:
            timer.cancel()
            self._rest = None

    async def _poll_once(self) -> None:
        activation = self._activation
        space, keys = activation.runtime.space, activation.keys
        seen = await space.read(keys.ready, keys.state, keys.counter)
        activation.runtime.saw(seen.at)
        counter = seen.get(keys.counter)
        await activation.inbox.fetch(0 if counter is None else COUNTERS.decode(counter.value).next)
        if (record := seen.get(keys.state)) is not None and (
            reason := RUN_STATES.decode(record.value).cancel
        ) is not None:
            activation.cancel(RunCancelled(reason))
        activation.inbox.hand_out()
        if activation.branches.children:
            await poll_children(activation)
        for wait in tuple(activation.branches.polled):
            if wait.poll is not None and not wait.future.done():
                await wait.poll(wait)
        self.polls += 1
        if activation.replay.is_over and not activation.pace.is_held:
            await activation.inbox.answer_updates()
        if (version := seen.version(keys.ready)) and (claim := activation.claim) is not None:
            # The flag was for this worker: if another one is to take the run up, it is for that one.
            answer = await space.commit(Check(claim.key, claim.fence), Delete(keys.ready, version))
            if isinstance(answer, Conflict):
                if claim.key in answer.current:
                    activation.evict()
                if answer.current.get(keys.ready) is not None:
                    self.is_waiting = True


async def poll_children(activation: Activation) -> None:
    """Find out which of the children that a run waits for have ended, many in one read. Between two, others go on."""
    runtime, children = activation.runtime, tuple(activation.branches.children)
    page = runtime.space.at_most(100)
    for first in range(0, len(children), page):
        if first:
            await asyncio.sleep(0)
        some = [RunKeys(runtime.space, run_id) for run_id in children[first : first + page]]
        seen = await runtime.space.read(*(keys.state for keys in some))
        for keys in some:
            wait, state = activation.branches.children.get(keys.id), ending_in(seen, keys)
            if wait is not None and state is not None:
                wait.settle(state)


def ending_in(seen: Snapshot, keys: RunKeys) -> RunState | None:
    """Return how a child has ended; None: it has not. One that is gone was started, so an operator has deleted it."""
    record = seen.get(keys.state)
    state = (
        RunState("cancelled", "", "", seen.at, cancel="it was purged")
        if record is None
        else RUN_STATES.decode(record.value)
    )
    return state if state.has_ended else None


def _end_rest(rest: asyncio.Future[None]) -> None:
    if not rest.done():
        rest.set_result(None)


# --- answers to updates: callers that wait for them in this process share one watch of the run ---------------------

LOOK_EVERY: Final = 0.5
"""Seconds between two looks for the answers to updates, if nothing tells earlier."""


@final
class AnswerWaits:
    """Who in this engine waits for the answers of runs to updates."""

    def __init__(self, scope: Scope) -> None:
        self._scope: Final = scope
        self._waiting: Final[dict[str, dict[str, list[asyncio.Future[Answer | None]]]]] = {}
        self._listening: Final[dict[str, asyncio.Task[None]]] = {}

    async def of(self, run_id: str, update_id: str) -> Answer | None:
        """Return the answer to an update, once there is one; None if the run goes on as another one, which has it then.

        Raises:
            WorkflowTerminalError: The run has ended without an answer.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer | None] = loop.create_future()
        self._waiting.setdefault(run_id, {}).setdefault(update_id, []).append(future)
        try:
            if run_id in self._listening:
                await self._look_at(run_id, [update_id])
            else:  # which looks at everything when it has begun to listen
                listening = loop.create_task(self._listen(run_id))
                if not listening.done():  # an eager one may have failed by now
                    self._listening[run_id] = listening
            return await future
        finally:
            self._forget(run_id, update_id, future)

    def _forget(self, run_id: str, update_id: str, future: asyncio.Future[Answer | None]) -> None:
        waiting = self._waiting.get(run_id, {})
        left = [each for each in waiting.get(update_id, ()) if each is not future]
        if left:
            waiting[update_id] = left
        else:
            waiting.pop(update_id, None)
        if not waiting:
            self._waiting.pop(run_id, None)
            if (listening := self._listening.pop(run_id, None)) is not None:
                listening.cancel()

    async def _listen(self, run_id: str) -> None:
        keys, time, due = RunKeys(self._scope, run_id), asyncio.get_running_loop().time, float("-inf")
        try:
            async with self._scope.watch(self._scope.key("answer", run_id), keys.state) as watch:
                while True:
                    told = None if time() >= due else await watch.wait(due - time())
                    waiting = self._waiting.get(run_id, {})
                    if told is None or not told.complete or keys.state in told.about:
                        due = time() + LOOK_EVERY
                        await self._look_at(run_id, list(waiting))
                    else:
                        await self._look_at(run_id, [key.parts[-1] for key in told.about if key.parts[-1] in waiting])
        except StandfastError as problem:
            if self._listening.get(run_id) in {
                None,
                asyncio.current_task(),
            }:  # none: an eager task fails before it is kept
                self._listening.pop(run_id, None)  # the next caller begins anew
                for update_id in tuple(self._waiting.get(run_id, ())):
                    self._settle(run_id, update_id, problem)

    async def _look_at(self, run_id: str, update_ids: list[str]) -> None:
        keys, page = RunKeys(self._scope, run_id), self._scope.at_most(100) - 1
        for first in range(0, len(update_ids), page):
            some = {update_id: keys.answer(update_id) for update_id in update_ids[first : first + page]}
            seen = await self._scope.read(keys.state, *some.values())
            state = state_in(seen, keys)
            for update_id, key in some.items():
                if (record := seen.get(key)) is not None:
                    self._settle(run_id, update_id, ANSWERS.decode(record.value))
                elif state.continues:
                    self._settle(run_id, update_id, None)
                elif state.has_ended:
                    self._settle(run_id, update_id, WorkflowTerminalError(run_id, state.status))

    def _settle(self, run_id: str, update_id: str, answer: Answer | Exception | None) -> None:
        for future in self._waiting.get(run_id, {}).get(update_id, ()):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(copy.copy(answer))  # raised at each of them by itself
            else:
                future.set_result(answer)


# --- putting things into inboxes: those that meet in one process are written together, in the order of the calls ---

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
    trace: str = ""

    def marker(self, keys: RunKeys) -> RecordKey | None:
        """Return the key whose record says that it was sent before; None if it is not known again."""
        if not self.is_named:
            return None
        return keys.signal_seen(self.name, self.id) if self.kind == "signal" else keys.update_seen(self.id)

    def changes(self, keys: RunKeys, number: int, at: Instant) -> tuple[Change, ...]:
        """Return the changes that put it into the inbox under a number."""
        item = InboxItem(self.kind, self.name, at, self.id, Raw(self.packed), self.is_named, self.trace)
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
class InboxWriter:
    """What this process is about to put into inboxes."""

    def __init__(self, scope: Scope) -> None:
        self._scope: Final = scope
        self._queues: Final[dict[str, deque[_Waiting]]] = {}

    async def send(self, run_id: str, sending: Sending) -> Sent:
        """Put something into a run's inbox, once for each id, and make the run look."""
        waiting = _Waiting(sending, asyncio.get_running_loop().create_future())
        queue = self._queues.get(run_id)
        if queue is not None:
            queue.append(waiting)
        else:
            self._queues[run_id] = deque([waiting])
            asyncio.get_running_loop().create_task(self._serve(run_id)).add_done_callback(_look)
        return await waiting.answer

    async def _serve(self, run_id: str) -> None:
        queue = self._queues[run_id]
        try:
            most = min(MOST_TOGETHER, (self._scope.at_most(100) - 3) // 2)
            most_bytes = min(MOST_BYTES, self._scope.store.capabilities.max_commit_bytes // 2)
            while some := _cut(queue, most, most_bytes):
                await self._settle(run_id, some)
        finally:
            del self._queues[run_id]
            for left in queue:  # this was cancelled: they are not sent
                left.answer.cancel()

    async def _settle(self, run_id: str, some: list[_Waiting]) -> None:
        try:
            answers = await _put(self._scope, run_id, [each.sending for each in some])
        except Exception as problem:  # noqa: BLE001 -- it is the answer of each of them
            answers = [problem] * len(some)
        except BaseException:
            for each in some:
                each.answer.cancel()
            raise
        for each, answer in zip(some, answers, strict=True):
            if each.answer.done():
                continue
            if isinstance(answer, Sent):
                each.answer.set_result(answer)
            else:
                each.answer.set_exception(copy.copy(answer))  # raised at each of them by itself


def _cut(queue: deque[_Waiting], most: int, most_bytes: int) -> list[_Waiting]:
    """Take the next ones out, without those that have gone meanwhile."""
    some: list[_Waiting] = []
    size = 0
    while queue and len(some) < most:
        size += len(queue[0].sending.packed)
        if some and size > most_bytes:
            break
        if not (first := queue.popleft()).answer.done():
            some.append(first)
    return some


def _look(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


async def _put(scope: Scope, run_id: str, some: Sequence[Sending]) -> list[Sent | Exception]:
    """Put things into one inbox, in one commit."""
    keys = RunKeys(scope, run_id)
    markers = {marker for each in some if (marker := each.marker(keys)) is not None}
    watched = (keys.state, keys.counter, keys.ready, *markers)
    seen = await scope.read(*watched)
    records: dict[RecordKey, Record | None] = {key: seen.get(key) for key in watched}
    at = seen.at
    for tried in range(TRIES):
        fresh = _fresh(keys, some, records)
        if not fresh:
            return [Sent(run_id, is_new=False)] * len(some)
        record = records[keys.state]
        if record is None:
            raise RunNotFoundError(run_id)
        state = RUN_STATES.decode(record.value)
        if state.continues:  # the run as which it went on gets what this one has not seen itself
            following = next_id(run_id)
            sent = dict(zip(map(id, fresh), await _put(scope, following, fresh), strict=True))
            return [sent.get(id(each), Sent(following, is_new=False)) for each in some]
        if state.has_ended:
            return _answers(run_id, some, fresh, WorkflowTerminalError(run_id, state.status))
        answer = await scope.commit(*_changes(keys, fresh, records, at))
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
    new = {id(each) for each in fresh}
    return [answer if id(each) in new else Sent(run_id, is_new=False) for each in some]


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


def _changes(
    keys: RunKeys, fresh: Sequence[Sending], records: dict[RecordKey, Record | None], at: Instant
) -> list[Change]:
    counter = records[keys.counter]
    number = 0 if counter is None else COUNTERS.decode(counter.value).next
    changes: list[Change] = [
        Check(keys.state, _version(records[keys.state])),
        Put(keys.counter, COUNTERS.encode_own(Counter(number + len(fresh))), _version(counter)),
        Put(keys.ready, READY, _version(records[keys.ready])),
    ]
    for each in fresh:
        changes += each.changes(keys, number, at)
        number += 1
    return changes


def _version(record: Record | None) -> int:
    return 0 if record is None else record.version
