"""Limits of actions: room at each limit, requests that wait for it by priority, and rates.

A limit has permits. They lie in memory if this process is the sole server, and in a line of the store otherwise: then
each one that waits here has a place in that line, and a permit that comes goes to the most important of them. So
processes get their permits in the order in which they asked, and each hands them out by priority.
"""

from __future__ import annotations

import asyncio
from functools import partial
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import msgspec
from msgspec import Struct, structs

from standfast.errors import (
    LockMismatchError,
    QueueFullError,
    QueueTimeoutError,
    StandfastError,
    StoreError,
    TooManyRequestsError,
    WaitsForItselfError,
    WouldWaitError,
)
from standfast.flows.arbiter.protocol import unavailable
from standfast.flows.deadlock import LONGEST, BlockedRequest, DeadlockSearch
from standfast.flows.declaration import ActionLimit
from standfast.flows.request import Call, Principal, RequestExplanation, partition_of
from standfast.ids import new_id
from standfast.locks import rate_limiter as algebra
from standfast.locks.entry import LIMIT, AcquireRequest, LockSpec, Rules
from standfast.locks.locks import Holding
from standfast.locks.rate_limiter import RateLimiter
from standfast.space import lines_of
from standfast.workflows.records import Standing

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from standfast.errors import WorkflowConcurrencyLimitExceededError
    from standfast.flows.declaration import LimitOfAction
    from standfast.flows.flow import Action
    from standfast.flows.task import Task
    from standfast.locks.rate_limiter import Pass, TokenBucket
    from standfast.policies import OnLimit, Rate
    from standfast.space import Space

SAID: Final = 1.0
"""After how many seconds a request that found no room may try again; how long requests run is not known."""


# --- room at one limit, and who waits for it in this process: the highest priority first, then the order of arrival
# ---

Permit: TypeAlias = Holding | None
"""What is given back: a place in a line, or only a number."""

Coming: TypeAlias = "asyncio.Future[Permit]"

SPARE: Final = 64
"""How many that have left may be kept among the waiters."""


@final
class PermitWaiters:
    """The waiters, in order. Those that have left are dropped when they come to the front."""

    __slots__ = ("_heap", "_number", "count")

    def __init__(self) -> None:
        self._heap: Final[list[tuple[int, int, Coming]]] = []
        self._number = self.count = 0

    def add(self, priority: int) -> Coming:
        """Let one wait."""
        coming: Coming = asyncio.get_running_loop().create_future()
        self._number += 1
        self.count += 1
        heappush(self._heap, (-priority, self._number, coming))
        return coming

    def left(self) -> None:
        """Note that one has left that got nothing."""
        self.count -= 1
        if len(self._heap) > 2 * self.count + SPARE:
            self._heap[:] = [each for each in self._heap if not each[2].done()]
            heapify(self._heap)

    def pop(self) -> Coming | None:
        """Return the next one, which waits no longer."""
        while self._heap:
            coming = heappop(self._heap)[2]
            if not coming.done():
                self.count -= 1
                return coming
        return None


