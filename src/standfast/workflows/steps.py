"""Executing a step: once, or again after it raised, and never again once it is recorded."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import msgspec
from msgspec import UNSET, Raw, Struct

from standfast.clock import MICROSECONDS, Instant, later, seconds_between
from standfast.errors import (
    DeclarationError,
    DecodeError,
    EncodeError,
    StepInterruptedError,
    StepNotRecordedError,
    StepTimeoutError,
    StoreError,
)
from standfast.events import StepRecorded, StepRetried
from standfast.exits import FAILURES, as_failure, failure_of, is_from_signal
from standfast.stores.protocol import Check, Commit, Conflict, Put
from standfast.stores.user_transactions import converse, converse_blocking, user_connection_of, user_transactions_of
from standfast.workflows.activation import Activation, insist, raise_lost
from standfast.workflows.control import Unload
from standfast.workflows.definition import CURRENT_STEP, Step
from standfast.workflows.failures import describe, restore
from standfast.workflows.journal import Taken, size_of
from standfast.workflows.records import CHUNKS, HistoryEvent, packed_chunk
from standfast.workflows.replay import OVER, Branch, Wait

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
    from concurrent.futures import Future

    from standfast.keys import RecordKey
    from standfast.log_hook import Fact
    from standfast.stores.protocol import Change, Snapshot
    from standfast.stores.user_transactions import Talk, UserConnection
    from standfast.workflows.failures import KnownErrors
    from standfast.workflows.journal import Journal
    from standfast.workflows.records import RunKeys


# --- asking the store on behalf of a run's code --------------------------------------------------------------------

T = TypeVar("T")


async def ask(activation: Activation, work: Awaitable[T]) -> T:
    """Return what the store answers. Should it fail, that is no matter of the run's code: the run is loaded again."""
    try:
        return await work
    except StoreError:
        activation.abandon()
        raise Unload from None


# --- operations that change something in the store: the change and its event are one commit -------------------------
#
# Two events are made of such an operation. The first is written together with the change, and with everything that was
# noted before it. The second is noted when the code goes on, and says only that: other branches may have gone on while
# the first was being written, and are to do so again, in the same order, when the run is replayed.

MOST_EXTRA_CHANGES: Final = 20
"""How many other changes a ride takes along; if there are more, they are written first."""

LARGEST: Final = CHUNKS.max_bytes - 4_000
"""The most bytes of an event's value: there must be room for the rest of its record."""


