"""Who is inside of a lock at the same time: one, those of a mode, or those whose weights fit."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from standfast.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    LockMismatchError,
    ReentryError,
    StoreClosedError,
    TooHeavyError,
    UsageError,
    WouldWaitError,
)
from standfast.events import PermitsDisagree
from standfast.keys import KeyFamily
from standfast.locks import PermitsWarning
from standfast.stores import Put
from standfast.testing.conformance.locks.ground import (
    KEY,
    SOON,
    LockGround,
    all_of,
    at_rest,
    entered,
    head_of,
    leftovers,
    passes,
    queued,
    read_write,
    waiters_of,
    waiting,
)
from standfast.threads import run_beside

if TYPE_CHECKING:
    from standfast.events import Event
    from standfast.locks import ModeLock, Semaphore
    from standfast.space import Space
    from standfast.testing.conformance.locks.ground import Kind, OpenSpace


REPO = KeyFamily("lock-conformance-repo")


class ExclusionCases(LockGround):
    """Who may be inside together, and until when."""

    async def test_what_is_taken_is_waited_for(self, space: Space, other: Space, kind: Kind) -> None:
        """While one process has all of it, another gets no part of it; it gets in as soon as the first has left."""
        holder = await entered(kind.alone(space))
        waiter = await waiting(other, kind.one(other))
        assert not waiter.is_inside

        await holder.leave()

        assert (await waiter.hold()).fence > 0
        await waiter.leave()

    async def test_as_many_as_fit_hold_together(self, space: Space, other: Space, kind: Kind) -> None:
        """None waits while there is room, and one more than fits does."""
        holders = [await entered(kind.one((space, other)[n % 2])) for n in range(kind.width)]

        with pytest.raises(WouldWaitError) as caught:
            await passes(kind.make(other, KEY).try_hold(*kind.whole))

        assert len(caught.value.holders) == kind.width
        for holder in holders:
            await holder.leave()

    async def test_never_more_are_inside_than_fit(self, space: Space, other: Space, kind: Kind) -> None:
        """However many ask at once in two processes, and whatever they await inside."""
        inside: list[int] = []
        most = 0

        async def work(n: int) -> None:
            nonlocal most
            async with kind.one((space, other)[n % 2]):
                inside.append(n)
                most = max(most, len(inside))
                await asyncio.sleep(0)
                inside.remove(n)

        await asyncio.gather(*(work(n) for n in range(12)))
        assert 1 <= most <= kind.width
        await at_rest(space)

    async def test_no_change_made_inside_is_lost(self, space: Space, other: Space, kind: Kind) -> None:
        """What is read and written back under the whole lock counts every one, though the writes are unguarded."""
        key = space.key("count")

        async def count(n: int) -> None:
            here = (space, other)[n % 2]
            async with kind.alone(here):
                record = (await here.read(key)).get(key)
                value, version = (b"0", 0) if record is None else (record.value, record.version)
                await asyncio.sleep(0)
                await here.commit(Put(key, b"%d" % (int(value) + 1), version))

        await asyncio.gather(*(count(n) for n in range(10)))
        assert (await space.read(key)).records[key].value == b"10"

    async def test_it_is_given_back_when_the_block_raises(self, space: Space, other: Space, kind: Kind) -> None:
        """The exception of the block comes out as it is, and the next one gets in."""
        with pytest.raises(ZeroDivisionError):
            async with kind.alone(space):
                raise ZeroDivisionError

        assert await leftovers(other) == []
        await passes(kind.alone(other))

    async def test_try_hold_takes_what_is_free(self, space: Space, kind: Kind) -> None:
        """It holds like any other hold does."""
        async with kind.try_one(space) as hold:
            assert not hold.is_lost
        assert await leftovers(space) == []

    async def test_try_hold_does_not_wait(self, space: Space, other: Space, kind: Kind) -> None:
        """It says who is in the way, and leaves no entry in the line."""
        async with kind.alone(space, owner="the holder"):
            with pytest.raises(WouldWaitError, match="the holder"):
                await passes(kind.try_one(other))
        assert await leftovers(space) == []

    async def test_keys_are_independent(self, space: Space, kind: Kind) -> None:
        """A holder of one key keeps no one from another, nor from the same text in a family."""
        async with kind.alone(space, "a"), kind.alone(space, "b"), space.mutex(REPO("a")).hold():
            await passes(kind.alone(space, "a:b"))
            await passes(space.mutex(REPO("a", "b")).hold())

    async def test_tenants_are_independent(self, open_space: OpenSpace, kind: Kind) -> None:
        """The same key of two tenants is two locks."""
        ours, theirs = await open_space(tenant="ours"), await open_space(tenant="theirs")
        async with kind.alone(ours):
            await passes(kind.alone(theirs))

    async def test_one_holding_serves_one_block_at_a_time(self, space: Space, kind: Kind) -> None:
        """Entering what is entered is refused, and takes nothing away from the block that is inside."""
        holding = kind.one(space)
        async with holding as hold:
            with pytest.raises(UsageError):
                await holding.__aenter__()
            hold.check()

    async def test_one_holding_serves_one_block_after_another(self, space: Space, kind: Kind) -> None:
        """After a block it can be entered anew, with another fence."""
        holding = kind.alone(space)
        assert await passes(holding) < await passes(holding)

    async def test_a_holding_that_was_not_entered_cannot_be_left(self, space: Space, kind: Kind) -> None:
        """It says so, instead of giving back what it does not have."""
        with pytest.raises(UsageError):
            await kind.one(space).__aexit__(None, None, None)

    async def test_a_function_holds_the_lock_while_it_runs(self, space: Space, kind: Kind) -> None:
        """Each call of a decorated function takes it anew; calls at the same time take turns."""
        inside = 0

        @kind.alone(space)
        async def work(number: int) -> int:
            nonlocal inside
            inside += 1
            await asyncio.sleep(0)
            inside -= 1
            return number + inside

        assert await asyncio.gather(*(work(n) for n in range(5))) == [0, 1, 2, 3, 4]
        assert work.__name__ == "work"

    async def test_a_function_that_is_not_async_is_refused(self, space: Space, kind: Kind) -> None:
        """It would be over before the lock was taken."""
        with pytest.raises(ArgumentTypeError):
            kind.one(space)(print)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] -- refused, whatever the types say

    async def test_who_would_wait_for_itself_is_refused(self, space: Space, kind: Kind) -> None:
        """A task that holds it asks again: it would wait for ever, so it is told at once, and where it took it."""
        async with kind.alone(space):
            with pytest.raises(ReentryError, match=r"since \S+\.py:\d+ and asked for it again at \S+\.py:\d+"):
                await passes(kind.one(space))
        assert await leftovers(space) == []

    async def test_an_owner_is_known_in_every_process(self, space: Space, other: Space, kind: Kind) -> None:
        """Two spaces that act for one owner cannot wait for each other."""
        async with kind.alone(space, owner="order-7"):
            with pytest.raises(ReentryError, match="since somewhere else"):
                await passes(kind.one(other, owner="order-7"))

    async def test_a_key_is_one_kind_of_lock(self, space: Space, other: Space) -> None:
        """While it is in use as a mutex it is no semaphore; when it is free it can be."""
        async with space.mutex(KEY).hold():
            for asked in (other.semaphore(KEY, permits=1).hold(), read_write(other).hold("read")):
                with pytest.raises(LockMismatchError):
                    await passes(asked)
        await passes(other.semaphore(KEY, permits=1).hold())

    async def test_a_mode_lock_keeps_its_modes(self, space: Space, other: Space) -> None:
        """A call site for which writers share would let two in: it is refused."""
        async with read_write(space).hold("write"):
            with pytest.raises(LockMismatchError, match="other modes"):
                await passes(other.mode_lock(KEY, modes=("write",)).hold("write"))

    async def test_an_unknown_mode_is_refused(self, space: Space) -> None:
        """A mode that was not declared is probably misspelt."""
        with pytest.raises(InvalidArgumentError):
            read_write(space).hold("wrote")

    async def test_a_closed_space_gives_no_locks(self, space: Space, kind: Kind) -> None:
        """It says that it was closed."""
        await space.aclose()
        with pytest.raises(StoreClosedError):
            await passes(kind.one(space))

    async def test_a_space_that_is_closed_keeps_nobody_waiting(self, space: Space, other: Space, kind: Kind) -> None:
        """Its waiters are told, and are not in the line any more."""
        holder = await entered(kind.alone(other))
        waiter = await waiting(space, kind.one(space))

        await space.aclose()

        with pytest.raises(StoreClosedError):
            await waiter.hold()
        await holder.leave()
        assert await leftovers(other) == []

    async def test_a_space_belongs_to_one_loop(self, space: Space, kind: Kind) -> None:
        """On another loop it is refused, and goes on working on its own."""

        async def elsewhere() -> None:
            with pytest.raises(UsageError):
                await passes(kind.one(space))

        async with asyncio.timeout(SOON):
            await run_beside(elsewhere, "elsewhere")
        await passes(kind.one(space))

    async def test_many_locks_are_held_at_once(self, space: Space, other: Space) -> None:
        """One task may hold many keys; all are given back."""
        async with contextlib.AsyncExitStack() as stack:
            for n in range(50):
                await stack.enter_async_context(space.mutex(f"key-{n}").hold())
            with pytest.raises(WouldWaitError):
                await passes(other.mutex("key-49").try_hold(owner="another owner"))
        assert await leftovers(other) == []


GRAPH = KeyFamily("lock-conformance-graph", modes=("read", "index"), alone=("write",))


TOGETHER = {("read", "read"), ("index", "index")}


def graph(space: Space) -> ModeLock:
    """Return a lock with two modes that share and one that does not."""
    return space.mode_lock(KEY, modes=("read", "index"), alone=("write",))


class ModeCases(LockGround):
    """Locks that are held in one mode or another."""

    @pytest.mark.parametrize("asked", ["read", "index", "write"])
    @pytest.mark.parametrize("held", ["read", "index", "write"])
    async def test_only_holders_of_one_shared_mode_are_together(
        self, space: Space, other: Space, held: str, asked: str
    ) -> None:
        """Each mode with each other: the matrix."""
        holder = await entered(graph(space).hold(held))
        try:
            await passes(graph(other).try_hold(asked))
        except WouldWaitError:
            together = False
        else:
            together = True
        assert together == ((held, asked) in TOGETHER)
        await holder.leave()

    async def test_a_reader_does_not_pass_a_writer(self, space: Space, other: Space) -> None:
        """While a writer waits, readers come behind it, though they could read with those inside."""
        reader = await entered(read_write(space).hold("read"))
        writer = await waiting(space, read_write(other).hold("write"))
        with pytest.raises(WouldWaitError):
            await passes(read_write(other).try_hold("read"))
        late = await waiting(space, read_write(space).hold("read"))

        await reader.leave()
        await writer.hold()
        assert not late.is_inside
        await all_of([writer, late])

    async def test_readers_behind_a_writer_get_in_together(self, space: Space, other: Space) -> None:
        """As many as stand together in the line, in every process."""
        writer = await entered(read_write(space).hold("write"))
        readers = [await waiting(space, read_write((space, other)[n % 2]).hold("read")) for n in range(4)]
        last = await waiting(space, read_write(other).hold("write"))

        await writer.leave()
        for reader in readers:
            await reader.hold()
        assert not last.is_inside
        await all_of([*readers, last])

    async def test_the_hold_says_its_mode(self, space: Space) -> None:
        """For the code that is handed a hold."""
        async with read_write(space).hold("read") as hold:
            assert hold.mode == "read"

    async def test_one_who_reads_cannot_wait_to_write(self, space: Space) -> None:
        """It would wait for itself to stop reading."""
        async with read_write(space).hold("read"):
            with pytest.raises(ReentryError):
                await passes(read_write(space).hold("write"))
        assert await leftovers(space) == []

    async def test_one_who_reads_cannot_read_again_behind_a_writer(self, space: Space, other: Space) -> None:
        """The writer waits for the reader, and the reader would wait for the writer."""
        async with read_write(space).hold("read"):
            writer = await waiting(space, read_write(other).hold("write"))
            with pytest.raises(ReentryError):
                await passes(read_write(space).hold("read"))
        await all_of([writer])

    async def test_one_who_reads_may_read_again(self, space: Space) -> None:
        """With no one in between it need not wait."""
        async with read_write(space).hold("read"):
            await passes(read_write(space).hold("read"))
        assert await leftovers(space) == []

    async def test_a_family_brings_its_modes_along(self, space: Space, other: Space) -> None:
        """They are declared once, with the keys."""
        holder = await entered(space.mode_lock(GRAPH("a")).hold("read"))
        await passes(other.mode_lock(GRAPH("a")).try_hold("read"))
        with pytest.raises(WouldWaitError):
            await passes(other.mode_lock(GRAPH("a")).try_hold("write"))
        await holder.leave()


def three(space: Space) -> Semaphore:
    """Return a semaphore of three permits."""
    return space.semaphore(KEY, permits=3)


class WeightCases(LockGround):
    """Holds that take several permits together."""

    async def test_weights_add_up(self, space: Space, other: Space) -> None:
        """Two and one fit into three, two and two do not."""
        async with three(space).hold(2):
            await passes(three(other).try_hold(1, owner="another owner"))
            with pytest.raises(WouldWaitError):
                await passes(three(other).try_hold(2, owner="another owner"))

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
        """Holders go on; there are no new grants until enough of them have left."""
        holders = [await entered(three(space).hold()) for _ in range(3)]
        await three(other).resize(1)
        waiter = await waiting(other, three(other).hold())
        stands = [each.ticket for each in await waiters_of(space)]

        for holder in holders[:2]:
            (await holder.hold()).check()
            await holder.leave()
            assert [each.ticket for each in await waiters_of(space)] == stands
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
        """Also when the semaphore is not used meanwhile, whatever call sites say."""
        await three(space).resize(1)

        async with three(other).hold():
            with pytest.raises(WouldWaitError):
                await passes(three(space).try_hold(owner="another owner"))

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
        """With an empty line there is nothing to disagree with."""
        await passes(three(space).hold(3))
        await passes(other.semaphore(KEY, permits=5).hold(5))
        assert await head_of(space) is None