@final
class LocalPermits:
    """Permits in memory."""

    def __init__(self, most: int) -> None:
        self._most, self._running = most, 0
        self._waiters: Final = PermitWaiters()

    @property
    def waiting(self) -> int:
        """How many wait here."""
        return self._waiters.count

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or runs here."""
        return not self._running and not self._waiters.count

    @property
    def has_room(self) -> bool:
        """Whether one more could run now."""
        return self._running < self._most and not self._waiters.count

    async def try_take(self) -> tuple[bool, Permit]:
        """Take a permit if there is one and none waits for it."""
        if not self.has_room:
            return False, None
        self._running += 1
        return True, None

    async def take(self, priority: int) -> Permit:
        """Wait for a permit."""
        coming = self._waiters.add(priority)
        self._let_in()
        try:
            return await coming
        except BaseException:
            if coming.done() and not coming.cancelled():
                self.give_back(None)
            else:
                self._waiters.left()
            raise

    def give_back(self, permit: Permit) -> None:  # noqa: ARG002 -- it is only a number
        """Let the next one in."""
        self._running -= 1
        self._let_in()

    async def aclose(self) -> None:
        """Do nothing: there is no line."""

    def _let_in(self) -> None:
        while self._running < self._most and (coming := self._waiters.pop()) is not None:
            self._running += 1
            coming.set_result(None)


@final
class SharedPermits:
    """Permits in a line of the store, where requests of other processes stand as well, and durable ones.

    Args:
        space: Where everything lies.
        address: Where its line lies.
        label: What it is called for people.
        most: How many it admits.
        note: What is said in the line about its entries: flow and action.
        on_idle: Called when nothing waits or runs here any more.
    """

    def __init__(
        self,
        space: Space,
        address: tuple[str, ...],
        label: str,
        most: int,
        note: str,
        on_idle: Callable[[], None],
    ) -> None:
        self._lines: Final = lines_of(space)
        self._lease: Final = space.lease
        self._address, self._label, self._note, self._on_idle = address, label, note, on_idle
        self._spec: Final = LockSpec(LIMIT, Rules(most))
        self._waiters: Final = PermitWaiters()
        self._standing: Final[dict[asyncio.Task[Any], None]] = {}
        self._leaving: Final[dict[asyncio.Task[Any], None]] = {}
        self._held = 0

    @property
    def waiting(self) -> int:
        """How many wait here."""
        return self._waiters.count

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or runs here."""
        return not (self._held or self._waiters.count or self._standing or self._leaving)

    async def try_take(self) -> tuple[bool, Permit]:
        """Take a permit if there is one and none waits for it."""
        if self._waiters.count:
            return False, None
        self._held += 1
        try:
            return True, await self._enter(waits=False)
        except BaseException as problem:
            self._held -= 1
            if isinstance(problem, WouldWaitError):
                return False, None
            raise

    async def take(self, priority: int) -> Permit:
        """Wait for a permit: its own place in the line, or that of another one here that is less important."""
        coming = self._waiters.add(priority)
        self._own(self._stand(), self._standing)
        try:
            return await coming
        except BaseException:
            if coming.done() and not coming.cancelled() and coming.exception() is None:
                self.give_back(coming.result())
            elif coming.cancelled():
                self._waiters.left()
            spare = max(0, len(self._standing) - self._waiters.count)  # the newest places are left first
            for task in list(reversed(self._standing))[:spare]:
                self._stands_no_longer(task)
                task.cancel()
            raise

    def give_back(self, permit: Permit) -> None:
        """Leave the line, also if the caller is cancelled meanwhile."""
        self._held -= 1
        if permit is not None:
            self._own(permit.__aexit__(None, None, None), self._leaving)

    async def _enter(self, *, waits: bool) -> Holding:
        request = AcquireRequest(
            self._label,
            self._address,
            self._spec,
            self._lease,
            self._note,
            owner=new_id(),
            waits=waits,
            note=self._note,
            may_circle=False,
            permits=self._spec.rules.permits,
        )
        holding = Holding(self._lines, request, "tell")
        await holding.__aenter__()
        return holding

    async def _stand(self) -> None:
        """Stand in line for the request that is the most important when the permit comes."""
        try:
            holding = await self._enter(waits=True)
        except StandfastError as problem:
            self._stands_no_longer(asyncio.current_task())
            if (coming := self._waiters.pop()) is not None:
                coming.set_exception(problem)
            return
        self._stands_no_longer(asyncio.current_task())
        self._held += 1
        coming = self._waiters.pop()
        if coming is None:
            self.give_back(holding)
        else:
            coming.set_result(holding)

    def _stands_no_longer(self, task: asyncio.Task[Any] | None) -> None:
        """Note at once that a place is not needed: else another one would be left in its stead."""
        if task is not None and task in self._standing:
            del self._standing[task]
            self._leaving[task] = None

    def _own(self, work: Coroutine[Any, Any, None], among: dict[asyncio.Task[Any], None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        among[task] = None
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[Any]) -> None:
        self._standing.pop(task, None)
        self._leaving.pop(task, None)
        if not task.cancelled():
            task.exception()  # a place that could not be left lapses with the lease
        if self.is_idle:
            self._on_idle()

    async def aclose(self) -> None:
        """Wait until no place in line is kept for requests that have left."""
        for task in self._standing:
            task.cancel()
        while tasks := (*self._standing, *self._leaving):
            await asyncio.wait(tasks)
            await asyncio.sleep(0)


# --- where a request needs room: the limits of its action, each as this request meets it ---------------------------


class LimitSlot(Struct, frozen=True):
    """A limit as one request meets it.

    Attributes:
        limit: The limit.
        address: Where its line lies.
        label: What it is called for people, without the tenant.
    """

    limit: ActionLimit
    address: tuple[str, ...]
    label: str

    @property
    def order(self) -> tuple[bool, tuple[str, ...]]:
        """Narrow limits are taken before those that all requests share."""
        return self.limit.key == "none", self.address


def limit_slots_of(task: Task) -> tuple[LimitSlot, ...]:
    """Return the limits that a request needs room at, in the order in which it is taken."""
    found: list[LimitSlot] = []
    for limit in task.action.limits:
        if isinstance(limit, ActionLimit):
            part = partition_of(limit.key, task.arrival, task.inputs.values)
            if part is not None:
                found.append(_slot_at(task.name, limit, part))
    return tuple(sorted(found, key=lambda each: each.order))


def _slot_at(name: str, limit: ActionLimit, part: tuple[str, ...]) -> LimitSlot:
    own = (LIMIT, limit.name, "name") if limit.name else (LIMIT, name, "action")
    return LimitSlot(limit, (*own, *part), f"the limit {what_of(name, limit, part)}")


def sole_limit_slots_of(action: Action[..., Any], tenant: str, user: str, session: str) -> tuple[LimitSlot, ...]:
    """Return the limits that let in one at a time, as a request meets them that was taken on.

    What a function of its inputs said of it is not known any more.
    """
    name, who = f"{action.flow}.{action.name}", Principal(tenant, user)
    arrival = Call(flow=action.flow, action=action.name, principal=who, session=session)
    sole = [each for each in action.limits if isinstance(each, ActionLimit) and each.max == 1]
    return tuple(
        [_slot_at(name, each, partition_of(each.key, arrival) or ()) for each in sole if not callable(each.key)]
    )


def what_of(name: str, limit: LimitOfAction, part: tuple[str, ...]) -> str:
    """Return what a limit counts, in words: ``"of chat.respond for user 'ann'"``."""
    own = f"{limit.name!r}" if limit.name else f"of {name}"
    return own if not part else f"{own} for {' '.join([part[1], *map(repr, part[2:])])}"


# --- room for one request at all of its limits: taken as far as it is there, waited for, and given back ------------

AnyPermits = LocalPermits | SharedPermits

Refuse: TypeAlias = "Callable[[WaitsForItselfError], None]"
"""Ends the waiting of a request."""


@final
class RequestPermits:
    """Room for one request at all of its limits: taken as far as it is there, waited for, and given back.

    A caller that took some of it gives it back, also if the rest did not come.
    """

    __slots__ = ("_durable", "_limiting", "_missing", "_priority", "_refuse", "_taken", "_task")

    def __init__(self, limiting: ConcurrencyLimits, task: Task, refuse: Refuse | None, *, durable: bool) -> None:
        self._limiting, self._task, self._refuse, self._durable = limiting, task, refuse, durable
        own = task.arrival.priority
        self._priority: Final = task.action.priority if own is None else own
        self._missing: Final = list(limit_slots_of(task))
        self._taken: Final[list[tuple[LimitSlot, AnyPermits, Permit]]] = []

    async def take_at_once(self) -> bool:
        """Take what is free; return True if that is all.

        Raises:
            TooManyRequestsError: A limit has no room, and the request does not wait.
            QueueFullError: As many wait as may.
            WaitsForItselfError: Callers that wait for it have the room that it would wait for.
            ArbiterUnavailableError: The store does not answer.
        """
        while self._missing:
            slot = self._missing[0]
            permits = self._limiting.permits(slot, self._task.name)
            is_taken, permit = await _try_take(permits)
            if not is_taken:
                if not self._durable:
                    check_may_wait(slot, permits.waiting)
                    self._check_chain(slot)
                return False
            self._taken.append((self._missing.pop(0), permits, permit))
        return True

    async def wait(self) -> None:
        """Wait for what is missing.

        Raises:
            QueueTimeoutError: It did not come in time.
            QueueFullError: As many wait as may.
            WaitsForItselfError: Callers that wait for it have the room that it would wait for.
            ArbiterUnavailableError: The store does not answer.
        """
        waiting, deadlocks = self._limiting.waiting, self._limiting.deadlocks
        try:
            while self._missing:
                slot = waiting[self._task.id] = self._missing[0]
                permits = self._limiting.permits(slot, self._task.name)
                if slot.limit.max == 1:
                    deadlocks.wait(self._waiter(slot))
                permit = await self._wait_at(slot, permits)
                deadlocks.go_on(self._task.id)
                self._taken.append((self._missing.pop(0), permits, permit))
        finally:
            deadlocks.go_on(self._task.id)
            waiting.pop(self._task.id, None)

    def _waiter(self, slot: LimitSlot) -> BlockedRequest:
        task, own = self._task, {each.address for each in self._missing}
        around = (*task.arrival.chain, *(() if task.address is None else (task.address,)))
        holds = (*around, *(each.address for each, _, _ in self._taken))
        kept = tuple([each for each in holds if each not in own])
        return BlockedRequest(task.id, slot.address, slot.label, kept, task.is_called, self._refuse)

    def _check_chain(self, slot: LimitSlot) -> None:
        """Refuse to wait for room that is not given back before this request has ended."""
        if slot.address in self._task.arrival.chain:
            raise WaitsForItselfError(slot.label, self._task.id)

    async def _wait_at(self, slot: LimitSlot, permits: AnyPermits) -> Permit:
        if not self._durable and slot.address in self._task.arrival.chain:
            is_taken, permit = await _try_take(permits)
            if not is_taken:
                self._check_chain(slot)
            return permit
        ttl = None if self._durable else slot.limit.ttl
        if ttl is None and self._task.is_called:
            ttl = LONGEST
        limit = asyncio.timeout(ttl)
        try:
            async with limit:
                return await permits.take(self._priority)
        except TimeoutError:
            if not limit.expired():
                raise
            raise QueueTimeoutError(slot.label, ttl or 0.0) from None
        except StoreError as problem:
            raise unavailable(problem) from problem

    def give_back(self) -> None:
        """Let the next ones in."""
        while self._taken:
            slot, permits, permit = self._taken.pop()
            permits.give_back(permit)
            self._limiting.forget(slot)
        for slot in self._missing:
            self._limiting.forget(slot)


async def _try_take(permits: AnyPermits) -> tuple[bool, Permit]:
    try:
        return await permits.try_take()
    except StoreError as problem:
        raise unavailable(problem) from problem


def check_may_wait(slot: LimitSlot, waiting: int) -> None:
    """Refuse one that does not wait, and one too many."""
    if not slot.limit.waits:
        raise no_room(slot)
    if slot.limit.max_queued is not None and waiting >= slot.limit.max_queued:
        raise QueueFullError(slot.label, waiting, SAID)


def no_room(slot: LimitSlot) -> TooManyRequestsError:
    """Return what one is told that does not wait."""
    return TooManyRequestsError(f"running requests at {slot.label}", slot.limit.max, SAID)


# --- the limits of actions at work in one process: rates before anything is written, room when a request has its
# turn ---
#
# Room is taken in one order of all limits, whatever the declarations say, so that no two requests wait for each other.

MOST_BUCKETS: Final = 10_000
"""How many buckets are kept in memory before those are dropped that are full again."""

SPARE_ROOM: Final = 10
"""By which part of that they may be more before it is looked for those: each look goes through all of them."""


@final
class ConcurrencyLimits:
    """The limits of all actions, in one process.

    Args:
        space: Where everything lies.
        is_shared: Whether there are other processes: then rates and room lie in the store.
    """

    def __init__(self, space: Space, *, is_shared: bool) -> None:
        self._space, self._is_shared = space, is_shared
        self._clock: Final = lines_of(space).clock
        self._permits: Final[dict[tuple[str, ...], AnyPermits]] = {}
        self._buckets: Final[dict[str, TokenBucket]] = {}
        self.waiting: Final[dict[str, LimitSlot]] = {}
        self.deadlocks: Final = DeadlockSearch()

    @property
    def in_use(self) -> int:
        """How many limits, or values of their keys, are in use here. Nothing is kept of others."""
        return len(self._permits)

    # --- rates ---------------------------------------------------------------------------------------------------

    async def check_rates(self, task: Task) -> None:
        """Count a request, or refuse it.

        Raises:
            TooManyRequestsError: Too many have come: the next one has to wait.
        """
        for limit in task.action.rates:
            part = partition_of(limit.key, task.arrival, task.inputs.values)
            if part is not None:
                answer = await self._pass(task, limit, part)
                if not answer.granted:
                    what = f"requests {what_of(task.name, limit, part)}"
                    raise TooManyRequestsError(what, limit.max, answer.retry_after, limit.per)

    async def _pass(self, task: Task, limit: Rate, part: tuple[str, ...]) -> Pass:
        own = ("name", limit.name) if limit.name else ("action", task.name)
        digest = blake2b(msgspec.json.encode((*own, *part)), digest_size=20).hexdigest()
        key = f"{limit.name or task.name} {digest}"
        if self._is_shared:
            family = limit.name or task.name
            limiter = RateLimiter(self._space, key, capacity=limit.burst, interval=limit.interval, family=family)
            try:
                return await limiter.try_acquire()
            except LockMismatchError:  # another version of the app says another rate; the last one counts
                await limiter.change_rate()
                return await RateLimiter(
                    self._space, key, capacity=limit.burst, interval=limit.interval, follow=True, family=family
                ).try_acquire()
        now, rate = self._clock.wall(), algebra.check_rate(limit.burst, limit.interval)
        bucket = self._buckets.pop(key, None) or algebra.full_bucket(rate, now)
        self._buckets[key], answer = algebra.ask(bucket, 1, now, ttl=1.0)
        if len(self._buckets) > MOST_BUCKETS + MOST_BUCKETS // SPARE_ROOM:
            self._drop_full_buckets()
        return answer

    def _drop_full_buckets(self) -> None:
        now = self._clock.wall()
        for key in [key for key, bucket in self._buckets.items() if algebra.forgettable_at(bucket) <= now]:
            del self._buckets[key]
        while len(self._buckets) > MOST_BUCKETS:  # too many are in use; those go whose last use is the longest ago
            del self._buckets[next(iter(self._buckets))]

    # --- durable requests ------------------------------------------------------------------------------------------

    def standings(self, task: Task) -> tuple[Standing, ...]:
        """Return the lines that a durable run stands in besides that of its key; in memory its step waits."""
        if not self._is_shared:
            return ()
        return tuple([_standing(slot, task.name) for slot in limit_slots_of(task)])

    def check_room(self, task: Task) -> None:
        """Refuse a durable request for whose step there is no room, if the limit says so; in memory only.

        Raises:
            TooManyRequestsError: There is no room, and it does not wait.
            QueueFullError: As many wait as may.
        """
        for slot in () if self._is_shared else limit_slots_of(task):
            permits = self._permits.get(slot.address)
            if isinstance(permits, LocalPermits) and not permits.has_room:
                check_may_wait(slot, permits.waiting)

    def refusal(
        self, task: Task, full: WorkflowConcurrencyLimitExceededError
    ) -> TooManyRequestsError | QueueFullError | None:
        """Return why the start of a durable request was refused, if that was because of a limit."""
        slot = next((each for each in limit_slots_of(task) if each.label == full.partition_key), None)
        if slot is None:
            return None
        return QueueFullError(slot.label, full.waiting, SAID) if full.waiting else no_room(slot)

    # --- room ----------------------------------------------------------------------------------------------------

    def room_for(self, task: Task, refuse: Refuse | None = None, *, durable: bool = False) -> RequestPermits:
        """Return the room that a request needs, to be taken; it may be refused to wait for it."""
        return RequestPermits(self, task, refuse, durable=durable)

    def check_chain(self, task: Task) -> None:
        """Refuse a durable request that might wait for room which one has that waits for it.

        What is accepted durably is not given up later, so it is not looked whether there is room besides.

        Raises:
            WaitsForItselfError: It might.
        """
        for slot in limit_slots_of(task):
            if slot.limit.waits and slot.address in task.arrival.chain:
                raise WaitsForItselfError(slot.label)

    def chained(self, task: Task) -> Task:
        """Return a request whose own requests know which limits it has room at."""
        chain = tuple(dict.fromkeys((*task.arrival.chain, *(slot.address for slot in limit_slots_of(task)))))
        return structs.replace(task, arrival=structs.replace(task.arrival, chain=chain))

    def permits(self, slot: LimitSlot, note: str) -> AnyPermits:
        """Return the permits of a limit."""
        permits = self._permits.get(slot.address)
        if permits is None:
            permits = (
                SharedPermits(self._space, slot.address, slot.label, slot.limit.max, note, partial(self.forget, slot))
                if self._is_shared
                else LocalPermits(slot.limit.max)
            )
            self._permits[slot.address] = permits
        return permits

    def forget(self, slot: LimitSlot) -> None:
        """Forget permits that are not used."""
        permits = self._permits.get(slot.address)
        if permits is not None and permits.is_idle:
            del self._permits[slot.address]

    def explain(self, request_id: str) -> RequestExplanation | None:
        """Say which limit a request waits for, if it waits for one in this process."""
        slot = self.waiting.get(request_id)
        if slot is None:
            return None
        permits = self._permits.get(slot.address)
        return RequestExplanation(key=slot.label, policy="limit", waiting=0 if permits is None else permits.waiting)

    async def aclose(self) -> None:
        """Leave no entry in a line."""
        await asyncio.gather(*(permits.aclose() for permits in self._permits.values()))


def _standing(slot: LimitSlot, note: str) -> Standing:
    limit = slot.limit
    on_limit: OnLimit = "queue" if limit.waits else "reject"
    return Standing(slot.address, LIMIT, limit.max, on_limit, slot.label, limit.max_queued, note=note)
