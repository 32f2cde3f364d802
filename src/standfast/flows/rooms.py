"""Room for one request at all of its limits: taken as far as it is there, waited for, and given back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias, final

from standfast.errors import (
    ArbiterUnavailableError,
    QueueFullError,
    QueueTimeoutError,
    StoreError,
    TooManyRequestsError,
    WaitsForItselfError,
)
from standfast.flows.circling import LONGEST, Waiter
from standfast.flows.gates import LocalGate, SharedGate
from standfast.flows.limits import SAID
from standfast.flows.spots import Spot, spots_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.flows.gates import Permit
    from standfast.flows.limiting import Limiting
    from standfast.flows.tasks import Task

AnyGate = LocalGate | SharedGate

Refuse: TypeAlias = "Callable[[WaitsForItselfError], None]"
"""Ends the waiting of a request."""


@final
class Room:
    """Room for one request at all of its limits: taken as far as it is there, waited for, and given back.

    Whoever took some of it gives it back, also if the rest did not come.
    """

    __slots__ = ("_durable", "_limiting", "_missing", "_priority", "_refuse", "_taken", "_task")

    def __init__(self, limiting: Limiting, task: Task, refuse: Refuse | None, *, durable: bool) -> None:
        self._limiting, self._task, self._refuse, self._durable = limiting, task, refuse, durable
        own = task.arrival.priority
        self._priority: Final = task.action.priority if own is None else own
        self._missing: Final = list(spots_of(task))
        self._taken: Final[list[tuple[Spot, AnyGate, Permit]]] = []

    async def take_at_once(self) -> bool:
        """Take what is free; tell whether that is all.

        Raises:
            TooManyRequestsError: A limit has no room, and the request does not wait.
            QueueFullError: As many wait as may.
            WaitsForItselfError: Those who wait for it have the room that it would wait for.
            ArbiterUnavailableError: The store does not answer.
        """
        while self._missing:
            spot = self._missing[0]
            gate = self._limiting.gate(spot, self._task.name)
            is_taken, permit = await _try_take(gate)
            if not is_taken:
                if not self._durable:
                    check_may_wait(spot, gate.waiting)
                    self._check_chain(spot)
                return False
            self._taken.append((self._missing.pop(0), gate, permit))
        return True

    async def wait(self) -> None:
        """Wait for what is missing.

        Raises:
            QueueTimeoutError: It did not come in time.
            QueueFullError: As many wait as may.
            WaitsForItselfError: Those who wait for it have the room that it would wait for.
            ArbiterUnavailableError: The store does not answer.
        """
        waiting, circles = self._limiting.waiting, self._limiting.circles
        try:
            while self._missing:
                spot = waiting[self._task.id] = self._missing[0]
                gate = self._limiting.gate(spot, self._task.name)
                if spot.limit.max == 1:
                    circles.wait(self._waiter(spot))
                permit = await self._wait_at(spot, gate)
                circles.go_on(self._task.id)
                self._taken.append((self._missing.pop(0), gate, permit))
        finally:
            circles.go_on(self._task.id)
            waiting.pop(self._task.id, None)

    def _waiter(self, spot: Spot) -> Waiter:
        task, own = self._task, {each.address for each in self._missing}
        around = (*task.arrival.chain, *(() if task.address is None else (task.address,)))
        holds = (*around, *(each.address for each, _, _ in self._taken))
        kept = tuple([each for each in holds if each not in own])
        return Waiter(task.id, spot.address, spot.label, kept, task.is_called, self._refuse)

    def _check_chain(self, spot: Spot) -> None:
        """Refuse to wait for room that is not given back before this request has ended."""
        if spot.address in self._task.arrival.chain:
            raise WaitsForItselfError(spot.label, self._task.id)

    async def _wait_at(self, spot: Spot, gate: AnyGate) -> Permit:
        if not self._durable and spot.address in self._task.arrival.chain:
            is_taken, permit = await _try_take(gate)
            if not is_taken:
                self._check_chain(spot)
            return permit
        ttl = None if self._durable else spot.limit.ttl
        if ttl is None and self._task.is_called:
            ttl = LONGEST
        limit = asyncio.timeout(ttl)
        try:
            async with limit:
                return await gate.take(self._priority)
        except TimeoutError:
            if not limit.expired():
                raise
            raise QueueTimeoutError(spot.label, ttl or 0.0) from None
        except StoreError as problem:
            raise ArbiterUnavailableError(str(problem)) from problem

    def give_back(self) -> None:
        """Let the next ones in."""
        while self._taken:
            spot, gate, permit = self._taken.pop()
            gate.give_back(permit)
            self._limiting.forget(spot)
        for spot in self._missing:
            self._limiting.forget(spot)


async def _try_take(gate: AnyGate) -> tuple[bool, Permit]:
    try:
        return await gate.try_take()
    except StoreError as problem:
        raise ArbiterUnavailableError(str(problem)) from problem


def check_may_wait(spot: Spot, waiting: int) -> None:
    """Refuse one that does not wait, and one too many."""
    if not spot.limit.waits:
        raise no_room(spot)
    if spot.limit.max_queued is not None and waiting >= spot.limit.max_queued:
        raise QueueFullError(spot.label, waiting, SAID)


def no_room(spot: Spot) -> TooManyRequestsError:
    """Return what one is told that does not wait."""
    return TooManyRequestsError(f"running requests at {spot.label}", spot.limit.max, SAID)