class JournalRefusedError(Exception):
    """A guard does not hold: nothing was written."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__(conflict)
        self.conflict = conflict


@final
class JournalCommit:
    """What lies in a run's journal, on its way into a commit that does more.

    Attributes:
        keys: Every key that it looks at or changes.
        before: When the commit must be done.
    """

    __slots__ = ("_chunks", "_guards", "_taken", "added", "before", "keys", "versions")

    def __init__(self, journal: Journal, run: RunKeys, taken: Taken, line: tuple[str, ...]) -> None:
        own, *_ = journal.guards()
        holds = {key: held for key, held in journal.holds.items() if not line or held.line != line}
        self._taken = taken
        self._guards: Final = (own, *(Check(key, held.fence) for key, held in holds.items()))
        last = taken.position + len(taken.events)
        self._chunks: Final = (run.chunk(taken.position), run.chunk(last))
        ends = [held.ends_at for held in holds.values() if held.ends_at is not None]
        self.before: Final[Instant | None] = min(ends, default=None)
        guarded = [guard.key for guard in self._guards]
        self.keys: Final = tuple(dict.fromkeys((*guarded, *self._chunks, *taken.extra_changes)))
        self.added: int | None = None
        self.versions: Mapping[RecordKey, int] = {}

    def check(self, seen: Snapshot) -> None:
        """Refuse to go on if a guard does not hold in a snapshot of all keys."""
        fixed = (*self._guards, *self._taken.extra_changes.values())
        wrong = {each.key: seen.get(each.key) for each in fixed if seen.version(each.key) != each.expected}
        if wrong or (self.before is not None and self.before <= seen.at):
            raise JournalRefusedError(Conflict(seen.at, wrong))

    def changes(self, *events: HistoryEvent) -> tuple[Change, ...]:
        """Return everything that was noted, the guards, and more events, as changes."""
        self.added = len(events)
        return (*self.others(), *self.written(*events))

    def others(self) -> tuple[Change, ...]:
        """Return everything but the events."""
        return (*self._guards, *self._taken.extra_changes.values())

    def written(self, *events: HistoryEvent) -> tuple[Change, ...]:
        """Return what was noted, and more events, as parts of the history."""
        self.added = len(events)
        both = (*self._taken.events, *events)
        if not both:
            return ()
        if size_of(both) < LARGEST // 2 or not self._taken.events or not events:
            return (Put(self._chunks[0], packed_chunk(both)),)
        return (
            Put(self._chunks[0], packed_chunk(self._taken.events)),
            Put(self._chunks[1], packed_chunk(events)),
        )


async def commit_with_journal(
    activation: Activation,
    branch: Branch,
    operation: str,
    send: Callable[[JournalCommit], Awaitable[T]],
    *,
    line: tuple[str, ...] = (),
    leaving: bool = False,
) -> T:
    """Let ``send`` commit something together with what was noted so far. If it is refused, it is sent again.

    Args:
        activation: The run.
        branch: Where the operation is.
        operation: Its id: a lock that is lost is raised there.
        send: Commits. It calls :meth:`JournalCommit.changes` if the events are part of it.
        line: The line that the commit is a step of: its own records cannot guard it.
        leaving: It is done also if a lock is lost.
    """
    journal = activation.journal
    if journal is None:
        raise Unload
    while True:
        if not leaving and branch.lost is not None:
            raise_lost(activation, branch, operation)
        await activation.check_may_act()
        conflict: Conflict | None = None
        if journal.is_heavy(min(MOST_EXTRA_CHANGES, activation.runtime.space.at_most(100) // 4)):
            await activation.flush()
        taken = await journal.begin()
        if not leaving and branch.lost is not None:  # found by another commit, so that no guard of this one would
            journal.end(taken, None, {})
            raise_lost(activation, branch, operation)
        sent = JournalCommit(journal, activation.keys, taken, line)
        try:
            return await send(sent)
        except JournalRefusedError as refused:
            sent.added = None
            conflict = refused.conflict
        except StoreError:
            sent.added = None
        except BaseException:
            sent.added = None
            raise
        finally:
            journal.end(taken, sent.added, sent.versions)
        if conflict is None:  # of unknown outcome: what was noted before is written, and the run is loaded again
            await activation.flush()  # refused, if it was written
            activation.abandon()
            raise Unload
        activation.refused(conflict)


def note_resumed(activation: Activation, operation: str, value: bytes | None = None) -> HistoryEvent:
    """Note that the code goes on here, after a ride."""
    if activation.is_unloading:
        raise Unload
    event = HistoryEvent("went_on", operation, activation.runtime.now(), UNSET if value is None else Raw(value))
    activation.note(event)
    return event


def known(answer: Any) -> Mapping[RecordKey, int]:  # noqa: ANN401 -- a Commit, a Decided, a Worked, or a Conflict
    """Return the versions that a commit has written, if it tells."""
    return getattr(answer, "versions", None) or {}


# --- A step's record in a transaction of the step's own: the effect and its record are there together, or neither
# is ---
#
# From the moment that the record is written until the step has ended, nothing else adds to the history of the run. The
# record lies at the next place of the history; so if the transaction is still being committed when its step is taken
# for failed, whatever the run writes next waits for it there, and meets it.

IDLE: Final = 10.0
"""For how many seconds a transaction may sit idle with a record in it: a worker that takes over waits for it."""


@final
class Recording(Struct, eq=False):
    """The record of one attempt of a step, if the step wants to write it itself.

    A struct, because one is made for every attempt, and hardly any is used.

    Attributes:
        is_over: The attempt has ended: it is too late to ask for it.
        is_asked: The step has asked for it.
        event: The record, once it is known to be there for good.
        result: What was recorded, as it is read back.
    """

    _activation: Activation
    _branch: Branch
    _step: Step[..., Any]
    _id: str
    _digest: str
    _taken: Taken | None = None
    _commit: JournalCommit | None = None
    _put: Put | None = None
    _noted: HistoryEvent | None = None
    _answer: Commit | Conflict | None = None
    is_over: bool = False
    is_asked: bool = False
    event: HistoryEvent | None = None
    result: Any = None

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """The loop that the run is driven on; the step may run in another thread."""
        return self._activation.loop

    # --- in the step ---------------------------------------------------------------------------------------------

    def record_with(self, connection: object, result: object) -> Awaitable[None]:
        """Write the record; over a connection that blocks it is written when this returns."""
        guest = user_connection_of(connection)
        if self.is_over or self.is_asked:
            raise self._problem("it has ended" if self.is_over else "it has called record_with before; call it once")
        packed, self.result = self._step.signature.result.pack_and_restore(result)
        if len(packed) > LARGEST:
            raise EncodeError(f"the result of {self._id} takes {len(packed):,} bytes, at most {LARGEST:,} are allowed")
        self.is_asked = True
        if not guest.blocks:
            return _Pending(functools.partial(self._record, guest, packed))
        if _has_running_loop():
            raise self._problem("the connection blocks; make the step a plain function, or use one with await")
        self._take(converse_blocking(guest, self._elsewhere(packed).result()))
        return _Pending(None)

    async def _record(self, guest: UserConnection, packed: bytes) -> None:
        is_here = asyncio.get_running_loop() is self._loop
        talk = await (self._begin(packed) if is_here else asyncio.wrap_future(self._elsewhere(packed)))
        self._take(await converse(guest, talk))

    def _elsewhere(self, packed: bytes) -> Future[Talk[Commit | Conflict]]:
        """Begin where the run is driven: the step runs in another thread."""
        begin = self._begin(packed)
        try:
            return asyncio.run_coroutine_threadsafe(begin, self._loop)
        except RuntimeError:
            begin.close()
            raise self._problem("the engine was closed") from None

    async def _begin(self, packed: bytes) -> Talk[Commit | Conflict]:
        """Take out everything that is to be written; no other task writes until :meth:`settle`."""
        activation = self._activation
        journal, space = activation.journal, activation.runtime.space
        if journal is None:
            raise self._problem("the run is not driven here")
        joining = await user_transactions_of(space.store, space.store.capabilities.backend)
        try:
            if journal.is_heavy(MOST_EXTRA_CHANGES):
                await activation.flush()
            await activation.check_may_act()
        except Unload:
            raise self._problem("the run is about to be driven elsewhere; roll back") from None
        taken = await journal.begin()
        if self.is_over:
            journal.end(taken, None, {})
            raise self._problem("it has ended")
        if self._branch.lost is not None:  # another commit found that out, and no guard of this one would
            journal.end(taken, None, {})
            raise self._problem("a lock is lost that it holds; roll back")
        self._taken, self._commit = taken, JournalCommit(journal, activation.keys, taken, ())
        event = self._noted = HistoryEvent(
            "transaction", self._id, activation.runtime.now(), msgspec.Raw(packed), digest=self._digest
        )
        changes = self._commit.changes(event)
        self._put = changes[-1] if isinstance(changes[-1], Put) else None
        return joining.write(changes, before=self._commit.before, idle=IDLE)

    def _take(self, answer: Commit | Conflict) -> None:
        self._answer = answer
        if isinstance(answer, Conflict):
            raise self._problem("another worker drives the run by now, or a lock is lost that it holds; roll back")

    def _problem(self, problem: str) -> StepNotRecordedError:
        return StepNotRecordedError(self._id, problem)

    # --- when the step has ended ---------------------------------------------------------------------------------

    async def settle(self, problem: BaseException | None) -> BaseException | None:
        """Find out whether the transaction was committed; return what the step failed with, None if it was."""
        self.is_over = True
        try:
            if await self._has_landed():
                self.event = self._noted
                return None
        finally:
            self.drop()
        if isinstance(self._answer, Conflict):
            self._activation.refused(self._answer)
        if problem is not None:
            return problem
        if self._answer is None:
            return self._problem("record_with did not come to its end; await it, and let pass what it raises")
        return self._problem("it has ended, and its transaction was not committed")

    async def _has_landed(self) -> bool:
        put = self._put
        if put is None or isinstance(self._answer, Conflict):
            return False
        activation = self._activation
        try:
            seen = await insist(activation, lambda: activation.runtime.space.read(put.key))
        except StoreError:
            activation.abandon()
            raise Unload from None
        record = seen.get(put.key)
        return record is not None and record.value == put.value

    def drop(self) -> None:
        """Let others write again."""
        self.is_over = True
        taken, self._taken = self._taken, None
        journal = self._activation.journal
        if taken is not None and journal is not None:
            versions = self._answer.versions if isinstance(self._answer, Commit) else {}
            added = self._commit.added if self.event is not None and self._commit is not None else None
            journal.end(taken, added, versions)


@final
class _Pending:
    """What ``record_with`` returns: something to await, or nothing left to do."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, None, None]:
        if self._work is not None:
            yield from self._work().__await__()


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


