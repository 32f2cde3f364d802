"""The local arbiter: lines in the memory of the sole server of an app, without a round trip to the store."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, final

from standfast.clock import Instant
from standfast.errors import (
    ArbiterUnavailableError,
    QueueFullError,
    RequestRejectedError,
    RequestSupersededError,
    StandfastError,
)
from standfast.flows.arbiters import abandoned
from standfast.flows.arbiters.key_count import KeyCount
from standfast.flows.arbiters.line import Full, Joins, Refused, RequestLine
from standfast.flows.arbiters.local_turn import LocalHolding, LocalTurn
from standfast.flows.arbiters.protocol import JoinsError, Manner, Queueing, Stop, Superseded, handed_over
from standfast.flows.arbiters.sole import SoleServer
from standfast.space import lines_of
from standfast.stores.protocol import Decision

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

    from standfast.flows.arbiters.protocol import Address, Ask, Beside, OnServing, StopRun
    from standfast.space import Space
    from standfast.stores.protocol import Decided, Snapshot
    from standfast.workflows.storing.records import Standing

T = TypeVar("T")

LISTED: Final = 100
"""How many of those who wait are listed by a look."""

MOST_KEYS: Final = 10_000
"""How many keys of one tenant may be in use at a time, if nothing else is said."""

SLOWEST: Final = 60.0
"""The longest time, in seconds, after which one that was refused is told to try again."""

AS_LONG_AS_IT_TAKES: Final = Manner(budget=None, most_waiting=None)
"""How a durable run takes a new place after a crash: it was accepted already."""


@final
class LocalArbiter:
    """Arbitrates requests in the memory of one process, which holds the app's sole-server lock meanwhile.

    Args:
        space: Where that lock lies, and what requests commit.
        app: The name of the app.
        patience: How many seconds to wait for another server to end, on starting.
        stop_run: Cancels a durable run, given its id and a reason; without it its step is cancelled.
        most_keys: How many keys of one tenant may be in use at a time.
        on_serving: Told when this process is no longer the sole server, and when it is again.
    """

    def __init__(
        self,
        space: Space,
        *,
        app: str = "app",
        patience: float = 0.0,
        stop_run: StopRun | None = None,
        most_keys: int = MOST_KEYS,
        on_serving: OnServing | None = None,
    ) -> None:
        self._space, self._stop_run, self._on_serving = space, stop_run, on_serving
        self._clock: Final = lines_of(space).clock
        self._lines: Final[dict[Address, RequestLine[LocalTurn]]] = {}
        self._kept: Final[dict[str, LocalTurn]] = {}
        self._begun: Final[set[str]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._tasks: Final[set[asyncio.Task[Any]]] = set()
        self._paces: Final[dict[Address, float]] = {}
        self._most_keys: Final = most_keys
        self._keys_of = KeyCount(most_keys)
        self.sole: Final = SoleServer(space, app, patience, self._lost, self._found)

    @property
    def is_shared(self) -> bool:
        """Runs of workflows do not stand in these lines: their steps wait here."""
        return False

    @property
    def keys_in_use(self) -> int:
        """How many lines there are. Nothing is kept of a line that nobody stands in."""
        return len(self._lines)

    async def __aenter__(self) -> Self:
        await self.sole.take()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Admit nobody any more, end those who are there, and give the lock back."""
        for turn in self._turns():
            turn.lose(ArbiterUnavailableError("this server is shutting down"))
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.sole.aclose()

    # --- entering and leaving ------------------------------------------------------------------------------------

    def hold(self, ask: Ask) -> LocalHolding:
        """Have a turn for the length of a block, see :class:`~standfast.flows.arbiters.protocol.Arbiter`."""
        return LocalHolding(self, ask)

    def enter(self, ask: Ask, manner: Manner) -> LocalTurn:
        """Take a place at once, or raise why there is none. Let it :meth:`supersede` when it is certainly taken on."""
        self.sole.check()
        turn = LocalTurn(self, ask)
        line = self._lines.get(ask.address)
        if line is None:
            if 2 * len(self._lines) >= self._most_keys:  # below, nobody can have spent a share
                self._keys_of.add(ask.address[1], ask.sharer, self._used())
            self._lines[ask.address] = RequestLine(turn)
            turn.is_at_front, turn.since = True, self._clock.wall()
            return turn
        verdict = line.judge(ask.action, manner)
        if isinstance(verdict, Refused):
            holder = verdict.holder
            raise RequestRejectedError(ask.label, holder.ask.id, holder.since, holder_is_durable=holder.is_durable)
        if isinstance(verdict, Full):
            after = self._retry_after(ask.address, verdict.waiting)
            raise QueueFullError(ask.label, verdict.waiting, after, *self.holder_of(ask.address))
        if isinstance(verdict, Joins):
            raise JoinsError(verdict.other.who)
        turn.wait(line.enter(turn), self._clock.wall(), manner.budget)
        turn.replaced = verdict.superseded
        return turn

    def _used(self) -> Iterator[tuple[str, str]]:
        for address, line in self._lines.items():
            yield address[1], "" if line.holder is None else line.holder.ask.sharer

    def leave(self, turn: LocalTurn) -> None:
        """Take a place back. Doing it again, or when others stand in its line, changes nothing."""
        turn.has_left = True
        address = turn.ask.address
        line = self._lines.get(address)
        if line is None:
            return
        was_holder, following = line.holder is turn, line.leave(turn)
        if line.holder is None:
            del self._lines[address]
            self._paces.pop(address, None)
        elif was_holder:
            self._note_pace(turn)
        if following is not None:
            following.begin(self._clock.wall())

    def _note_pace(self, turn: LocalTurn) -> None:
        address, took = turn.ask.address, max(0.0, (self._clock.wall() - turn.since) / 1_000_000)
        pace = self._paces.get(address)
        self._paces[address] = took if pace is None else 0.8 * pace + 0.2 * took

    def holder_of(self, address: Address) -> tuple[str, Instant]:
        """Return who has a key, and since when; nothing, if nobody has."""
        line = self._lines.get(address)
        return ("", Instant(0)) if line is None or line.holder is None else (line.holder.ask.id, line.holder.since)

    def _retry_after(self, address: Address, waiting: int) -> float:
        return min(SLOWEST, max(1.0, self._paces.get(address, 0.0) * waiting))

    def supersede(self, newcomer: LocalTurn) -> None:
        """Ask those to stop whose place it takes: not before it is written that it is there, or perhaps for nothing."""
        stop, others = Stop(by=newcomer.ask.id), newcomer.replaced
        newcomer.replaced = ()
        for each in others:
            if each.has_left and each.stop is None:  # it has ended by itself meanwhile
                continue
            if each.finishing is None:
                own = Superseded(each.ask.id, each.ask.packed)
                newcomer.superseded = handed_over(*newcomer.superseded, *each.superseded, own)
            each.ask_to_stop(stop)
            if each.is_at_front and not each.has_left:
                asyncio.get_running_loop().call_later(newcomer.ask.manner.grace, each.revoke)

    # --- durable runs --------------------------------------------------------------------------------------------

    def standings(self, ask: Ask) -> tuple[Standing, ...]:  # noqa: ARG002 -- as the protocol says
        """Return no lines: a run's step waits in memory."""
        return ()

    async def start(self, ask: Ask, begin: Callable[[], Awaitable[T]]) -> T:
        """Take a place that is kept for the step of a durable run, and start the run."""
        turn = self.enter(ask, ask.manner)
        turn.is_durable = True
        self._kept[ask.id] = turn
        try:
            begun = await begin()
        except BaseException:
            self.forget(ask.id)
            raise
        self.supersede(turn)
        if ask.id in self._kept:
            self.keep(turn)
        return begun

    def keep(self, turn: LocalTurn) -> None:
        """Keep the place of a run whose step is to come, or to come again."""
        self._kept[turn.ask.id] = turn
        self._begun.add(turn.ask.id)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look_for_abandoned())

    async def _look_for_abandoned(self) -> None:
        """Give up places at the front that nobody will come for, as long as there are any that could be."""
        while self._begun:
            await asyncio.sleep(abandoned.LOOK_EVERY)
            kept = ((each, self._kept[each]) for each in self._begun)
            waited_for = [each for each, turn in kept if turn.is_at_front or turn.has_left]
            with contextlib.suppress(StandfastError):  # the next look finds them
                for run_id in await abandoned.ended_runs(self._space, waited_for):
                    self.forget(run_id)

    def inside(self, ask: Ask) -> LocalHolding:
        """Wait in the step of a durable run for the place that was kept for it; without one, for a new one."""
        return LocalHolding(self, ask, True)  # noqa: FBT003 -- in the step of a durable run

    def kept(self, ask: Ask) -> LocalTurn:
        """Return the place that was kept for a run's step, or a new one; raise if a newer request has come instead."""
        turn = self._take_kept(ask.id)
        if turn is None:
            self._give_way(ask)
            turn = self.enter(ask, AS_LONG_AS_IT_TAKES)
            turn.is_durable = turn.is_back = True
        return turn

    def _give_way(self, ask: Ask) -> None:
        """Raise if one has come since the place was lost that would have taken it: the newest request wins."""
        line = self._lines.get(ask.address)
        alike = () if line is None else line.superseded_by(ask.action, ask.manner)
        newer = [each.ask.id for each in alike if not each.is_back and not each.is_lost]
        if newer:
            raise RequestSupersededError(ask.id, newer[-1])

    def forget(self, request_id: str) -> None:
        """Give up a place that was kept for a run's step."""
        turn = self._take_kept(request_id)
        if turn is not None:
            self.leave(turn)

    def _take_kept(self, request_id: str) -> LocalTurn | None:
        self._begun.discard(request_id)
        return self._kept.pop(request_id, None)

    # --- stopping and looking ------------------------------------------------------------------------------------

    async def stop(self, address: Address, request_id: str, why: Stop) -> bool:
        """Ask a request to stop."""
        turn = self._find(address, request_id)
        if turn is not None:
            turn.ask_to_stop(why)
        return turn is not None

    async def revoke(self, address: Address, request_id: str) -> bool:
        """Take a request's place away."""
        turn = self._find(address, request_id)
        return turn is not None and turn.revoke()

    async def look(self, address: Address) -> Queueing:
        """Say who has its turn and who waits."""
        line, at = self._lines.get(address), self._clock.wall()
        if line is None or line.holder is None:
            return Queueing(at)
        waiters = tuple(turn.who for turn, _ in zip(line.waiters, range(LISTED), strict=False))
        return Queueing(at, line.holder.who, waiters, len(line.waiters), self._paces.get(address, 0.0))

    def _find(self, address: Address, request_id: str) -> LocalTurn | None:
        line = self._lines.get(address)
        standing = () if line is None else (line.holder, *line.waiters)
        return next((each for each in standing if each is not None and each.ask.id == request_id), None)

    def _turns(self) -> list[LocalTurn]:
        lines = tuple(self._lines.values())
        return [each for line in lines for each in (line.holder, *line.waiters) if each is not None]

    def _lost(self) -> None:
        """The lock is lost: nobody who was admitted by it may commit, and nobody new is admitted."""
        if self._on_serving is not None:
            self._on_serving(is_serving=False)
        for turn in self._turns():
            turn.lose(ArbiterUnavailableError("another server may have taken over"))

    def _found(self) -> None:
        """The lock is there again."""
        if self._on_serving is not None:
            self._on_serving(is_serving=True)

    # --- the store -----------------------------------------------------------------------------------------------

    async def commit(self, beside: Beside, position: int, turn: LocalTurn) -> Decided[None]:
        """Commit what a request brings along, as long as it has its place and this process is the sole server."""
        guard = self.sole.guard

        def decide(seen: Snapshot) -> Decision[None]:
            if seen.version(guard.key) != guard.expected:
                raise ArbiterUnavailableError("another server has taken over")
            turn.check()
            return Decision(None, (*beside.decide(position, seen), guard))

        return await self._space.update((guard.key, *beside.keys), decide)

    def stop_run(self, turn: LocalTurn, reason: str) -> bool:
        """Cancel a durable run in the background; tell whether that can be done."""
        if self._stop_run is not None:
            self.own(_stop(self._stop_run(turn.ask.id, reason), turn))
        return self._stop_run is not None

    def own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` to its end, whoever is cancelled meanwhile."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _stop(cancelling: Awaitable[object], turn: LocalTurn) -> None:
    """Wait until a run was told that it is cancelled; if that fails, at least its step is."""
    try:
        await cancelling
    except StandfastError:
        turn.wake()
