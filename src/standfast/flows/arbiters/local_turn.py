"""A place in a line in memory: waiting for the turn, having it, and giving it back exactly once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, final

from msgspec import Struct

from standfast.clock import Instant
from standfast.errors import ArbiterUnavailableError, QueueTimeoutError, StandfastError, StoreError
from standfast.flows.arbiters.body import Body, ending_of, is_cancellation, reason_of, this_body
from standfast.flows.arbiters.protocol import Ask, Stop, Superseded, Who

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from standfast.flows.arbiters.local import LocalArbiter  # noqa: TC004 -- none of this is ever read from data
    from standfast.flows.arbiters.protocol import Beside
    from standfast.keys import RecordKey


@final
class LocalTurn(Struct, eq=False):
    """One place. It is in the line from :meth:`~LocalArbiter.enter` to :meth:`~LocalArbiter.leave`."""

    _arbiter: LocalArbiter
    ask: Ask
    body: Body | None = None
    since: Instant = Instant(0)
    position: int = 0
    superseded: tuple[Superseded, ...] = ()
    replaced: tuple[LocalTurn, ...] = ()
    stop: Stop | None = None
    problem: StandfastError | None = None
    finishing: asyncio.Task[None] | None = None
    is_at_front: bool = False
    is_durable: bool = False
    is_back: bool = False
    has_left: bool = False
    is_lost: bool = False
    is_to_stay: bool = False
    coming: asyncio.Future[None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _deadline: float | None = None

    @property
    def action(self) -> str:
        """Flow and action."""
        return self.ask.action

    @property
    def who(self) -> Who:
        """What others are told of it."""
        return Who(self.ask.id, self.ask.action, self.since, self.is_durable)

    # --- its place in the line -----------------------------------------------------------------------------------

    def begin(self, at: Instant) -> None:
        """Have the turn from now on."""
        self.is_at_front, self.since, self.position = True, at, 0
        self._settle()

    def wait(self, position: int, at: Instant, budget: float | None) -> None:
        """Wait from now on, for so many seconds."""
        loop = asyncio.get_running_loop()
        self.position, self.since = position, at
        self.coming = loop.create_future()
        if budget is not None:
            self._deadline = loop.time() + budget
            self._timer = loop.call_at(self._deadline, self._is_late)

    def _is_late(self) -> None:
        if not self.is_at_front:
            self._give_up(self._late())

    def _late(self) -> QueueTimeoutError:
        holder = self._arbiter.holder_of(self.ask.address)
        return QueueTimeoutError(self.ask.label, self.ask.manner.budget or 0.0, *holder)

    def _give_up(self, problem: StandfastError) -> None:
        """Leave the line without having had the turn."""
        self.is_lost, self.problem = True, problem
        self._arbiter.leave(self)
        self._settle()

    def _settle(self) -> None:
        if self.coming is not None and not self.coming.done():
            self.coming.set_result(None)

    async def come(self) -> None:
        """Wait until it has its turn, or raise why it gets none. Whoever does not wait to the end has to leave."""
        if self.coming is not None:
            try:
                await self.coming
            finally:
                if self._timer is not None:
                    self._timer.cancel()
            if self._deadline is not None and self._deadline <= asyncio.get_running_loop().time():
                raise self.problem or self._late()
        self.check()

    # --- being stopped -------------------------------------------------------------------------------------------

    def ask_to_stop(self, stop: Stop) -> None:
        """Hear that it is to stop: one that waits leaves the line at once, one that runs is cancelled."""
        if self.stop is not None or self.has_left or self.finishing is not None:
            return
        self.stop = stop
        if self.ask.on_stop is not None:
            self.ask.on_stop(stop)
        self.is_lost = True
        if not self.is_at_front or self.body is None:
            self._arbiter.leave(self)
        if not self.is_durable or not self._arbiter.stop_run(self, reason_of(stop)):
            self.wake()

    def wake(self) -> None:
        """Let its task find out that it is to stop. A run's step that has not come yet finds out when it does."""
        self._settle()
        if self.is_at_front and self.body is not None:
            self.body.cancel()

    def revoke(self) -> bool:
        """Lose the place at once; tell whether it was there. What is being committed by now is not undone."""
        if self.has_left or self.finishing is not None:
            return False
        self.is_lost = True
        self._arbiter.leave(self)
        self._settle()
        if self.body is not None:
            self.body.cancel()
        return True

    def lose(self, problem: StandfastError) -> None:
        """Hear that this process may no longer admit anybody. One that runs keeps its place until it has ended."""
        if not self.is_at_front or self.body is None:
            self._give_up(problem)
        elif self.finishing is None:
            self.is_lost = True
            self.problem = problem if self.is_durable else None  # its run goes on with whoever serves then
            self.body.cancel()

    def check(self) -> None:
        """Raise if it must commit nothing any more."""
        if self.is_lost or self.has_left:
            raise self.problem or ending_of(self.ask.id, self.stop)

    # --- committing ----------------------------------------------------------------------------------------------

    async def update(self, beside: Beside) -> Mapping[RecordKey, int]:
        """Commit changes while it has its turn."""
        self.check()
        return await self._commit(beside)

    async def finish(self, beside: Beside | None = None) -> None:
        """Commit final changes, and leave the line."""
        self.check()
        if self.body is not None:
            self.body.spare()
        if beside is None:
            self._arbiter.leave(self)
            return
        self.finishing = self._arbiter.own(self._finish(beside))
        await asyncio.shield(self.finishing)

    async def _finish(self, beside: Beside) -> None:
        await self._commit(beside)
        self._arbiter.leave(self)

    async def _commit(self, beside: Beside) -> Mapping[RecordKey, int]:
        try:
            return (await self._arbiter.commit(beside, 0, self)).versions
        except ArbiterUnavailableError as deposed:
            self.is_lost = True
            if self.is_durable and self.stop is None:
                raise
            raise ending_of(self.ask.id, self.stop) from deposed

    def keep(self) -> None:
        """Have the place kept when the block is left: the step of its run is to come again."""
        self.is_to_stay = self.is_durable

    def leave(self) -> None:
        """Leave the line: at once, or when what it is committing is committed, or not."""
        if self.is_to_stay and not self.is_lost:
            self.is_to_stay, self.body = False, None
            self._arbiter.keep(self)
        elif self.finishing is None or self.finishing.done():
            self._arbiter.leave(self)
        else:
            self.finishing.add_done_callback(self._leave_after)

    def _leave_after(self, finishing: asyncio.Task[None]) -> None:
        if not finishing.cancelled():
            finishing.exception()  # nobody is left to hear of it
        self._arbiter.leave(self)