RECORDING: Final[ContextVar[Recording | None]] = ContextVar("standfast_recording", default=None)
"""The record of the step that is running."""


# --- what a step can find out about itself, and do for itself ------------------------------------------------------


class CurrentStep(Struct, frozen=True):
    """What a step can find out about itself, see :func:`current_step`.

    Attributes:
        run_id: The run.
        step_id: The step in it, with the branch's path.
        attempt: 1, or more after it raised.
        idempotency_key: The same each time that this step of this run is tried, and different from every other's. Give
            it to whatever the step calls, so that doing it twice has the effect of once.
        fence: Grows each time that the run is taken up: what it calls can refuse workers that were taken for dead.
    """

    run_id: str
    step_id: str
    attempt: int
    idempotency_key: str
    fence: int = 0

    def record_with(self, connection: object, result: object = None) -> Awaitable[None]:
        """Write this step's record, with its result, in a transaction of your own: effect and record are one commit.

            async def charge(order: str) -> int:
                async with pool.acquire() as connection, connection.transaction():
                    number = await connection.fetchval("INSERT INTO charges ... RETURNING id", order)
                    await sf.current_step().record_with(connection, number)
                return number

        Call it last in the transaction, commit, and return. The step has happened if and only if that transaction is
        committed, and ``result`` is what it returned, whatever happens to this process. If it is not committed, the
        step has failed, and is tried again as its ``retry`` says.

        The store is a PostgreSQL, and the connection one to its database: of asyncpg, psycopg, SQLAlchemy or Django.
        With one that is used with ``await``, await this too; with one that blocks, which belongs into a step that is a
        plain function, it is done when this returns.

        Raises:
            InvalidArgumentError: The connection is not in a transaction, or not one to the store's database.
            UnsuitableStoreError: The store is no PostgreSQL; use ``ctx.transaction`` instead.
            StepNotRecordedError: Another worker drives the run by now. Let it pass, so that you roll back.
        """
        recording = RECORDING.get()
        if recording is None:
            raise DeclarationError("record_with", "no step is running here; call it inside a step")
        return recording.record_with(connection, result)


