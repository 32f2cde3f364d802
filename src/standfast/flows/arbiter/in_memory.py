"""The local arbiter: lines in the memory of the sole server of an app, without a round trip to the store."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar, final

from msgspec import Struct

from standfast.clock import Instant
from standfast.errors import (
    ArbiterUnavailableError,
    HoldTimeoutError,
    NotTheSoleServerError,
    QueueFullError,
    QueueTimeoutError,
    RequestRejectedError,
    RequestSupersededError,
    StandfastError,
    StoreClosedError,
    StoreError,
    TooManyRequestsError,
    WouldWaitError,
)
from standfast.flows.arbiter.in_store import CancellableTask, cancellable_task, ending_of, is_cancellation, reason_of
from standfast.flows.arbiter.protocol import (
    Ask,
    JoinsError,
    LineStatus,
    QueueRules,
    RequestEntry,
    Stop,
    Superseded,
    handed_over,
    unavailable,
)
from standfast.flows.shares import is_spent
from standfast.locks.entry import AcquireRequest, LockSpec, Rules
from standfast.locks.locks import Holding
from standfast.space import lines_of
from standfast.stores.protocol import Decision
from standfast.workflows.records import RUN_STATES, RunKeys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
    from types import TracebackType

    from standfast.flows.arbiter.protocol import Address, OnServing, StopRun
    from standfast.keys import RecordKey
    from standfast.locks.entry import ExtraChanges
    from standfast.locks.locks import Hold
    from standfast.space import Space
    from standfast.stores.protocol import Check, Decided, Snapshot
    from standfast.workflows.records import Standing


# --- places that are kept in vain: the run that one is kept for has ended before its step began --------------------
#
# That happens to a run that waits for something else, and is ended by a caller that knows nothing of its place: its
# schedule was paused, or an operator cancelled it from another process.

LOOK_EVERY: Final = 1.0
"""Seconds between two looks."""

MOST_READ: Final = 100


async def ended_runs(space: Space, run_ids: Sequence[str]) -> list[str]:
    """Return those runs that have ended, or are not there any more."""
    ended: list[str] = []
    most = space.at_most(MOST_READ)
    for start in range(0, len(run_ids), most):
        keys = {RunKeys(space, each).state: each for each in run_ids[start : start + most]}
        seen = await space.read(*keys)
        for key, run_id in keys.items():
            record = seen.get(key)
            if record is None or RUN_STATES.decode(record.value).has_ended:
                ended.append(run_id)
    return ended


# --- how many keys each tenant has in use, once there are enough in all that it matters ----------------------------

AGAIN: Final = 1.0
"""Seconds for which keys that are free again may still be counted: it is not worth more than one look a second."""


@final
class KeyCount:
    """Counts keys by tenant and by who uses them, now and then.

    Args:
        most: How many one tenant may have.
    """

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._tenants, self._sharers = Counter[str](), Counter[tuple[str, str]]()
        self._at = float("-inf")

    def add(self, tenant: str, sharer: str, used: Iterable[tuple[str, str]]) -> None:
        """Count one more key of a tenant, given the tenants and users of all that are in use.

        Raises:
            TooManyRequestsError: The tenant has as many as it may, or the user its share of them.
        """
        now = asyncio.get_running_loop().time()
        if now - self._at >= AGAIN:
            self._sharers, self._at = Counter(used), now
            self._tenants = Counter[str]()
            for (owner, _), number in self._sharers.items():
                self._tenants[owner] += number
        left, own = self._most - self._tenants[tenant], self._sharers[tenant, sharer]
        if left <= 0:
            raise TooManyRequestsError("keys in use of the tenant", self._most, AGAIN)
        if is_spent(own, left):
            raise TooManyRequestsError("keys in use of this user", own, AGAIN)
        self._tenants[tenant] += 1
        self._sharers[tenant, sharer] += 1


# --- the line of one key in memory: who has its turn, who waits, and what becomes of a newcomer --------------------
#
# It reads no clock, awaits nothing and knows no tasks, so that it can be compared with a model. At most one holds, and
# whatever becomes free goes to the front at once: there is no moment in which a newcomer could slip in.


class Entrant(Protocol):
    """One that stands in a line, told apart by identity. ``action`` says whom it can be joined or superseded by."""

    @property
    def action(self) -> str:
        """Flow and action."""
        ...


E = TypeVar("E", bound=Entrant)


class Enters(Struct, Generic[E], frozen=True):
    """It may enter, and takes the place of those ``superseded``: the oldest first, the holder perhaps among them."""

    superseded: tuple[E, ...] = ()


class MustWait(Struct, Generic[E], frozen=True):
    """It would have to wait, and does not. ``holder`` is in its way."""

    holder: E


class LineFull(Struct, frozen=True):
    """As many wait as may."""

    waiting: int


class JoinsRun(Struct, Generic[E], frozen=True):
    """It shares the run of another one."""

    other: E


Verdict: TypeAlias = "Enters[E] | MustWait[E] | LineFull | JoinsRun[E]"
"""What becomes of a newcomer."""


@final
class RequestLine(Generic[E]):
    """One line. ``holder`` has its turn; ``waiters`` are in the order in which they entered."""

    __slots__ = ("holder", "waiters")

    def __init__(self, holder: E | None = None) -> None:
        self.holder = holder
        self.waiters: Final[dict[E, None]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the line is empty. None waits unless one holds."""
        return self.holder is None

    def judge(self, action: str, rules: QueueRules) -> Enters[E] | MustWait[E] | LineFull | JoinsRun[E]:
        """Say what becomes of a newcomer, without letting it in."""
        holder = self.holder
        if holder is None:
            return Enters()
        if not rules.waits:
            return MustWait(holder)
        if rules.joins:
            alike = next((each for each in chain((holder,), self.waiters) if each.action == action), None)
            if alike is not None:
                return JoinsRun(alike)
        superseded = self.superseded_by(action, rules)
        waiting = len(self.waiters) - sum(each is not holder for each in superseded)
        if rules.most_waiting is not None and waiting >= rules.most_waiting:
            return LineFull(waiting)
        return Enters(superseded)

    def superseded_by(self, action: str, rules: QueueRules) -> tuple[E, ...]:
        """Return those whose place a newcomer takes, the oldest first."""
        if self.holder is None or rules.supersedes == "none":
            return ()
        standing = (self.holder, *self.waiters) if rules.supersedes == "all" else self.waiters
        return tuple([each for each in standing if each.action == action])

    def enter(self, entrant: E) -> int:
        """Let one in, and return its position: 0 has its turn, 1 is next."""
        if self.holder is None:
            self.holder = entrant
            return 0
        self.waiters[entrant] = None
        return len(self.waiters)

    def leave(self, entrant: E) -> E | None:
        """Take one out; return who has its turn because of that. Leaving twice, or without being there, is nothing."""
        if self.holder is not entrant:
            self.waiters.pop(entrant, None)
            return None
        self.holder = next(iter(self.waiters), None)
        if self.holder is not None:
            del self.waiters[self.holder]
        return self.holder

    def position(self, entrant: E) -> int | None:
        """Return the place of one that stands here; None: it does not."""
        if self.holder is entrant:
            return 0
        return next((place for place, each in enumerate(self.waiters, 1) if each is entrant), None)


