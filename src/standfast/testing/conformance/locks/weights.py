"""Weights and sizes: several permits at once, and a number of permits that changes while they are in use."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.errors import TooHeavyError, WouldWaitError
from standfast.events import PermitsDisagree
from standfast.locks import PermitsWarning
from standfast.testing.conformance.locks.ground import (
    KEY,
    LockGround,
    all_of,
    at_rest,
    entered,
    head_of,
    leftovers,
    passes,
    queued,
    waiters_of,
    waiting,
)

if TYPE_CHECKING:
    from standfast.events import Event
    from standfast.locks import Semaphore
    from standfast.space import Space
    from standfast.testing.conformance.locks.ground import OpenSpace


def three(space: Space) -> Semaphore:
    """Return a semaphore of three permits."""
    return space.semaphore(KEY, permits=3)


class WeightCases(LockGround):
    """Holds that take several permits together."""

    async def test_weights_add_up(self, space: Space, other: Space) -> None:
        """Two and one fit into three, two and two do not."""
        async with three(space).hold(2):
            await passes(three(other).try_hold(1, owner="somebody else"))
            with pytest.raises(WouldWaitError):
                await passes(three(other).try_hold(2, owner="somebody else"))

    async def test_never_more_weight_is_held_than_there_is(self, space: Space, other: Space) -> None:
        """Whatever the mixture, and however many processes."""
        held, most = 0, 0

        async def work(n: int) -> None:
            nonlocal held, most
            weight = n % 3 + 1
            async with three((space, other)[n % 2]).hold(weight):
                held += weight
                most = max(most, held)
                await asyncio.sleep(0)
                held -= weight

        await asyncio.gather(*(work(n) for n in range(18)))
        assert most == 3
        await at_rest(space)

    async def test_a_heavy_one_is_not_starved(self, space: Space, other: Space) -> None:
        """One that needs three waits in front; ones that need one come behind it, though there is room for them."""
        first, second = await entered(three(space).hold()), await entered(three(space).hold())
        heavy = await waiting(other, three(other).hold(3))
        light = await waiting(other, three(other).hold(1))
        await first.leave()
        assert not light.is_inside

        await second.leave()
        await heavy.hold()
        assert not light.is_inside
        await all_of([heavy, light])

    async def test_all_that_fit_get_in_together(self, space: Space, other: Space) -> None:
        """One heavy holder leaves: as many light ones as fit are let in at once."""
        heavy = await entered(three(space).hold(3))
        light = [await waiting(other, three(other).hold()) for _ in range(4)]
        await heavy.leave()

        for client in light[:3]:
            await client.hold()
        assert not light[3].is_inside
        await all_of(light)

    @pytest.mark.parametrize("weight", [4, 1_000])
    async def test_more_than_there_is_is_refused(self, space: Space, weight: int) -> None:
        """Waiting for it would never end."""
        with pytest.raises(TooHeavyError) as caught:
            await passes(three(space).hold(weight))
        assert (caught.value.weight, caught.value.permits) == (weight, 3)
        assert await leftovers(space) == []


class ResizingCases(LockGround):
    """A number of permits that is changed, or that call sites do not agree about."""

    async def test_fewer_permits_turn_nobody_out(self, space: Space, other: Space) -> None:
        """Those who hold go on; there are no new grants until enough of them have left."""
        holders = [await entered(three(space).hold()) for _ in range(3)]
        await three(other).resize(1)
        waiter = await waiting(other, three(other).hold())

        for holder in holders[:2]:
            (await holder.hold()).check()
            await holder.leave()
            assert [each.ticket for each in await waiters_of(space)] == [0]
        await holders[2].leave()
        await all_of([waiter])

    async def test_more_permits_let_in_all_that_fit(self, space: Space, other: Space) -> None:
        """At once, in every process, and no more than fit."""
        holder = await entered(three(space).hold(3))
        waiters = [await waiting(space, three((space, other)[n % 2]).hold()) for n in range(4)]

        await three(space).resize(6)

        for client in waiters[:3]:
            await client.hold()
        await queued(space, 1)
        await holder.leave()
        await all_of(waiters)

    async def test_a_size_that_was_set_counts_for_everybody(self, space: Space, other: Space) -> None:
        """Also when nobody uses the semaphore meanwhile, whatever call sites say."""
        await three(space).resize(1)

        async with three(other).hold():
            with pytest.raises(WouldWaitError):
                await passes(three(space).try_hold(owner="somebody else"))

    async def test_a_size_can_be_forgotten(self, space: Space, other: Space) -> None:
        """From then on call sites say the number again, and nothing is left of it."""
        await three(space).resize(1)
        await three(space).forget_size()

        await passes(three(other).hold(3))
        assert await leftovers(space) == []

    async def test_one_that_became_too_heavy_is_told(self, space: Space, other: Space) -> None:
        """Permits are taken away while it waits for more than are left: it would hold up everyone, for ever."""
        holder = await entered(three(space).hold(3))
        heavy = await waiting(other, three(other).hold(3))
        light = await waiting(space, three(space).hold(1))

        await three(space).resize(2)
        await holder.leave()

        with pytest.raises(TooHeavyError):
            await heavy.hold()
        await all_of([light])
        await three(space).forget_size()
        await at_rest(space)

    async def test_a_call_site_that_disagrees_is_told(self, open_space: OpenSpace, space: Space) -> None:
        """Another process says five while three are in use: the line's number counts, and a hook hears of it, once."""
        told: list[Event] = []
        other = await open_space(told=told)
        holder = await entered(three(space).hold(3))

        for _ in range(2):
            with pytest.raises(WouldWaitError):
                await passes(other.semaphore(KEY, permits=5).try_hold(2))

        [event] = [event for event in told if isinstance(event, PermitsDisagree)]
        assert (event.stored, event.asked) == (3, 5)
        await holder.leave()

    async def test_without_hooks_one_is_warned(self, space: Space, other: Space) -> None:
        """A disagreement is a mistake in the program: it is not passed over in silence."""
        holder = await entered(three(space).hold(2))
        with pytest.warns(PermitsWarning, match="says 5 permits of account-42, and its line has 3"):
            await passes(other.semaphore(KEY, permits=5).hold())
        await holder.leave()

    async def test_an_idle_semaphore_takes_the_next_number(self, space: Space, other: Space) -> None:
        """With nobody in the line there is nothing to disagree with."""
        await passes(three(space).hold(3))
        await passes(other.semaphore(KEY, permits=5).hold(5))
        assert await head_of(space) is None
