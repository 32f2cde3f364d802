"""The limits of actions at work in one process: rates before anything is written, room when a request has its turn.

Room is taken in one order of all limits, whatever the declarations say, so that no two requests wait for each other.
"""

from __future__ import annotations

import asyncio
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, final

import msgspec
from msgspec import structs

from standfast.errors import (
    QueueFullError,
    RateExceededError,
    RateMismatchError,
    TooManyRequestsError,
    WaitsForItselfError,
)
from standfast.flows.circling import Circles
from standfast.flows.gates import LocalGate, SharedGate
from standfast.flows.keying import partition_of
from standfast.flows.limits import SAID
from standfast.flows.request import Explanation
from standfast.flows.rooms import AnyGate, Room, check_may_wait, no_room
from standfast.flows.spots import Spot, spots_of, what_of
from standfast.locks.rates import bucket as algebra
from standfast.locks.rates.rate_limiter import RateLimiter
from standfast.space import lines_of
from standfast.workflows.limiting.standing import LIMIT
from standfast.workflows.storing.records import Standing

if TYPE_CHECKING:
    from standfast.errors import WorkflowConcurrencyLimitExceededError
    from standfast.flows.limits import Rate
    from standfast.flows.rooms import Refuse
    from standfast.flows.tasks import Task
    from standfast.locks.rates.bucket import Bucket, Pass
    from standfast.space import Space

MOST_BUCKETS: Final = 10_000
"""How many buckets are kept in memory before those are dropped that are full again."""

SPARE: Final = 10
"""By which part of that they may be more before it is looked for those: each look goes through all of them."""


