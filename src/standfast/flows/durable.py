"""Durable requests: each is a run of its action's workflow, which has one step.

The run's id is the request's. The step calls the action, and writes down what came of it by itself: the request's
record with the result, and what was done to the session, in one commit that holds only while this worker drives the run
and the request has its turn. A step that is run again, because the worker died before it was marked as done, finds that
record and does nothing. So the action may be called twice if a worker dies, but its outcome counts once.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import msgspec
from msgspec import structs

from standfast.errors import (
    ArbiterUnavailableError,
    EncodeError,
    QueueTimeoutError,
    RequestCancelledError,
    RequestInterruptedError,
    RequestSupersededError,
    SessionStateError,
    StoreError,
)
from standfast.flows.collect import in_order, newest_key, newest_put, run_with_newer
from standfast.flows.events import RESTARTED, EventJournal, last_number
from standfast.flows.flow import workflow_name
from standfast.flows.idempotency import kept_until_end, place_of
from standfast.flows.inline import is_cancelling, raise_cancelling
from standfast.flows.records import REQUESTS, RequestKeys, RunInput, StoredCall, ended, session_key
from standfast.flows.schedules import take_on
from standfast.flows.storage import WeighedChanges
from standfast.flows.task import DispatcherBackend, inputs_of, session_put, standings_of, task_of, tell_overlap
from standfast.locks.entry import ExtraChanges
from standfast.policies import Batch, Debounce
from standfast.stores.protocol import Check, Delete
from standfast.workflows.activation import insist
from standfast.workflows.control import Unload
from standfast.workflows.debounce import EVENT
from standfast.workflows.definition import Semantics, Step, StepOptions, Workflow
from standfast.workflows.execution import release
from standfast.workflows.failures import describe
from standfast.workflows.steps import current_step

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from standfast.errors import FlowError
    from standfast.flows.arbiter.protocol import RequestTurn, Stop
    from standfast.flows.flow import Action, Inputs
    from standfast.flows.records import RequestRecord
    from standfast.flows.request import Status
    from standfast.flows.server import RequestServer
    from standfast.flows.session import Operation
    from standfast.flows.task import Task
    from standfast.keys import RecordKey
    from standfast.stores.protocol import Change, Snapshot
    from standfast.workflows.activation import Activation
    from standfast.workflows.context import Context
    from standfast.workflows.records import Standing, Start, Started


# --- what a durable request writes: nothing of it holds unless this worker drives its run, and it has its turn -----
#
# Its outcome is one commit: the record with the result, what was done to the session, its idempotency key, and that it
# counts no longer as unfinished.

T = TypeVar("T")

KEYS_AT_ONCE: Final = 50
"""How many idempotency keys of a burst are changed in one commit."""


class RunReclaimedError(Exception):
    """Another worker drives the run by now. Only raised and caught in durable requests."""


@final
class DurableCommits:
    """The commits of one durable request.

    Args:
        server: Where its step runs.
        activation: Its run.
        task: The request.
        calls: What it stands for: more than one if they were collected; the last is its own.

    Attributes:
        keys: Where its records lie.
        turn: Its turn, once it has it.
    """

    def __init__(self, server: RequestServer, activation: Activation, task: Task, calls: Sequence[StoredCall]) -> None:
        self._server, self._activation, self._calls, self._action = server, activation, calls, task.action
        self._last: Final = calls[-1]
        self._newest: Final = newest_key(server.space, task.action, self._last)
        self.keys: Final = RequestKeys(server.space, self._last.tenant, task.id)
        self.turn: RequestTurn | None = None

    async def insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the store, and again if it fails, as long as this process is taken for alive."""
        try:
            return await insist(self._activation, ask)
        except StoreError:
            if self.turn is not None:
                self.turn.keep()  # the step is to come again
            raise

    async def record(self) -> RequestRecord | None:
        """Return what is written of the request, if it is still known."""
        found = (await self._server.space.read(self.keys.record)).get(self.keys.record)
        return None if found is None else REQUESTS.decode(found.value)

    async def newer(self) -> str:
        """Return the run of a newer event than this one's, if there was one; empty if not."""
        if self._newest is None:
            return ""
        by = await self.insist(partial(run_with_newer, self._server.space, self._newest, self._last.at))
        return by if by and by != self.keys.id else ""

    # --- commits -------------------------------------------------------------------------------------------------

    async def commit(self, extra_changes: ExtraChanges[int]) -> Mapping[RecordKey, int]:
        """Write something on the way."""
        guarded = self._guarded(extra_changes)
        return await (self._server.update(guarded) if self.turn is None else self.turn.update(guarded))

    async def finish(self, record: RequestRecord, operations: tuple[Operation, ...]) -> None:
        """Write down how it ended, in the commit that ends its turn."""
        weighed, turn = WeighedChanges(self._outcome(record, operations)), self.turn
        extra_changes = self._guarded(weighed.extra_changes)
        await self.insist(partial(self._server.update if turn is None else turn.finish, extra_changes))
        self._tell(record)
        self.kept(weighed.grown)
        if len(self._calls) > 1:
            await self._let_keys_go(record.keep)

    def kept(self, size: int) -> None:
        """Count bytes that are kept of its tenant."""
        self._server.tenants.storage.add(self.keys.tenant, size)

    async def lose(self, record: RequestRecord) -> None:
        """Write down how it ended that has no turn, or has lost it."""
        await self.insist(partial(self._server.update, self._guarded(self._outcome(record, ()))))
        self._tell(record)

    def _tell(self, record: RequestRecord) -> None:
        if self._server.tells:
            self._server.tell_ended(self.keys.id, self._action, record)

    async def _let_keys_go(self, keep: float) -> None:
        """Let the idempotency keys of the others of a burst go when this request is forgotten; else they go later."""
        space = self._server.space
        keys = [place_of(space, call.arrival) for call in self._calls[:-1] if call.idempotency_key]
        most = space.at_most(KEYS_AT_ONCE)
        with suppress(StoreError):
            for start in range(0, len(keys), most):
                await self._server.update(_ending(tuple(keys[start : start + most]), self.keys.id, keep))

    def _guarded(self, extra_changes: ExtraChanges[int]) -> ExtraChanges[int]:
        """Let changes happen only while this worker drives the run."""
        claim = self._activation.claim
        if claim is None:
            raise RunReclaimedError

        def decide(position: int, seen: Snapshot) -> Sequence[Change]:
            if seen.version(claim.key) != claim.fence:
                raise RunReclaimedError
            changes = extra_changes.decide(position, seen)
            return (*changes, Check(claim.key, claim.fence)) if changes else ()

        return ExtraChanges((*extra_changes.keys, claim.key), decide)

    def _outcome(self, record: RequestRecord, operations: tuple[Operation, ...]) -> ExtraChanges[int]:
        space, keys, kept = self._server.space, self.keys, self._server.tenants.limits.session_kept
        session = session_key(space, self._last.tenant, self._last.session)
        claim = (place_of(space, self._last.arrival),) if self._last.idempotency_key else ()
        newest = self._newest if record.status == "completed" else None

        def decide(_: int, seen: Snapshot) -> Sequence[Change]:
            found = seen.get(keys.record)
            if found is None or (there := REQUESTS.decode(found.value)).has_ended:
                return ()
            told = structs.replace(record, cancelled_by=record.cancelled_by or there.cancelled_by)
            over = told if record.status == "cancelled" else record
            changes: list[Change] = keys.end(over, found.version, seen)
            for key in claim:
                changes += kept_until_end(key, keys.id, record.keep, seen)
            if version := seen.version(keys.unfinished):
                changes.append(Delete(keys.unfinished, version))
            changes += [session_put(session, operations, seen, kept)] if operations else []
            return changes if newest is None else [*changes, newest_put(newest, self._last.at, keys.id, seen)]

        named = (*keys.ending(record), keys.unfinished, *claim, session if operations else None, newest)
        return ExtraChanges(tuple(key for key in named if key is not None), decide)


