"""The shared arbiter: lines in the store, a turn in one of them, and the task that has it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, final

from msgspec import Struct

from standfast.clock import Instant
from standfast.errors import (
    ArbiterUnavailableError,
    LeaseTooShortError,
    QueueFullError,
    QueueTimeoutError,
    RequestCancelledError,
    RequestInterruptedError,
    RequestRejectedError,
    RequestSupersededError,
    StandfastError,
    StoreError,
    WithdrawnError,
    WorkflowConcurrencyLimitExceededError,
)
from standfast.flows.arbiter.entries import LINE_SPEC, StopMessages, Supersession, TurnAcquisition, reap_lines_forever
from standfast.flows.arbiter.protocol import (
    KIND,
    SUPERSEDED_BY,
    LineStatus,
    RequestEntry,
    Stop,
    Superseded,
    unavailable,
)
from standfast.locks.entry import ExtraChanges, Left, LineEntries, RunGrant, release, release_with, undo_cancellation
from standfast.locks.inspect import LISTED, ExplainedWaiter, explain
from standfast.space import lines_of
from standfast.stores.protocol import Check, Decision
from standfast.workflows.admission import JOIN_ALIKE
from standfast.workflows.records import Standing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
    from types import TracebackType

    from standfast.flows.arbiter.protocol import Address, Ask, StopRun
    from standfast.keys import RecordKey
    from standfast.locks.entry import AcquireRequest, Answer, HeldEntry, Holder
    from standfast.locks.heartbeat import Presence
    from standfast.locks.inspect import ExplainedEntry, Explanation
    from standfast.space import Space
    from standfast.stores.protocol import Change, Snapshot, Watch


# --- the task that has a turn: it is cancelled once when it is to stop, and does not stay cancelled because of it --


@final
class CancellableTask(Struct, eq=False):
    """The task of one ``async with`` block of an arbiter: cancelled at most once, and only while it has its turn."""

    _task: asyncio.Task[Any] | None
    _cancelling: int = 0
    _is_spared: bool = False
    was_cancelled: bool = False

    def cancel(self) -> None:
        """Cancel it, once, unless it is spared."""
        if self._task is not None and not self._is_spared and not self.was_cancelled:
            self.was_cancelled = True
            self._task.cancel()

    @property
    def is_to_end(self) -> bool:
        """Whether the task was cancelled from outside. If not, a cancellation that it raises is its own."""
        return self._task is not None and self._task.cancelling() > self._cancelling

    def spare(self) -> None:
        """Let nothing cancel it here from now on: its work is done, and only its place is still to be given back."""
        self._is_spared = True

    async def take_back(self, error: BaseException | None) -> asyncio.CancelledError | None:
        """Undo the cancellation that began here; return it if the task was cancelled from elsewhere, too."""
        self._is_spared = True
        if not self.was_cancelled or self._task is None:
            return None
        self.was_cancelled = False
        return await undo_cancellation(self._task, self._cancelling, error)


def cancellable_task() -> CancellableTask:
    """Return the body of the task that runs."""
    task = asyncio.current_task()
    return CancellableTask(None) if task is None else CancellableTask(task, task.cancelling())


def ending_of(
    request_id: str, stop: Stop | None
) -> RequestSupersededError | RequestCancelledError | RequestInterruptedError:
    """Return what a request ends with whose turn is over before it has finished; no stop: its turn was lost."""
    if stop is None:
        return RequestInterruptedError(request_id)
    if stop.by:
        return RequestSupersededError(request_id, stop.by)
    return RequestCancelledError(request_id, stop.reason, stop.cancelled_by)


def is_cancellation(error: BaseException | None) -> bool:
    """Return True if a block was left because its task was cancelled."""
    return isinstance(error, asyncio.CancelledError)


def reason_of(stop: Stop) -> str:
    """Return the reason with which a run is cancelled."""
    return f"{SUPERSEDED_BY}{stop.by}" if stop.by else stop.reason


# --- A place in a line in the store: having the turn, committing by it, and giving it back -------------------------

OPERATOR: Final = "an operator took it out of its line"


class _NotHoldingError(Exception):
    """The turn is in other hands. Only raised and caught in here."""


@final
class SharedTurn:
    """One turn, from the moment its request asks for it."""

    def __init__(self, arbiter: SharedArbiter, ask: Ask, entry_id: str = "") -> None:
        self._arbiter: Final = arbiter
        self.ask: Final = ask
        self.cancellable: Final = cancellable_task()
        self.entry_id = entry_id
        self.is_durable = bool(entry_id)
        self.place: HeldEntry | None = None
        self.request: AcquireRequest | None = None
        self.guard: Check | None = None
        self.since = self.known_at = Instant(0)
        self.superseded: tuple[Superseded, ...] = ()
        self.stop: Stop | None = None
        self.finishing: asyncio.Task[None] | None = None
        self.is_lost = self.has_left = False
        self.noted_at: Instant | None = None

    @property
    def is_noted(self) -> bool:
        """Whether the commit that has passed the turn on to it has written what belongs to that."""
        return self.noted_at is not None and self.noted_at == self.since

    # --- as the line sees it -------------------------------------------------------------------------------------

    @property
    def presence(self) -> Presence | None:
        """What it is anchored to; None: to its run."""
        return None if self.place is None else self.place.presence

    @property
    def granted_at(self) -> Instant:
        """Since when it has its turn, by the store's time."""
        return self.since

    @property
    def called_from(self) -> str:
        """Who asked for it."""
        return f"the request {self.ask.id}"

    def begin(self, guard: Check, since: Instant) -> None:
        """Have the turn from now on."""
        self.guard, self.since = guard, since
        self.known_at = self._arbiter.lines.clock.elapsed()
        self._arbiter.entries.track(self.ask.address, self.entry_id, self)

    def lose(self, reason: str) -> None:  # noqa: ARG002 -- as a line says it; what it ends with is told by its word
        """Note that the turn is in other hands."""
        if self.finishing is None:
            self.is_lost = True
            self.cancellable.cancel()

    # --- being stopped -------------------------------------------------------------------------------------------

    def ask_to_stop(self, stop: Stop) -> None:
        """Note why it is to stop. From now on it commits nothing."""
        if self.stop is None and self.finishing is None and not self.has_left:
            self.stop, self.is_lost = stop, True
            if self.ask.on_stop is not None:
                self.ask.on_stop(stop)

    def cancel(self) -> None:
        """Cancel what it does, if it was asked to stop."""
        if self.is_lost:
            self.cancellable.cancel()

    def check(self) -> None:
        """Raise if it must commit nothing any more."""
        presence = self.presence
        if self.is_lost or (presence is not None and presence.left() <= 0):
            raise ending_of(self.ask.id, self.stop)

    async def ending(self) -> RequestSupersededError | RequestCancelledError | RequestInterruptedError:
        """Return what the request ends with, after its turn was lost: a word may say why."""
        with suppress(StandfastError):
            await self.look_for_word()
        return ending_of(self.ask.id, self.stop)

    async def look_for_word(self) -> None:
        """Find out why it is to stop, if that was written down."""
        if self.stop is None:
            self.stop = (await self._arbiter.stop_messages.read([self.entry_id])).get(self.entry_id)

    # --- committing ----------------------------------------------------------------------------------------------

    async def update(self, extra_changes: ExtraChanges[int]) -> Mapping[RecordKey, int]:
        """Commit changes while it has its turn."""
        self.check()
        guard = self.guard
        if guard is None:
            raise ending_of(self.ask.id, self.stop)

        def decide(seen: Snapshot) -> Decision[None]:
            if seen.version(guard.key) != guard.expected:
                raise _NotHoldingError
            return Decision(None, (*extra_changes.decide(0, seen), guard))

        try:
            return (await self._arbiter.space.update((guard.key, *extra_changes.keys), decide)).versions
        except _NotHoldingError:
            self.is_lost = True
            raise await self.ending() from None

    async def finish(self, extra_changes: ExtraChanges[int] | None = None) -> None:
        """Commit final changes, in the commit that leaves the line."""
        self.check()
        self.cancellable.spare()
        if self.place is None or self.request is None:
            if extra_changes is not None:
                await self.update(extra_changes)
            return
        self.finishing = self._arbiter.lines.own(self._finish(self.place, self.request, extra_changes))
        await asyncio.shield(self.finishing)

    async def _finish(self, place: HeldEntry, request: AcquireRequest, extra_changes: ExtraChanges[int] | None) -> None:
        self._arbiter.entries.untrack(self.ask.address, self.entry_id)  # it leaves by itself: that is no loss
        try:
            following = self._arbiter.next_here(self.ask.address)
            await release_with(self._arbiter.lines, place, request, _leaving(extra_changes, following))
        except _NotHoldingError:
            self.is_lost = True
            raise await self.ending() from None
        self.has_left = True

    def keep(self) -> None:
        """Do nothing: a run has its place until it ends."""

    async def leave(self) -> bool:
        """Leave the line, after what is being committed; return True if it had its turn until now."""
        self._arbiter.remove(self)
        self._arbiter.entries.untrack(self.ask.address, self.entry_id)
        if self.finishing is None or self.finishing.done():
            return await self._leave()
        return await asyncio.shield(self._arbiter.lines.own(self._leave_after(self.finishing)))

    async def _leave_after(self, finishing: asyncio.Task[None]) -> bool:
        await asyncio.gather(finishing, return_exceptions=True)  # the task that waits for it hears of it
        return await self._leave()

    async def _leave(self) -> bool:
        lines, place, request = self._arbiter.lines, self.place, self.request
        if place is None or request is None:
            return True
        try:
            left = None if self.has_left else await release(lines, place, request)
        finally:
            lines.note_given_back()
        return left is None or left.was_holding