@final
class Limiting:
    """The limits of all actions, in one process.

    Args:
        space: Where everything lies.
        is_shared: Whether there are other processes: then rates and room lie in the store.
    """

    def __init__(self, space: Space, *, is_shared: bool) -> None:
        self._space, self._is_shared = space, is_shared
        self._clock: Final = lines_of(space).clock
        self._gates: Final[dict[tuple[str, ...], AnyGate]] = {}
        self._buckets: Final[dict[str, Bucket]] = {}
        self.waiting: Final[dict[str, Spot]] = {}
        self.circles: Final = Circles()

    @property
    def in_use(self) -> int:
        """How many limits, or values of their keys, are in use here. Nothing is kept of others."""
        return len(self._gates)

    # --- rates ---------------------------------------------------------------------------------------------------

    async def check_rates(self, task: Task) -> None:
        """Count a request, or refuse it.

        Raises:
            RateExceededError: So many have come that the next one has to wait.
        """
        for limit in task.action.rates:
            part = partition_of(limit.key, task.arrival, task.inputs.values)
            if part is not None:
                answer = await self._pass(task, limit, part)
                if not answer.granted:
                    what = f"requests {what_of(task.name, limit, part)}"
                    raise RateExceededError(what, limit.max, limit.per, answer.retry_after)

    async def _pass(self, task: Task, limit: Rate, part: tuple[str, ...]) -> Pass:
        own = ("name", limit.name) if limit.name else ("action", task.name)
        digest = blake2b(msgspec.json.encode((*own, *part)), digest_size=20).hexdigest()
        key = f"{limit.name or task.name} {digest}"
        if self._is_shared:
            limiter = RateLimiter(self._space, key, capacity=limit.burst, interval=limit.interval)
            try:
                return await limiter.try_acquire()
            except RateMismatchError:  # another version of the app says another rate; the last one counts
                await limiter.change_rate()
                return await RateLimiter(
                    self._space, key, capacity=limit.burst, interval=limit.interval, follow=True
                ).try_acquire()
        now, rate = self._clock.wall(), algebra.check_rate(limit.burst, limit.interval)
        bucket = self._buckets.pop(key, None) or algebra.full_bucket(rate, now)
        self._buckets[key], answer = algebra.ask(bucket, 1, now, ttl=1.0)
        if len(self._buckets) > MOST_BUCKETS + MOST_BUCKETS // SPARE:
            self._drop_full_buckets()
        return answer

    def _drop_full_buckets(self) -> None:
        now = self._clock.wall()
        for key in [key for key, bucket in self._buckets.items() if algebra.forgettable_at(bucket) <= now]:
            del self._buckets[key]
        while len(self._buckets) > MOST_BUCKETS:  # so many are in use; those go whose last use is the longest ago
            del self._buckets[next(iter(self._buckets))]

    # --- durable requests ------------------------------------------------------------------------------------------

    def standings(self, task: Task) -> tuple[Standing, ...]:
        """Return the lines that a durable run stands in besides that of its key; in memory its step waits."""
        if not self._is_shared:
            return ()
        return tuple([_standing(spot, task.name) for spot in spots_of(task)])

    def check_room(self, task: Task) -> None:
        """Refuse a durable request for whose step there is no room, if the limit says so; in memory only.

        Raises:
            TooManyRequestsError: There is no room, and it does not wait.
            QueueFullError: As many wait as may.
        """
        for spot in () if self._is_shared else spots_of(task):
            gate = self._gates.get(spot.address)
            if isinstance(gate, LocalGate) and not gate.has_room:
                check_may_wait(spot, gate.waiting)

    def refusal(
        self, task: Task, full: WorkflowConcurrencyLimitExceededError
    ) -> TooManyRequestsError | QueueFullError | None:
        """Return why the start of a durable request was refused, if that was because of a limit."""
        spot = next((each for each in spots_of(task) if each.label == full.partition_key), None)
        if spot is None:
            return None
        return QueueFullError(spot.label, full.waiting, SAID) if full.waiting else no_room(spot)

    # --- room ----------------------------------------------------------------------------------------------------

    def room_for(self, task: Task, refuse: Refuse | None = None, *, durable: bool = False) -> Room:
        """Return the room that a request needs, to be taken; it may be refused to wait for it."""
        return Room(self, task, refuse, durable=durable)

    def check_chain(self, task: Task) -> None:
        """Refuse a durable request that might wait for room which one has that waits for it.

        What is accepted durably is not given up later, so it is not looked whether there is room besides.

        Raises:
            WaitsForItselfError: It might.
        """
        for spot in spots_of(task):
            if spot.limit.waits and spot.address in task.arrival.chain:
                raise WaitsForItselfError(spot.label)

    def chained(self, task: Task) -> Task:
        """Return a request whose own requests know which limits it has room at."""
        chain = tuple(dict.fromkeys((*task.arrival.chain, *(spot.address for spot in spots_of(task)))))
        return structs.replace(task, arrival=structs.replace(task.arrival, chain=chain))

    def gate(self, spot: Spot, note: str) -> AnyGate:
        """Return the gate of a limit."""
        gate = self._gates.get(spot.address)
        if gate is None:
            gate = (
                SharedGate(self._space, spot.address, spot.label, spot.limit.max, note, partial(self.forget, spot))
                if self._is_shared
                else LocalGate(spot.limit.max)
            )
            self._gates[spot.address] = gate
        return gate

    def forget(self, spot: Spot) -> None:
        """Forget a gate that nobody uses."""
        gate = self._gates.get(spot.address)
        if gate is not None and gate.is_idle:
            del self._gates[spot.address]

    def explain(self, request_id: str) -> Explanation | None:
        """Say which limit a request waits for, if it waits for one in this process."""
        spot = self.waiting.get(request_id)
        if spot is None:
            return None
        gate = self._gates.get(spot.address)
        return Explanation(key=spot.label, policy="limit", waiting=0 if gate is None else gate.waiting)

    async def aclose(self) -> None:
        """Leave nobody in a line."""
        await asyncio.gather(*(gate.aclose() for gate in self._gates.values()))


def _standing(spot: Spot, note: str) -> Standing:
    limit = spot.limit
    return Standing(spot.address, LIMIT, limit.max, limit.on_limit, spot.label, limit.max_queued, note=note)