def _ending(keys: tuple[RecordKey, ...], request_id: str, keep: float) -> ExtraChanges[int]:
    def decide(_: int, seen: Snapshot) -> Sequence[Change]:
        return [put for key in keys for put in kept_until_end(key, request_id, keep, seen)]

    return ExtraChanges(keys, decide)


# --- durable requests: each is a run of its action's workflow, which has one step ----------------------------------

PAUSE: Final = 0.2
"""Seconds before a run is handed back that cannot have its turn here."""


def workflow_of(action: Action[..., Any], server: Callable[[], RequestServer]) -> Workflow[..., Any]:
    """Return the workflow whose runs are the durable requests of an action."""

    async def execute(ctx: Context, calls: list[StoredCall]) -> None:
        await DurableExecution(server(), action, ctx, calls).run()

    semantics: Semantics = "at_least_once" if action.interrupted == "retry" else "at_most_once"
    step = Step[..., Any](execute, "run", StepOptions(retry=action.retry, semantics=semantics))

    async def run(ctx: Context, call: StoredCall | None = None) -> None:
        calls = [] if call is None else [call]
        if call is None:  # it is what was collected
            while (event := await ctx.wait_signal(EVENT, timeout=0, default=None)) is not None:
                calls.append(msgspec.convert(event, StoredCall))
            calls = in_order(calls)
        await ctx.step(step, ctx, calls)

    def standings(packed: bytes) -> tuple[Standing, ...]:
        call = msgspec.json.decode(packed, type=RunInput).call
        return () if call is None else standings_of(server(), task_of(action, call, ""))

    async def on_tick(asked: Start, lines: tuple[Standing, ...]) -> Started:
        return await take_on(server(), action, asked, lines)

    return Workflow(
        run,
        name=workflow_name(action),
        version="",
        limits=(),
        timeout=None,
        replay="warn",
        raises=(),
        standings=standings,
        on_tick=on_tick,
    )


