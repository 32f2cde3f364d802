"""The shared arbiter: lines in the store, the same for all processes that serve an app."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, final

from standfast.clock import Instant
from standfast.errors import (
    ArbiterUnavailableError,
    QueueFullError,
    QueueTimeoutError,
    RequestRejectedError,
    StandfastError,
    StoreError,
    WorkflowConcurrencyLimitExceededError,
)
from standfast.flows.arbiters.body import reason_of
from standfast.flows.arbiters.protocol import KIND, Queueing, Who
from standfast.flows.arbiters.room import RoomMaking
from standfast.flows.arbiters.shared_turn import SITE, RunHolding, SharedHolding
from standfast.flows.arbiters.tending import go_round_for_ever
from standfast.flows.arbiters.words import Words
from standfast.locks.driving.turning_out import turn_out
from standfast.locks.explaining.explanation import ExplainedWaiter
from standfast.locks.explaining.reading import LISTED, explain
from standfast.space import lines_of
from standfast.workflows.limiting.arriving import JOIN_ALIKE
from standfast.workflows.storing.records import Standing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from standfast.flows.arbiters.protocol import Address, Ask, Manner, Stop, StopRun
    from standfast.flows.arbiters.shared_turn import SharedTurn
    from standfast.locks.explaining.explanation import ExplainedEntry, Explanation
    from standfast.space import Space
    from standfast.stores.protocol import Watch

T = TypeVar("T")

LOOK_EVERY: Final = 1.0
"""Seconds between two looks for words that nobody was woken for."""

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
        self.words: Final = Words(space)
        self._stop_run: Final = stop_run
        self._here: Final[dict[str, SharedTurn]] = {}
        self._tasks: Final[set[asyncio.Task[Any]]] = set()
        self._listening: asyncio.Task[None] | None = None

    @property
    def is_shared(self) -> bool:
        """Runs of workflows stand in these lines."""
        return True

    async def __aenter__(self) -> Self:
        watch = self.words.watch()
        try:
            await watch.__aenter__()
        except StoreError as problem:
            raise ArbiterUnavailableError(str(problem)) from problem
        self._listening = asyncio.get_running_loop().create_task(self._hear(watch))
        self.own(go_round_for_ever(self.space, self.lines))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Admit nobody any more. Those who are there keep their turns until their blocks end."""
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

    def hold(self, ask: Ask) -> SharedHolding:
        """Have a turn for the length of a block, see :class:`~standfast.flows.arbiters.protocol.Arbiter`."""
        return SharedHolding(self, ask)

    def standings(self, ask: Ask) -> tuple[Standing, ...]:
        """Return the line that a durable run of this request stands in."""
        manner = ask.manner
        most = manner.most_waiting if manner.waits else None
        ttl = manner.budget if manner.waits else None
        return (Standing(ask.address, KIND, 1, _on_limit(manner), ask.label, most, ttl, note=ask.action),)

    async def start(self, ask: Ask, begin: Callable[[], Awaitable[T]]) -> T:
        """Start a durable run, which stands in the line itself; let it supersede others if it is to."""
        self.check_open()
        try:
            begun = await begin()
        except WorkflowConcurrencyLimitExceededError as full:
            raise await self._refusal(ask, full) from None
        except StoreError as problem:
            raise ArbiterUnavailableError(str(problem)) from problem
        if ask.manner.supersedes != "nobody":
            self.own(RoomMaking(self, ask).run())
        return begun

    async def _refusal(
        self, ask: Ask, full: WorkflowConcurrencyLimitExceededError
    ) -> RequestRejectedError | QueueFullError:
        if not full.waiting:
            is_run = full.holder_is_run
            return RequestRejectedError(ask.label, full.holder, full.since, holder_is_durable=is_run)
        return await self.full(ask, full.waiting)

    async def full(self, ask: Ask, waiting: int) -> QueueFullError:
        """Return what one is told that may not wait: after how many seconds to try again, and who has the key."""
        pace, holder, since = await self._seen(ask)
        return QueueFullError(ask.label, waiting, min(SLOWEST, max(1.0, pace * waiting)), holder, since)

    async def late(self, ask: Ask) -> QueueTimeoutError:
        """Return what one is told whose turn did not come in time."""
        _, holder, since = await self._seen(ask)
        return QueueTimeoutError(ask.label, ask.manner.budget or 0.0, holder, since)

    async def _seen(self, ask: Ask) -> tuple[float, str, Instant]:
        """Return how quickly a line moves, who has its turn and since when, as far as that can be found out soon."""
        try:
            async with asyncio.timeout(LOOK_EVERY):
                line = await self.look(ask.address)
        except (StandfastError, TimeoutError):
            return 0.0, "", Instant(0)
        held = line.holder
        return (line.pace, "", Instant(0)) if held is None else (line.pace, held.id, held.since)

    def inside(self, ask: Ask) -> RunHolding:
        """Have the turn of a durable run in its step."""
        return RunHolding(self, ask)

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
            await self.words.leave(entry.entry, why)
            if self._stop_run is not None:
                await self._stop_run(entry.run, reason_of(why))
            elif here is not None:
                here.cancel()
        elif here is not None:
            here.cancel()
        else:
            await self.words.leave(entry.entry, why)
            if isinstance(entry, ExplainedWaiter):
                await self.turn_out(address, entry.entry, only_waiting=True)

    async def revoke(self, address: Address, request_id: str) -> bool:
        """Take a request's place away."""
        found = await self._find(address, request_id)
        return found is not None and await self.turn_out(address, found.entry)

    async def turn_out(self, address: Address, entry_id: str, *, only_waiting: bool = False) -> bool:
        """Take an entry out of a line by force; whoever it belongs to is told."""
        line = self.lines.line(address)
        return await turn_out(self.space, line, SITE, entry_id, only_waiting=only_waiting)

    async def _find(self, address: Address, request_id: str) -> ExplainedEntry | None:
        seen = await self.explain(address)
        entries: tuple[ExplainedEntry, ...] = (*seen.holders, *seen.waiters)
        return next((each for each in entries if each.owner == request_id), None)

    # --- looking -------------------------------------------------------------------------------------------------

    async def explain(self, address: Address, limit: int = 1_000) -> Explanation:
        """Return all that is known of a line."""
        return await explain(self.space, address, limit=limit)

    async def look(self, address: Address) -> Queueing:
        """Say who has its turn and who waits."""
        seen = await self.explain(address, LISTED)
        holder = next((who_of(each) for each in seen.holders), None)
        return Queueing(seen.at, holder, tuple(map(who_of, seen.waiters)), seen.waiting, seen.pace)

    # --- those who are here --------------------------------------------------------------------------------------

    def add(self, turn: SharedTurn) -> None:
        """Note that somebody waits or runs here under its entry's id."""
        self._here[turn.entry_id] = turn

    def remove(self, turn: SharedTurn) -> None:
        """Note that it is gone."""
        self._here.pop(turn.entry_id, None)

    def packed_of(self, entry_id: str) -> bytes | None:
        """Return the inputs of a request that is here."""
        turn = self._here.get(entry_id)
        return None if turn is None or turn.finishing is not None else turn.ask.packed

    async def _hear(self, watch: Watch) -> None:
        """Pass on words to those who are here."""
        try:
            while True:
                hint = await watch.wait(LOOK_EVERY)
                is_vague = hint is None or not hint.complete
                wanted = list(self._here) if is_vague or hint is None else self.words.entries(hint.about)
                with suppress(StandfastError):  # the next look finds out
                    await self._pass_on(each for each in wanted if each in self._here)
        finally:
            await watch.__aexit__()

    async def _pass_on(self, entries: Iterable[str]) -> None:
        for entry_id, stop in (await self.words.read(entries)).items():
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


def who_of(entry: ExplainedEntry) -> Who:
    """Return one in a line as a request."""
    return Who(entry.owner, entry.note, entry.since, is_durable=entry.run is not None)


def _on_limit(manner: Manner) -> str:
    if not manner.waits:
        return "reject"
    return JOIN_ALIKE if manner.joins else "queue"
