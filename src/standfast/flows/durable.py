"""Durable requests: each is a run of its action's workflow, which has one step.

The run's id is the request's. The step calls the action, and writes down what came of it by itself: the request's
record with the result, and what was done to the session, in one commit that holds only while this worker drives the run
and the request has its turn. A step that is run again, because the worker died before it was marked as done, finds that
record and does nothing. So the action may be called twice if a worker dies, but its outcome counts once.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
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
from standfast.flows.call import Call, Input, name_of
from standfast.flows.calling import Calls
from standfast.flows.emitting import Journal, last_number
from standfast.flows.ending import is_cancelling, raise_cancelling
from standfast.flows.newest import in_order
from standfast.flows.outcomes import DeposedError, Outcomes
from standfast.flows.policies import Batch, Debounce
from standfast.flows.tasks import inputs_of, standings_of, task_of, tell_overlap
from standfast.flows.ticking import take_on
from standfast.flows.viewing import ended
from standfast.workflows.context.current import current_step
from standfast.workflows.declaring.definition import Semantics, Step, StepOptions, Workflow
from standfast.workflows.running.control import Unload
from standfast.workflows.running.driving import release
from standfast.workflows.starting.collecting import EVENT
from standfast.workflows.storing.failures import describe

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from standfast.errors import FlowError
    from standfast.flows.action import Action, Inputs
    from standfast.flows.arbiters.protocol import Stop, Turn
    from standfast.flows.records import RequestRecord
    from standfast.flows.request import Status
    from standfast.flows.serving import Server
    from standfast.workflows.context.context import Context
    from standfast.workflows.running.activation import Activation
    from standfast.workflows.starting.creating import Start, Started
    from standfast.workflows.storing.records import Standing

T = TypeVar("T")

PAUSE: Final = 0.2
"""Seconds before a run is handed back that cannot have its turn here."""


def workflow_of(action: Action[..., Any], server: Callable[[], Server]) -> Workflow[..., Any]:
    """Return the workflow whose runs are the durable requests of an action."""

    async def perform(ctx: Context, calls: list[Call]) -> None:
        await Performing(server(), action, ctx, calls).run()

    semantics: Semantics = "at_least_once" if action.interrupted == "retry" else "at_most_once"
    step = Step[..., Any](perform, "run", StepOptions(retry=action.retry, semantics=semantics))

    async def run(ctx: Context, call: Call | None = None) -> None:
        calls = [call] if call is not None else await _events(ctx)
        await ctx.step(step, ctx, calls)

    def standings(packed: bytes) -> tuple[Standing, ...]:
        call = msgspec.json.decode(packed, type=Input).call
        return () if call is None else standings_of(server(), task_of(action, call, ""))

    async def on_tick(asked: Start, lines: tuple[Standing, ...]) -> Started:
        return await take_on(server(), action, asked, lines)

    return Workflow(
        run,
        name=name_of(action),
        version="",
        limits=(),
        timeout=None,
        replay="warn",
        raises=(),
        standings=standings,
        on_tick=on_tick,
    )


async def _events(ctx: Context) -> list[Call]:
    """Return what was collected."""
    calls: list[Call] = []
    while (event := await ctx.wait_signal(EVENT, timeout=0, default=None)) is not None:
        calls.append(msgspec.convert(event, Call))
    return in_order(calls)


@final
class Performing:
    """The one step of a durable request, once."""

    def __init__(self, server: Server, action: Action[..., Any], ctx: Context, calls: list[Call]) -> None:
        self._server, self._action = server, action
        self._activation: Final[Activation] = ctx._activation  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- the step guards its own commit
        self._calls = calls
        self._task: Final = task_of(action, calls[-1], ctx.run_id)
        self._outcomes: Final = Outcomes(server, self._activation, self._task, calls)
        self.keys: Final = self._outcomes.keys
        self._doing: Calls | None = None

    async def run(self) -> None:
        """Call the action, and write down what came of it; nothing if that was done before.

        If the store fails meanwhile, the request does not: its run is taken up again from what is written.
        """
        try:
            problem = await self._run()
        except (StoreError, DeposedError, RequestInterruptedError):  # the last: its turn was lost; not by the action
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
                await self._check_newest()
                return await self._work(record)
        except QueueTimeoutError as lost:
            await self._lose(record, "refused", lost)
        except RequestSupersededError as lost:
            await self._lose(record, "superseded", lost)
        except RequestCancelledError as lost:
            await self._lose(record, "cancelled", lost)
        return None

    async def _check_newest(self) -> None:
        """Refuse to bring back an old state by an event that came late."""
        if by := await self._outcomes.newer():
            raise RequestSupersededError(self.keys.id, by)

    @asynccontextmanager
    async def _in_turn(self) -> AsyncGenerator[Turn | None]:
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
        server, task, attempt = self._server, self._task, self._attempt()
        last = await self._outcomes.insist(partial(last_number, server.space, self.keys))
        journal = Journal(server.space, self.keys, self._outcomes.commit, server.now, self._outcomes.kept, last)
        arrival = server.limits.chained(task).arrival if self._action.has_room_limits else task.arrival
        calls = self._doing = Calls(server, arrival, self.keys.id, journal.emit, True)  # noqa: FBT003 -- results are kept
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

    async def _fail(self, journal: Journal, record: RequestRecord, problem: BaseException) -> BaseException:
        if self._is_final(problem):
            await journal.flush()
            failure = describe(problem, self._server.known)
            await self._outcomes.finish(ended(record, "failed", self._server.now(), failure=failure), ())
        elif self._outcomes.turn is not None:
            self._outcomes.turn.keep()
        return problem

    def _attempt(self) -> int:
        return current_step().attempt + max(0, self._activation.life.claims - 1)

    async def _inputs(self) -> tuple[Inputs, ...]:
        """Return what the action is called with: the last, preceded by what it is to see besides."""
        own = self._action.read
        policy = self._action.policy
        if isinstance(policy, Batch) or (isinstance(policy, Debounce) and policy.collapse == "all"):
            return tuple(own(msgspec.json.encode(call.inputs)) for call in self._calls)
        superseded = () if self._outcomes.turn is None else self._outcomes.turn.superseded
        return (*await inputs_of(self._server.space, self._task, superseded), self._task.inputs)

    def _is_final(self, problem: BaseException) -> bool:
        """Tell whether the step is not tried again; as the engine decides it."""
        retry = self._action.retry
        again = current_step().attempt < retry.attempts and isinstance(problem, retry.on)
        return not again or isinstance(problem, EncodeError)

    async def _lose(self, record: RequestRecord, status: Status, problem: FlowError) -> None:
        """Write down why it has no turn, or has lost it. Its run has nothing more to do."""
        if isinstance(problem, RequestSupersededError):
            record = structs.replace(record, by=problem.by)
        failure, reason = describe(problem, self._server.known), getattr(problem, "reason", str(problem))
        who = getattr(problem, "cancelled_by", "")
        over = ended(record, status, self._server.now(), reason=reason, failure=failure, cancelled_by=who)
        await self._outcomes.lose(over)