@final
class DurableExecution:
    """The one step of a durable request, once."""

    def __init__(self, server: RequestServer, action: Action[..., Any], ctx: Context, calls: list[StoredCall]) -> None:
        self._server, self._action = server, action
        self._activation: Final[Activation] = ctx._activation  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- the step guards its own commit
        self._calls = calls
        self._task: Final = task_of(action, calls[-1], ctx.run_id)
        self._outcomes: Final = DurableCommits(server, self._activation, self._task, calls)
        self.keys: Final = self._outcomes.keys
        self._doing: DispatcherBackend | None = None

    async def run(self) -> None:
        """Call the action, and write down what came of it; nothing if that was done before.

        If the store fails meanwhile, the request does not: its run is taken up again from what is written.
        """
        try:
            problem = await self._run()
        except (StoreError, RunReclaimedError, RequestInterruptedError):  # the last: its turn was lost
            self._activation.abandon()
            raise Unload from None
        except ArbiterUnavailableError:  # another server arbitrates by now, or this one when it has found its way back
            await asyncio.sleep(PAUSE)
            await release(self._activation, "the server that arbitrates it")
            raise Unload from None
        if problem is not None:
            raise problem

    async def _run(self) -> BaseException | None:
        record = await self._outcomes.insist(self._outcomes.record)
        if record is None or record.has_ended:
            self._server.arbiter.forget(self.keys.id)
            return None
        try:
            async with self._in_turn() as turn:
                self._outcomes.turn = turn
                if by := await self._outcomes.newer():  # an event that came late must not bring back an old state
                    raise RequestSupersededError(self.keys.id, by)  # noqa: TRY301 -- it ends as one that is superseded
                return await self._work(record)
        except QueueTimeoutError as lost:
            await self._lose(record, "refused", lost)
        except RequestSupersededError as lost:
            await self._lose(record, "superseded", lost)
        except RequestCancelledError as lost:
            await self._lose(record, "cancelled", lost)
        return None

    @asynccontextmanager
    async def _in_turn(self) -> AsyncGenerator[RequestTurn | None]:
        if self._task.address is None:
            async with self._with_room():
                yield None
            return
        async with self._server.arbiter.inside(self._task.ask(on_stop=self._told_to_stop)) as turn, self._with_room():
            yield turn

    @asynccontextmanager
    async def _with_room(self) -> AsyncGenerator[None]:
        """Have room at the limits of the action. In the store the run has it; in memory its step waits for it."""
        if self._server.arbiter.is_shared or not self._action.has_room_limits:
            yield
            return
        room = self._server.limits.room_for(self._task, durable=True)
        try:
            await room.wait()
            yield
        finally:
            room.give_back()

    def _told_to_stop(self, why: Stop) -> None:
        if self._doing is not None:
            self._doing.stopping = why.reason or f"the request {why.by!r} takes its place"

    async def _work(self, record: RequestRecord) -> BaseException | None:
        """Call the action and write down what came of it; return what it raised, if it is to be raised."""
        server, task = self._server, self._task
        attempt = current_step().attempt + max(0, self._activation.state.claims - 1)
        last = await self._outcomes.insist(partial(last_number, server.space, self.keys))
        journal = EventJournal(server.space, self.keys, self._outcomes.commit, server.now, self._outcomes.kept, last)
        if last:
            journal.emit(RESTARTED, {"attempt": attempt})
        arrival = server.limits.chained(task).arrival if self._action.has_room_limits else task.arrival
        calls = self._doing = DispatcherBackend(server, arrival, self.keys.id, journal.emit, True)  # noqa: FBT003 -- results are kept
        began = structs.replace(record, started_at=server.now(), attempt=attempt)
        began = task.succeeding(began, self._outcomes.turn)
        if began.overlap:
            tell_overlap(server, task, began)
        inputs = await self._outcomes.insist(self._inputs)
        try:
            value = await calls.run(self._action, inputs, address=task.address, attempt=attempt)
            packed = self._action.result.pack(value)
        except (KeyboardInterrupt, Unload):
            raise  # nothing that the action did; its run is taken up again
        except BaseException as problem:  # noqa: BLE001 -- whatever the action raises is how it ended
            if is_cancelling(problem):
                await journal.close()
            raise_cancelling(problem)
            return await self._fail(journal, began, problem)
        await journal.flush()
        try:
            await self._outcomes.finish(ended(began, "completed", server.now(), result=packed), calls.operations)
        except SessionStateError as problem:
            return await self._fail(journal, began, problem)
        return None

    async def _fail(self, journal: EventJournal, record: RequestRecord, problem: BaseException) -> BaseException:
        retry = self._action.retry
        again = current_step().attempt < retry.attempts and isinstance(problem, retry.on)  # as the engine decides it
        if not again or isinstance(problem, EncodeError):
            await journal.flush()
            failure = describe(problem, self._server.known)
            await self._outcomes.finish(ended(record, "failed", self._server.now(), failure=failure), ())
            return problem
        await journal.close()  # the next attempt goes on after the last event of this one
        if self._outcomes.turn is not None:
            self._outcomes.turn.keep()
        return problem

    async def _inputs(self) -> tuple[Inputs, ...]:
        """Return what the action is called with: the last, preceded by what it is to see besides."""
        own = self._action.read
        policy = self._action.policy
        if isinstance(policy, Batch) or (isinstance(policy, Debounce) and policy.collapse == "all"):
            return tuple(own(msgspec.json.encode(call.inputs)) for call in self._calls)
        superseded = () if self._outcomes.turn is None else self._outcomes.turn.superseded
        return (*await inputs_of(self._server.space, self._task, superseded), self._task.inputs)

    async def _lose(self, record: RequestRecord, status: Status, problem: FlowError) -> None:
        """Write down why it has no turn, or has lost it. Its run has nothing more to do."""
        if isinstance(problem, RequestSupersededError):
            record = structs.replace(record, by=problem.by)
        failure, reason = describe(problem, self._server.known), getattr(problem, "reason", str(problem))
        who = getattr(problem, "cancelled_by", "")
        over = ended(record, status, self._server.now(), reason=reason, failure=failure, cancelled_by=who)
        await self._outcomes.lose(over)