def _leaving(extra_changes: ExtraChanges[int] | None, following: SharedTurn | None) -> ExtraChanges[Answer]:
    """Return what is committed with leaving, and with the turn of the next request if that is in this process."""
    on_turn = None if following is None else following.ask.on_turn

    def decide(answer: Answer, seen: Snapshot) -> Sequence[Change]:
        if not isinstance(answer, Left) or not answer.was_holding:
            raise _NotHoldingError
        return () if extra_changes is None else extra_changes.decide(0, seen)

    def on_grant(granted: tuple[Holder, ...], seen: Snapshot) -> tuple[tuple[Change, ...], tuple[RecordKey, ...]]:
        holder = next((each for each in granted if following and each.entry.id == following.entry_id), None)
        if following is None or on_turn is None or holder is None:
            return (), ()
        changes = tuple(on_turn.decide(holder.granted_at, seen))
        following.noted_at = holder.granted_at if changes else None  # it is so if that turn is what it gets
        return changes, ()

    keys = () if extra_changes is None else extra_changes.keys
    if on_turn is None:
        return ExtraChanges(keys, decide)
    return ExtraChanges((*keys, *on_turn.keys), decide, on_grant)


@final
class SharedTurnContext:
    """A turn for the length of an ``async with`` block."""

    __slots__ = ("_arbiter", "_ask", "_turn")

    def __init__(self, arbiter: SharedArbiter, ask: Ask) -> None:
        self._arbiter, self._ask = arbiter, ask
        self._turn: SharedTurn | None = None

    async def __aenter__(self) -> SharedTurn:
        self._arbiter.check_open()
        turn = self._turn = SharedTurn(self._arbiter, self._ask)
        taking = TurnAcquisition(self._arbiter, turn)
        try:
            place, turn.request = await taking.take()
        except BaseException as error:
            self._arbiter.remove(turn)
            await self._explain(turn, error)
            raise
        turn.place, turn.superseded = place, taking.superseded()
        turn.begin(place.guard, place.granted_at)
        self._arbiter.lines.held += 1
        return turn

    async def _explain(self, turn: SharedTurn, error: BaseException) -> None:
        """Raise what a request is told that did not get its turn, if that is not the error itself."""
        was_stopped = turn.cancellable.was_cancelled and await turn.cancellable.take_back(error) is None
        if was_stopped and is_cancellation(error):
            raise await turn.ending() from None
        if isinstance(error, WithdrawnError):
            try:
                await turn.look_for_word()
            except StandfastError as unknown:
                raise unavailable(unknown) from error
            raise ending_of(turn.ask.id, turn.stop or Stop(reason=OPERATOR, cancelled_by="operator")) from None
        if isinstance(error, StoreError | LeaseTooShortError):
            raise unavailable(error) from error

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._turn is not None:
            await _end(self._turn, error)