# --- A place in a line in memory: waiting for the turn, having it, and giving it back exactly once -----------------


@final
class LocalTurn(Struct, eq=False):
    """One place. It is in the line from :meth:`~LocalArbiter.enter` to :meth:`~LocalArbiter.leave`."""

    _arbiter: LocalArbiter
    ask: Ask
    cancellable: CancellableTask | None = None
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
    is_noted: bool = False
    is_to_stay: bool = False
    coming: asyncio.Future[None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _deadline: float | None = None

    @property
    def action(self) -> str:
        """Flow and action."""
        return self.ask.action

    @property
    def who(self) -> RequestEntry:
        """What others are told of it."""
        return RequestEntry(self.ask.id, self.ask.action, self.since, self.is_durable)

    # --- its place in the line -----------------------------------------------------------------------------------

    def begin(self, at: Instant) -> None:
        """Have the turn from now on."""
        self.is_at_front, self.since, self.position = True, at, 0
        self._settle()

    def wait(self, position: int, at: Instant, budget: float | None) -> None:
        """Wait from now on, for a number of seconds."""
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
        return QueueTimeoutError(self.ask.label, self.ask.rules.budget or 0.0, *holder)

    def _give_up(self, problem: StandfastError) -> None:
        """Leave the line without having had the turn."""
        self.is_lost, self.problem = True, problem
        self._arbiter.leave(self)
        self._settle()

    def _settle(self) -> None:
        if self.coming is not None and not self.coming.done():
            self.coming.set_result(None)

    async def come(self) -> None:
        """Wait until it has its turn, or raise why it gets none. A caller that gives up before has to leave."""
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
        """Stop it: if it waits, it leaves the line at once; if it runs, it is cancelled."""
        if self.stop is not None or self.has_left or self.finishing is not None:
            return
        self.stop = stop
        if self.ask.on_stop is not None:
            self.ask.on_stop(stop)
        self.is_lost = True
        if not self.is_at_front or self.cancellable is None:
            self._arbiter.leave(self)
        if not self.is_durable or not self._arbiter.stop_run(self, reason_of(stop)):
            self.wake()

    def wake(self) -> None:
        """Let its task find out that it is to stop. A run's step that has not come yet finds out when it does."""
        self._settle()
        if self.is_at_front and self.cancellable is not None:
            self.cancellable.cancel()

    def evict(self) -> bool:
        """Lose the place at once; return True if it was there. What is being committed by now is not undone."""
        if self.has_left or self.finishing is not None:
            return False
        self.is_lost = True
        self._arbiter.leave(self)
        self._settle()
        if self.cancellable is not None:
            self.cancellable.cancel()
        return True

    def lose(self, problem: StandfastError) -> None:
        """Give up its turn: this process may admit none any more. If it runs, it keeps its place to its end."""
        if not self.is_at_front or self.cancellable is None:
            self._give_up(problem)
        elif self.finishing is None:
            self.is_lost = True
            self.problem = problem if self.is_durable else None  # its run goes on with the process that serves then
            self.cancellable.cancel()

    def check(self) -> None:
        """Raise if it must commit nothing any more."""
        if self.is_lost or self.has_left:
            raise self.problem or ending_of(self.ask.id, self.stop)

    # --- committing ----------------------------------------------------------------------------------------------

    async def update(self, extra_changes: ExtraChanges[int]) -> Mapping[RecordKey, int]:
        """Commit changes while it has its turn."""
        self.check()
        return await self._commit(extra_changes)

    async def finish(self, extra_changes: ExtraChanges[int] | None = None) -> None:
        """Commit final changes, and leave the line."""
        self.check()
        if self.cancellable is not None:
            self.cancellable.spare()
        if extra_changes is None:
            self._arbiter.leave(self)
            return
        self.finishing = self._arbiter.own(self._finish(extra_changes))
        await asyncio.shield(self.finishing)

    async def _finish(self, extra_changes: ExtraChanges[int]) -> None:
        await self._commit(extra_changes)
        self._arbiter.leave(self)

    async def _commit(self, extra_changes: ExtraChanges[int]) -> Mapping[RecordKey, int]:
        try:
            return (await self._arbiter.commit(extra_changes, 0, self)).versions
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
            self.is_to_stay, self.cancellable = False, None
            self._arbiter.keep(self)
        elif self.finishing is None or self.finishing.done():
            self._arbiter.leave(self)
        else:
            self.finishing.add_done_callback(self._leave_after)

    def _leave_after(self, finishing: asyncio.Task[None]) -> None:
        if not finishing.cancelled():
            finishing.exception()  # no caller is left to hear of it
        self._arbiter.leave(self)


@final
class LocalTurnContext(Struct, eq=False):
    """A turn for the length of an ``async with`` block."""

    _arbiter: LocalArbiter
    _ask: Ask
    _is_durable: bool = False
    _turn: LocalTurn | None = None

    async def __aenter__(self) -> LocalTurn:
        arbiter, ask = self._arbiter, self._ask
        turn = self._turn = arbiter.kept(ask) if self._is_durable else arbiter.enter(ask, ask.rules)
        cancellable = turn.cancellable = cancellable_task()
        try:
            if ask.extra_changes is not None and not self._is_durable:
                await arbiter.commit(ask.extra_changes, turn.position, turn)
            if turn.replaced:
                arbiter.supersede(turn)
            if not turn.is_at_front and ask.on_waiting is not None:
                ask.on_waiting(turn.position)
            if turn.coming is not None or turn.is_lost:
                await turn.come()
        except BaseException as error:
            arbiter.leave(turn)
            was_stopped = cancellable.was_cancelled and await cancellable.take_back(error) is None
            if was_stopped and isinstance(error, asyncio.CancelledError):
                raise (turn.problem or ending_of(ask.id, turn.stop)) from None
            if isinstance(error, StoreError):
                raise unavailable(error) from error
            raise
        return turn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        turn = self._turn
        if turn is None or turn.cancellable is None:
            return
        if error is None and turn.has_left and not turn.is_lost and not turn.cancellable.was_cancelled:
            return  # it has finished, and was not asked to stop: nearly all end like this
        by_us = turn.cancellable.was_cancelled
        try:
            others = await turn.cancellable.take_back(error)
        finally:
            turn.leave()
        if others is not None:
            raise others
        if turn.is_lost and (error is None or isinstance(error, Exception) or (by_us and is_cancellation(error))):
            raise (turn.problem or ending_of(self._ask.id, turn.stop)) from error


# --- the sole server of an app: a lock in the store, held while serving, so that lines in memory are enough --------
#
# A second process is refused. A server that loses the lock, because the store takes it for dead, admits none until it
# has it again, and what it had admitted commits nothing: every commit is guarded by the lock.

SERVER_SPEC: Final = LockSpec("server", Rules(1))
"""What kind of line it is."""

PAUSE: Final = 0.5
"""Seconds between two tries to get the lock back while the store does not answer."""


@final
class SoleServer:
    """The lock of the one process that serves an app.

    Args:
        space: Where the lock lies.
        app: The name of the app: apps with different names do not exclude each other.
        patience: How many seconds to wait for another process to end, on starting.
        lost: Called when it is no longer held.
        found: Called when it is held again after that.
    """

    def __init__(
        self, space: Space, app: str, patience: float, lost: Callable[[], None], found: Callable[[], None]
    ) -> None:
        self._space, self._app, self._patience, self._lost, self._found = space, app, patience, lost, found
        self._hold: Hold | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._has_begun: Final = asyncio.Event()
        self._is_closing = False

    async def take(self) -> None:
        """Take the lock, and keep it until :meth:`aclose`.

        Raises:
            NotTheSoleServerError: Another process has it.
            ArbiterUnavailableError: The store does not answer.
        """
        self._is_closing = False
        keeping = self._keeping = asyncio.get_running_loop().create_task(self._keep())
        begun = asyncio.ensure_future(self._has_begun.wait())
        try:
            await asyncio.wait({keeping, begun}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            await self.aclose()
            raise
        finally:
            begun.cancel()
        if not keeping.done():
            return
        self._keeping, problem = None, keeping.exception()
        if isinstance(problem, WouldWaitError | HoldTimeoutError):
            raise NotTheSoleServerError(self._app, ", ".join(problem.holders)) from None
        if isinstance(problem, StandfastError):
            raise unavailable(problem) from problem
        if problem is not None:
            raise problem

    def check(self) -> Hold:
        """Return that it is held, or raise: then none may be admitted."""
        hold = self._hold
        if hold is None or hold.is_lost:
            problem = "this process is not serving" if self._keeping is None else "another server may have taken over"
            raise ArbiterUnavailableError(problem)
        return hold

    @property
    def guard(self) -> Check:
        """A change that lets a commit happen only while this process is the sole server; raises if it is not."""
        return self.check().guard

    async def aclose(self) -> None:
        """Give the lock back."""
        self._is_closing, keeping = True, self._keeping
        self._keeping = None
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)  # a store that does not answer is left to itself

    # --- keeping it ----------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Hold the lock; once it was held, try to get it back whenever it is lost."""
        while True:
            try:
                await self._hold_once()
            except StoreClosedError:
                if not self._has_begun.is_set():
                    raise
                return
            except StandfastError:
                if not self._has_begun.is_set():
                    raise
                await asyncio.sleep(PAUSE)

    async def _hold_once(self) -> None:
        is_first = not self._has_begun.is_set()
        request = AcquireRequest(
            f"the server of {self._app}",
            ("server", self._app),
            SERVER_SPEC,
            self._space.lease,
            "the local arbiter",
            waits=not is_first or self._patience > 0,
            timeout=self._patience if is_first and self._patience > 0 else None,
        )
        async with Holding(lines_of(self._space), request, "tell") as hold:
            self._hold = hold
            if self._has_begun.is_set():
                self._found()
            self._has_begun.set()
            try:
                await hold.lost.wait()
            finally:
                self._hold = None
                if not self._is_closing:
                    self._lost()


# --- the local arbiter: lines in the memory of the sole server of an app, without a round trip to the store --------

T = TypeVar("T")

LISTED: Final = 100
"""How many waiters are listed by a look."""

MOST_KEYS: Final = 10_000
"""How many keys of one tenant may be in use at a time, if nothing else is said."""

SLOWEST: Final = 60.0
"""The longest time, in seconds, after which one that was refused is told to try again."""

AS_LONG_AS_IT_TAKES: Final = QueueRules(budget=None, most_waiting=None)
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
        """How many lines there are. Nothing is kept of an empty line."""
        return len(self._lines)

    async def __aenter__(self) -> Self:
        await self.sole.take()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Admit none any more, end those that are there, and give the lock back."""
        for turn in self._turns():
            turn.lose(ArbiterUnavailableError("this server is shutting down"))
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.sole.aclose()

    # --- entering and leaving ------------------------------------------------------------------------------------

    def hold(self, ask: Ask) -> LocalTurnContext:
        """Have a turn for the length of a block, see :class:`~standfast.flows.arbiter.protocol.Arbiter`."""
        return LocalTurnContext(self, ask)

    def enter(self, ask: Ask, rules: QueueRules) -> LocalTurn:
        """Take a place at once, or raise why there is none. Let it :meth:`supersede` when it is certainly taken on."""
        self.sole.check()
        turn = LocalTurn(self, ask)
        line = self._lines.get(ask.address)
        if line is None:
            if 2 * len(self._lines) >= self._most_keys:  # below, no tenant can have spent a share
                lines = self._lines.items()
                used = ((at[1], "" if each.holder is None else each.holder.ask.sharer) for at, each in lines)
                self._keys_of.add(ask.address[1], ask.sharer, used)
            self._lines[ask.address] = RequestLine(turn)
            turn.is_at_front, turn.since = True, self._clock.wall()
            return turn
        verdict = line.judge(ask.action, rules)
        if isinstance(verdict, MustWait):
            holder = verdict.holder
            raise RequestRejectedError(ask.label, holder.ask.id, holder.since, holder_is_durable=holder.is_durable)
        if isinstance(verdict, LineFull):
            after = min(SLOWEST, max(1.0, self._paces.get(ask.address, 0.0) * verdict.waiting))
            raise QueueFullError(ask.label, verdict.waiting, after, *self.holder_of(ask.address))
        if isinstance(verdict, JoinsRun):
            raise JoinsError(verdict.other.who)
        gone = sum(each is not line.holder for each in verdict.superseded)  # their places do not count
        turn.wait(line.enter(turn) - gone, self._clock.wall(), rules.budget)
        turn.replaced = verdict.superseded
        return turn

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
            took, pace = max(0.0, (self._clock.wall() - turn.since) / 1_000_000), self._paces.get(address)
            self._paces[address] = took if pace is None else 0.8 * pace + 0.2 * took
        if following is not None:
            following.begin(self._clock.wall())

    def holder_of(self, address: Address) -> tuple[str, Instant]:
        """Return who has a key, and since when; nothing, if it is free."""
        line = self._lines.get(address)
        return ("", Instant(0)) if line is None or line.holder is None else (line.holder.ask.id, line.holder.since)

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
                asyncio.get_running_loop().call_later(newcomer.ask.rules.grace, each.evict)

    # --- durable runs --------------------------------------------------------------------------------------------

    def standings(self, ask: Ask) -> tuple[Standing, ...]:  # noqa: ARG002 -- as the protocol says
        """Return no lines: a run's step waits in memory."""
        return ()

    async def start(self, ask: Ask, begin: Callable[[], Awaitable[T]]) -> T:
        """Take a place that is kept for the step of a durable run, and start the run."""
        turn = self.enter(ask, ask.rules)
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
        """Give up places at the front that are kept in vain, as long as there are any that could be."""
        while self._begun:
            await asyncio.sleep(LOOK_EVERY)
            kept = ((each, self._kept[each]) for each in self._begun)
            waited_for = [each for each, turn in kept if turn.is_at_front or turn.has_left]
            with contextlib.suppress(StandfastError):  # the next look finds them
                for run_id in await ended_runs(self._space, waited_for):
                    self.forget(run_id)

    def inside(self, ask: Ask) -> LocalTurnContext:
        """Wait in the step of a durable run for the place that was kept for it; without one, for a new one."""
        return LocalTurnContext(self, ask, True)  # noqa: FBT003 -- in the step of a durable run

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
        alike = () if line is None else line.superseded_by(ask.action, ask.rules)
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

    async def evict(self, address: Address, request_id: str) -> bool:
        """Take a request's place away."""
        turn = self._find(address, request_id)
        return turn is not None and turn.evict()

    async def look(self, address: Address) -> LineStatus:
        """Say who has its turn and who waits."""
        line, at = self._lines.get(address), self._clock.wall()
        if line is None or line.holder is None:
            return LineStatus(at)
        waiters = tuple(turn.who for turn, _ in zip(line.waiters, range(LISTED), strict=False))
        return LineStatus(at, line.holder.who, waiters, len(line.waiters), self._paces.get(address, 0.0))

    def _find(self, address: Address, request_id: str) -> LocalTurn | None:
        line = self._lines.get(address)
        standing = () if line is None else (line.holder, *line.waiters)
        return next((each for each in standing if each is not None and each.ask.id == request_id), None)

    def _turns(self) -> list[LocalTurn]:
        lines = tuple(self._lines.values())
        return [each for line in lines for each in (line.holder, *line.waiters) if each is not None]

    def _lost(self) -> None:
        """The lock is lost: no request that was admitted by it may commit, and no new one is admitted."""
        if self._on_serving is not None:
            self._on_serving(is_serving=False)
        for turn in self._turns():
            turn.lose(ArbiterUnavailableError("another server may have taken over"))

    def _found(self) -> None:
        """The lock is there again."""
        if self._on_serving is not None:
            self._on_serving(is_serving=True)

    # --- the store -----------------------------------------------------------------------------------------------

    async def commit(self, extra_changes: ExtraChanges[int], position: int, turn: LocalTurn) -> Decided[None]:
        """Commit what a request brings along, as long as it has its place and this process is the sole server."""
        guard = self.sole.guard

        def decide(seen: Snapshot) -> Decision[None]:
            if seen.version(guard.key) != guard.expected:
                raise ArbiterUnavailableError("another server has taken over")
            turn.check()
            return Decision(None, (*extra_changes.decide(position, seen), guard))

        return await self._space.update((guard.key, *extra_changes.keys), decide)

    def stop_run(self, turn: LocalTurn, reason: str) -> bool:
        """Cancel a durable run in the background; return True if that can be done."""
        if self._stop_run is not None:
            self.own(_stop(self._stop_run(turn.ask.id, reason), turn))
        return self._stop_run is not None

    def own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` to its end, also if its caller is cancelled meanwhile."""
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