def current_step() -> CurrentStep:
    """Return the step that is running. Outside of one it is refused."""
    found = CURRENT_STEP.get()
    if found is None:
        raise DeclarationError("current_step()", "no step is running here; call it inside a step")
    return found


def step_fields() -> dict[str, Fact]:
    """Return what log records of a step say of it; nothing outside of one."""
    found = CURRENT_STEP.get()
    if found is None:
        return {}
    return {"run": found.run_id, "step": found.step_id, "attempt": found.attempt, "fence": found.fence}


# --- running a step: once, or again after it raised, and never again once it is recorded ---------------------------

STEP: Final = ("step", "tried", "began", "cancelled", "transaction", "went_on")


class Happened(Struct, frozen=True):
    """The answer of a ``reconcile`` function: the step did happen, and this is its result."""

    result: Any = None


class DidNotHappen(Struct, frozen=True):
    """The answer of a ``reconcile`` function: the step did not happen, so it is run."""


DID_NOT_HAPPEN: Final = DidNotHappen()


@final
class StepExecution(Struct, eq=False):
    """One step of a run, from its first event to its last. A struct, because one is made for every step."""

    _activation: Activation
    _branch: Branch
    _step: Step[..., Any]
    _id: str
    _args: tuple[Any, ...]
    _kwargs: dict[str, Any]
    _digest: str
    _attempt: int = 1
    _began: bool = False
    _ran_from: Instant | None = None
    _retry_at: Instant | None = None
    _recorded: HistoryEvent | None = None

    def result(self) -> Coroutine[Any, Any, Any]:
        """Return what the step returned, by record or by running it. Await it at once."""
        return self._execute() if self._activation.is_live(self._branch) else self._replay()

    async def _replay(self) -> Any:  # noqa: ANN401 -- whatever the step returns
        activation, branch = self._activation, self._branch
        while (event := await activation.turn(branch, STEP, self._id)) is not None:
            if event.digest != self._digest and event.digest and self._digest:
                activation.arguments_differ(self._id)
            if event.kind == "step":
                return self._replayed(event)
            if event.kind == "transaction":  # which the step itself has written: go on when the code did so, or now
                if await activation.turn(branch, STEP, self._id) is None:
                    note_resumed(activation, self._id)
                return self._replayed(event)
            self._began = event.kind == "began"
            if event.kind == "tried":
                self._attempt, self._retry_at = self._attempt + 1, event.until
        return await self._execute()

    def _replayed(self, event: HistoryEvent) -> Any:  # noqa: ANN401 -- whatever the step returned
        try:
            return outcome_of(event, self._step, self._known)
        except DecodeError as problem:
            if event.failure is not None:
                raise
            self._activation.differ(f"another type of result of step {self._id!r}", f"the declared one: {problem}")
            raise Unload from None

    async def _execute(self) -> Any:  # noqa: ANN401, C901 -- whatever the step returns; one loop over its attempts
        activation, branch, options = self._activation, self._branch, self._step.options
        while True:
            if self._retry_at is not None:
                await self._wait_for_retry(self._retry_at)
            if options.semantics == "at_most_once" and (settled := await self._begin()) is not None:
                return outcome_of(settled, self._step, self._known)
            try:
                if (journal := activation.journal) is not None:
                    write = journal.flush_at_once()  # what was done before is durable before all else
                    if write is not None or branch.lost is not None:
                        await activation.flush(branch, self._id, write)
                    else:
                        activation.runtime.dirty.discard(activation)
                began = activation.runtime.clock.elapsed()
                if not activation.may_act_at_once(began):
                    await activation.check_may_act(branch)
                    began = activation.runtime.clock.elapsed()
                if branch.cancel is not None:  # it was told while that was written
                    activation.raise_cancel(branch, self._id)
                self._ran_from = began
                value, problem = await self._attempt_it()
            finally:
                branch.is_beginning = False
            if self._recorded is not None:
                return self._go_on(self._recorded, value)
            event, restored = self._record(value, problem)
            if event.failure is None:
                return restored
            if event.kind == "step":
                raise restore(event.failure, self._known)
            self._attempt, self._retry_at, self._began = self._attempt + 1, event.until, False

    def _go_on(self, event: HistoryEvent, value: Any) -> Any:  # noqa: ANN401 -- whatever was recorded
        note_resumed(self._activation, self._id)
        if self._activation.runtime.is_watched:
            self._tell(event)
        return value

    async def _wait_for_retry(self, retry_at: Instant) -> None:
        activation, branch = self._activation, self._branch
        if retry_at > activation.runtime.now():
            wait = Wait(f"attempt {self._attempt} of {self._id}", retry_at)
            if await activation.wait(branch, wait) is not OVER:
                activation.raise_cancel(branch, self._id)

    async def _begin(self) -> HistoryEvent | None:
        """Note that an at-most-once step begins; if it has begun before, return what became of it."""
        if self._began:
            return await self._reconcile()
        self._branch.is_beginning = True
        self._note(HistoryEvent("began", self._id, self._activation.runtime.now(), digest=self._digest))
        return None

    def _note(self, event: HistoryEvent) -> HistoryEvent:
        self._activation.note(event)
        return event

    async def _attempt_it(self) -> tuple[Any, BaseException | None]:
        branch, activation, step = self._branch, self._activation, self._step
        key = activation.effect_key(self._id)
        fence = 0 if activation.claim is None else activation.claim.fence
        current = CurrentStep(activation.keys.id, self._id, self._attempt, key, fence)
        recording = Recording(activation, branch, step, self._id, self._digest)
        tokens = CURRENT_STEP.set(current), RECORDING.set(recording)
        if activation.runtime.on_attempt is not None:
            activation.runtime.on_attempt(current)
        how: tuple[Any, BaseException | None]
        branch.is_in_effect, branch.step = True, self._id
        try:
            if step.is_async and step.options.timeout is None:
                how = await step.function(*self._args, **self._kwargs), None
            else:
                timeout = step.options.timeout
                how = await (self._call() if timeout is None else self._call_within(timeout)), None
        except Unload:
            recording.drop()
            raise
        except (KeyboardInterrupt, SystemExit) as problem:
            if is_from_signal(problem):
                recording.drop()
                raise
            how = None, as_failure(problem)
        except BaseException as problem:  # noqa: BLE001 -- it is how the step ended
            how = None, problem
        finally:
            branch.is_in_effect = False
            CURRENT_STEP.reset(tokens[0])
            RECORDING.reset(tokens[1])
        if how[1] is not None and activation.is_torn_down(how[1]):
            recording.drop()
            raise Unload
        if recording.is_asked:
            how = await self._settle(recording, how)
        else:
            recording.is_over = True  # a plain function may still run, in its thread
        if branch.is_interrupted:
            branch.is_interrupted = False
            await self._take_interruption(how[1])
        return how

    async def _settle(
        self, recording: Recording, how: tuple[Any, BaseException | None]
    ) -> tuple[Any, BaseException | None]:
        """Find out what became of a record that the step has written itself; if it is there, that counts."""
        if self._branch.is_interrupted:
            await self._calm_down()
        problem = await recording.settle(how[1])
        self._recorded = recording.event
        return (recording.result, None) if problem is None else (None, problem)

    async def _call_within(self, timeout: float) -> Any:  # noqa: ANN401 -- whatever the step returns; it is the step's own limit
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await self._call()
        except TimeoutError as error:
            if limit.expired():
                where = None if error.__cause__ is None else error.__cause__.__traceback__  # the line that it waited in
                raise StepTimeoutError(self._id, timeout).with_traceback(where) from None
            raise

    async def _take_interruption(self, problem: BaseException | None) -> None:
        """Raise why the step was told to stop; unless it ended all the same, and then that counts."""
        if isinstance(problem, asyncio.CancelledError):
            if self._branch.task is not None:
                self._branch.task.uncancel()
            if self._activation.is_unloading or self._branch.cancel is None:
                raise Unload
            self._activation.raise_cancel(self._branch, self._id)
        await self._calm_down()

    async def _calm_down(self) -> None:
        """Let a cancellation pass that was on its way to the step: it is not for what comes next."""
        if self._branch.task is not None:
            self._branch.task.uncancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

    async def _call(self) -> Any:  # noqa: ANN401 -- whatever the step returns
        step = self._step
        if step.is_async:
            return await step.function(*self._args, **self._kwargs)
        runtime = self._activation.runtime
        if step.options.process and (current := CURRENT_STEP.get()) is not None:
            return await runtime.processes.run(step, self._args, self._kwargs, current, self._known)
        result = await runtime.threads.run(step.function, self._args, self._kwargs)
        return await result if inspect.isawaitable(result) else result

    def _record(self, value: Any, problem: BaseException | None) -> tuple[HistoryEvent, Any]:  # noqa: ANN401 -- whatever the step returned
        """Note how the step ended; return the event, and the result as it is read back."""
        activation, restored = self._activation, None
        runtime = activation.runtime
        elapsed = runtime.clock.elapsed()
        now, packed = runtime.now_at(elapsed), b"null"
        took = 0 if self._ran_from is None else elapsed - self._ran_from  # 0: only its outcome is known
        if problem is None:
            try:
                packed, restored = self._step.signature.result.pack_and_restore(value)
            except EncodeError as refused:
                problem = refused
        if problem is not None:
            event = self._failed(problem, now, took)
        else:
            event = HistoryEvent("step", self._id, now, Raw(packed), digest=self._digest, took=took)
        activation.note(event)
        if event.kind != "tried" and (times := runtime.step_times) is not None:
            times[activation.workflow.name, self._step.name, event.failure is not None].append(took)
        elif event.kind == "tried" or runtime.is_watched:
            self._tell(event)
        return event, restored

    def _failed(self, problem: BaseException, now: Instant, took: int) -> HistoryEvent:
        failure, retry = describe(problem, self._known), self._step.options.retry
        if self._attempt < retry.attempts and isinstance(problem, retry.on) and not isinstance(problem, EncodeError):
            until = later(now, retry.wait_before(self._attempt + 1))
            return HistoryEvent("tried", self._id, now, failure=failure, digest=self._digest, until=until, took=took)
        return HistoryEvent("step", self._id, now, failure=failure, digest=self._digest, took=took)

    @property
    def _known(self) -> KnownErrors:
        return self._activation.runtime.known_with(self._step.options.raises)

    def _tell(self, event: HistoryEvent) -> None:
        activation, failure = self._activation, event.failure
        runtime, journal = activation.runtime, activation.journal
        if event.kind == "tried" and failure is not None:
            told: StepRecorded | StepRetried = StepRetried(
                at=event.at,
                run=activation.keys.id,
                step=self._id,
                attempt=self._attempt,
                error=failure.type,
                message=failure.message,
                place=failure.trace.rpartition("\n")[2],
                fence=activation.fence,
                workflow=activation.workflow.name,
                name=self._step.name,
                started_at=Instant(event.at - event.took),
                seconds=event.took / MICROSECONDS,
                position=0 if journal is None else journal.position,
                worker=activation.state.owner,
                waits=0.0 if event.until is None else max(0.0, seconds_between(event.at, event.until)),
            )
        else:
            told = StepRecorded(
                at=event.at,
                run=activation.keys.id,
                step=self._id,
                fence=activation.fence,
                failed=failure is not None,
                workflow=activation.workflow.name,
                name=self._step.name,
                attempt=self._attempt,
                started_at=Instant(event.at - event.took),
                seconds=event.took / MICROSECONDS,
                position=0 if journal is None else journal.position,
                error="" if failure is None else failure.type,
                worker=activation.state.owner,
            )
        runtime.emit(told)

    async def _reconcile(self) -> HistoryEvent | None:
        """Find out whether an interrupted step happened; None: it did not, so it is run."""
        now, key = self._activation.runtime.now(), self._activation.effect_key(self._id)
        error, answer = StepInterruptedError(self._id, key), None
        token = CURRENT_STEP.set(CurrentStep(self._activation.keys.id, self._id, self._attempt, key))
        try:
            answer = await self._ask_whether_it_happened()
        except FAILURES as raised:  # whatever it is, it is unknown whether the step happened
            error.__cause__ = failure_of(raised)
        finally:
            CURRENT_STEP.reset(token)
        if isinstance(answer, Happened):
            return self._record(answer.result, None)[0]
        if isinstance(answer, DidNotHappen):
            return None
        return self._note(
            HistoryEvent("step", self._id, now, failure=describe(error, self._known), digest=self._digest)
        )

    async def _ask_whether_it_happened(self) -> object:
        reconcile = self._step.options.reconcile
        if reconcile is None:
            return None
        if inspect.iscoroutinefunction(reconcile):
            return await reconcile(*self._args, **self._kwargs)
        answer = await self._activation.runtime.threads.run(reconcile, self._args, self._kwargs)
        return await answer if inspect.isawaitable(answer) else answer


def outcome_of(event: HistoryEvent, step: Step[..., Any], known: KnownErrors) -> Any:  # noqa: ANN401 -- whatever the step returned
    """Return what an event says that a step returned, or raise what it says that it raised."""
    if event.failure is not None:
        raise restore(event.failure, known)
    return step.signature.result.unpack(event.value or b"null")