@final
class RunTurnContext:
    """The turn of a durable run, for the length of a block in its step."""

    __slots__ = ("_arbiter", "_ask", "_turn")

    def __init__(self, arbiter: SharedArbiter, ask: Ask) -> None:
        self._arbiter, self._ask = arbiter, ask
        self._turn: SharedTurn | None = None

    async def __aenter__(self) -> SharedTurn:
        arbiter, ask = self._arbiter, self._ask
        turn = self._turn = SharedTurn(arbiter, ask, ask.id)
        found = await arbiter.entries.find(ask.address, ask.id)
        if not isinstance(found, RunGrant):
            raise await turn.ending()
        if ask.rules.supersedes != "none":
            followed = await arbiter.stop_messages.followed(ask.id)
            turn.superseded = tuple(map(Superseded, followed.get(ask.id, ())))
        arbiter.add(turn)
        turn.begin(found.guard, found.granted_at)
        return turn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._turn is not None:
            await _end(self._turn, error)


async def _end(turn: SharedTurn, error: BaseException | None) -> None:
    """Leave the line, and raise what the request ends with if it did not have its turn to the end."""
    by_us = turn.cancellable.was_cancelled
    try:
        others = await turn.cancellable.take_back(error)
    finally:
        has_had_it = await turn.leave()
    if others is not None:
        raise others
    if not has_had_it:
        turn.is_lost = True
    if turn.is_lost and (error is None or isinstance(error, Exception) or (by_us and is_cancellation(error))):
        raise await turn.ending() from error