@final
class LocalHolding(Struct, eq=False):
    """A turn to be had for the length of an ``async with`` block."""

    _arbiter: LocalArbiter
    _ask: Ask
    _is_durable: bool = False
    _turn: LocalTurn | None = None

    async def __aenter__(self) -> LocalTurn:
        arbiter, ask = self._arbiter, self._ask
        turn = self._turn = arbiter.kept(ask) if self._is_durable else arbiter.enter(ask, ask.manner)
        body = turn.body = this_body()
        try:
            if ask.beside is not None and not self._is_durable:
                await arbiter.commit(ask.beside, turn.position, turn)
            if turn.replaced:
                arbiter.supersede(turn)
            if not turn.is_at_front and ask.on_waiting is not None:
                ask.on_waiting(turn.position)
            if turn.coming is not None or turn.is_lost:
                await turn.come()
        except BaseException as error:
            arbiter.leave(turn)
            was_stopped = body.was_cancelled and await body.take_back(error) is None
            if was_stopped and isinstance(error, asyncio.CancelledError):
                raise (turn.problem or ending_of(ask.id, turn.stop)) from None
            if isinstance(error, StoreError):
                raise ArbiterUnavailableError(str(error)) from error
            raise
        return turn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        turn = self._turn
        if turn is None or turn.body is None:
            return
        if error is None and turn.has_left and not turn.is_lost and not turn.body.was_cancelled:
            return  # it has finished, and nobody wanted it to stop: nearly all end like this
        by_us = turn.body.was_cancelled
        try:
            others = await turn.body.take_back(error)
        finally:
            turn.leave()
        if others is not None:
            raise others
        if turn.is_lost and (error is None or isinstance(error, Exception) or (by_us and is_cancellation(error))):
            raise (turn.problem or ending_of(self._ask.id, turn.stop)) from error