# --- the shared arbiter: lines in the store, the same for all processes that serve an app --------------------------

T = TypeVar("T")

LOOK_EVERY: Final = 1.0
"""Seconds between two looks for words whose hint was lost."""

SLOWEST: Final = 60.0
"""The longest time, in seconds, after which one that was refused is told to try again."""


@final
class SharedArbiter:
    """Arbitrates requests by lines in the store.

    Args:
        space: Where the lines lie. All processes that serve the app use the same namespace and tenant.
        stop_run: Cancels a durable run, given its id and a reason: a run may be driven by any process.
    """

    def __init__(self, space: Space, *, stop_run: StopRun | None = None) -> None:
        self.space: Final = space
        self.lines: Final = lines_of(space)
        self.entries: Final = LineEntries(self.lines)
        self.stop_messages: Final = StopMessages(space)
        self._stop_run: Final = stop_run
        self._here: Final[dict[str, SharedTurn]] = {}
        self._tasks: Final[set[asyncio.Task[Any]]] = set()
        self._listening: asyncio.Task[None] | None = None

    @property
    def is_shared(self) -> bool:
        """Runs of workflows stand in these lines."""
        return True

    async def __aenter__(self) -> Self:
        watch = self.stop_messages.watch()
        try:
            await watch.__aenter__()
        except StoreError as problem:
            raise unavailable(problem) from problem
        self._listening = asyncio.get_running_loop().create_task(self._listen(watch))
        self.own(reap_lines_forever(self.space, self.lines))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Admit none any more. Those that are there keep their turns until their blocks end."""
        listening, self._listening = self._listening, None
        tasks = [*self._tasks, *([] if listening is None else [listening])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def check_open(self) -> None:
        """Raise if it is not to be used."""
        if self._listening is None:
            raise ArbiterUnavailableError("this process is not serving")

    # --- turns ---------------------------------------------------------------------------------------------------

    def hold(self, ask: Ask) -> SharedTurnContext:
        """Have a turn for the length of a block, see :class:`~standfast.flows.arbiter.protocol.Arbiter`."""
        return SharedTurnContext(self, ask)

    def standings(self, ask: Ask) -> tuple[Standing, ...]:
        """Return the line that a durable run of this request stands in."""
        rules = ask.rules
        if not rules.waits:
            return (Standing(ask.address, KIND, 1, "reject", ask.label, note=ask.action),)
        on_limit = JOIN_ALIKE if rules.joins else "queue"
        most, ttl = rules.most_waiting, rules.budget
        return (Standing(ask.address, KIND, 1, on_limit, ask.label, most, ttl, note=ask.action),)

    async def start(self, ask: Ask, begin: Callable[[], Awaitable[T]]) -> T:
        """Start a durable run, which stands in the line itself; let it supersede others if it is to."""
        self.check_open()
        try:
            begun = await begin()
        except WorkflowConcurrencyLimitExceededError as full:
            if full.waiting:
                raise await self.full(ask, full.waiting) from None
            is_run = full.holder_is_run
            raise RequestRejectedError(ask.label, full.holder, full.since, holder_is_durable=is_run) from None
        except StoreError as problem:
            raise unavailable(problem) from problem
        if ask.rules.supersedes != "none":
            self.own(Supersession(self, ask).run())
        return begun

    async def full(self, ask: Ask, waiting: int) -> QueueFullError:
        """Return the error of a request that may not wait: after how many seconds to try again, and who has the key."""
        pace, holder, since = await self._seen(ask)
        return QueueFullError(ask.label, waiting, min(SLOWEST, max(1.0, pace * waiting)), holder, since)

    async def late(self, ask: Ask) -> QueueTimeoutError:
        """Return the error of a request whose turn did not come in time."""
        _, holder, since = await self._seen(ask)
        return QueueTimeoutError(ask.label, ask.rules.budget or 0.0, holder, since)

    async def _seen(self, ask: Ask) -> tuple[float, str, Instant]:
        """Return the pace of a line, who has its turn and since when; empty if the store does not answer soon."""
        try:
            async with asyncio.timeout(LOOK_EVERY):
                line = await self.look(ask.address)
        except (StandfastError, TimeoutError):
            return 0.0, "", Instant(0)
        held = line.holder
        return (line.pace, "", Instant(0)) if held is None else (line.pace, held.id, held.since)

    def inside(self, ask: Ask) -> RunTurnContext:
        """Have the turn of a durable run in its step."""
        return RunTurnContext(self, ask)

    def forget(self, request_id: str) -> None:
        """Do nothing: a run leaves its line when it ends."""

    # --- stopping ------------------------------------------------------------------------------------------------

    async def stop(self, address: Address, request_id: str, why: Stop) -> bool:
        """Ask a request to stop, wherever it is."""
        found = await self._find(address, request_id)
        if found is not None:
            await self.stop_entry(address, found, why)
        return found is not None

    async def stop_entry(self, address: Address, entry: ExplainedEntry, why: Stop) -> None:
        """Ask one in a line to stop; one that waits is taken out of it."""
        here = self._here.get(entry.entry)
        if here is not None:
            here.ask_to_stop(why)
        if entry.run is not None:
            await self.stop_messages.leave(entry.entry, why)
            if self._stop_run is not None:
                await self._stop_run(entry.run, reason_of(why))
            elif here is not None:
                here.cancel()
        elif here is not None:
            here.cancel()
        else:
            await self.stop_messages.leave(entry.entry, why)
            if isinstance(entry, ExplainedWaiter):
                await self.lines.cancel(address, LINE_SPEC, entry.entry)

    async def evict(self, address: Address, request_id: str) -> bool:
        """Take a request's place away."""
        found = await self._find(address, request_id)
        return found is not None and await self.lines.evict(address, LINE_SPEC, found.entry)

    async def _find(self, address: Address, request_id: str) -> ExplainedEntry | None:
        seen = await self.explain(address)
        entries: tuple[ExplainedEntry, ...] = (*seen.holders, *seen.waiters)
        return next((each for each in entries if each.owner == request_id), None)

    # --- looking -------------------------------------------------------------------------------------------------

    async def explain(self, address: Address, limit: int = 1_000) -> Explanation:
        """Return all that is known of a line."""
        return await explain(self.space, address, limit=limit)

    async def look(self, address: Address) -> LineStatus:
        """Say who has its turn and who waits."""
        seen = await self.explain(address, LISTED)
        holder = next((who_of(each) for each in seen.holders), None)
        return LineStatus(seen.at, holder, tuple(map(who_of, seen.waiters)), seen.waiting, seen.pace)

    # --- requests that are here ----------------------------------------------------------------------------------

    def add(self, turn: SharedTurn) -> None:
        """Note that a request waits or runs here under its entry's id."""
        self._here[turn.entry_id] = turn

    def remove(self, turn: SharedTurn) -> None:
        """Note that it is gone."""
        self._here.pop(turn.entry_id, None)

    def next_here(self, address: Address) -> SharedTurn | None:
        """Return the first request of this process that waits in a line."""
        entry_id = self.entries.first_waiter(address)
        return None if entry_id is None else self._here.get(entry_id)

    def packed_of(self, entry_id: str) -> bytes | None:
        """Return the inputs of a request that is here."""
        turn = self._here.get(entry_id)
        return None if turn is None or turn.finishing is not None else turn.ask.packed

    async def _listen(self, watch: Watch) -> None:
        """Pass on words to requests that are here."""
        try:
            while True:
                hint = await watch.wait(LOOK_EVERY)
                is_vague = hint is None or not hint.complete
                about = self.stop_messages.entries(hint.about) if hint is not None and not is_vague else ()
                with suppress(StandfastError):  # the next look finds out
                    await self._pass_on(self._here if is_vague else [each for each in about if each in self._here])
        finally:
            await watch.__aexit__()

    async def _pass_on(self, entries: Collection[str]) -> None:
        for entry_id, stop in (await self.stop_messages.read(entries)).items():
            turn = self._here.get(entry_id)
            if turn is not None and not turn.is_durable:
                turn.ask_to_stop(stop)
                turn.cancel()

    def own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` until it ends or all is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def who_of(entry: ExplainedEntry) -> RequestEntry:
    """Return one in a line as a request."""
    return RequestEntry(entry.owner, entry.note, entry.since, is_durable=entry.run is not None)
