"""Leases on runs: taken, kept, given up, and over."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from standfast.clock import seconds_between
from standfast.testing.conformance.runs.ground import FLOW, OTHER, OWNER, RUN, RunLockGround, Two, taken

RACERS: Final = 50


class LeasingCases(RunLockGround):
    """Taking, keeping and giving up a run."""

    async def test_a_free_run_is_leased(self, two: Two) -> None:
        """Whoever comes first has it, until an instant of the store's time."""
        lease = await taken(two.here.run_locks, lease=20)

        assert (lease.workflow, lease.run_id) == (FLOW, RUN)
        assert seconds_between(lease.since, lease.expires_at) == 20
        assert not lease.is_lost

    async def test_a_run_that_is_held_is_not_leased(self, two: Two) -> None:
        """The answer is None, at once."""
        await taken(two.here.run_locks)

        assert await two.there.run_locks.try_acquire(FLOW, RUN) is None

    async def test_two_activations_of_one_process_exclude_each_other(self, two: Two) -> None:
        """It is the activation that holds a run, not the process, the task or the object."""
        lease = await taken(two.here.run_locks)

        assert await two.here.run_locks.try_acquire(FLOW, RUN) is None
        assert not lease.is_lost

    async def test_a_released_run_is_leased_to_the_next_with_a_higher_fence(self, two: Two) -> None:
        """Releasing frees it for everybody."""
        first = await taken(two.here.run_locks)
        assert await first.release()

        second = await taken(two.there.run_locks)

        assert second.fence > first.fence

    async def test_releasing_twice_does_nothing(self, two: Two) -> None:
        """The second time nothing is held, and that is no error."""
        lease = await taken(two.here.run_locks)

        assert [await lease.release(), await lease.release()] == [True, False]

    async def test_a_released_lease_is_lost_to_its_holder(self, two: Two) -> None:
        """Who has released a run cannot go on with it, nor renew it."""
        lease = await taken(two.here.run_locks)
        await lease.release()

        assert lease.is_lost
        assert lease.lost.is_set()
        assert not await lease.renew()

    async def test_nothing_is_left_of_a_released_run(self, two: Two) -> None:
        """A run that is at rest costs no record."""
        lease = await taken(two.here.run_locks)
        await lease.release()

        assert await two.leftovers() == []

    async def test_runs_are_told_apart_by_workflow_and_id(self, two: Two) -> None:
        """Distinct ids are independent, and so is the same id under another workflow."""
        names = [("a", "1"), ("a", "2"), ("b", "1"), ("a/1", "x"), ("a", "1/x"), ("a", "1\0"), ("a", "1 ")]
        leases = [await two.here.run_locks.try_acquire(*each) for each in names]

        assert all(leases)
        assert [await two.there.run_locks.try_acquire(*each) for each in names] == [None] * len(names)

    async def test_of_many_racers_one_has_a_free_run(self, two: Two) -> None:
        """However many ask at once, here and there, one gets it."""
        locks = [two.here.run_locks, two.there.run_locks]
        answers = await asyncio.gather(*(locks[n % 2].try_acquire(FLOW, RUN) for n in range(RACERS)))

        assert sum(answer is not None for answer in answers) == 1

    async def test_closing_does_not_hand_a_leased_run_over(self, two: Two) -> None:
        """Its activation is told, but may not have stopped yet: others wait for the end of the lease."""
        lease = await taken(two.there.run_locks)
        await two.there.aclose()

        assert lease.is_lost
        if two.there.store is not two.here.store:
            assert await two.here.run_locks.try_acquire(FLOW, RUN) is None


class TokenCases(RunLockGround):
    """A lease named by a token of the caller's choice."""

    async def test_the_same_token_leases_again_and_prolongs(self, two: Two) -> None:
        """An activation that asks again keeps its lease and its fence, from now on."""
        first = await two.here.run_locks.try_acquire(FLOW, RUN, token=OWNER, lease="10s")
        again = await two.here.run_locks.try_acquire(FLOW, RUN, token=OWNER, lease="60s")

        assert first is not None
        assert again is first
        assert seconds_between(first.since, first.expires_at) >= 60

    async def test_a_token_counts_in_every_process(self, two: Two) -> None:
        """Whoever has the token goes on with the lease: with the same fence, and able to release."""
        first = await two.here.run_locks.try_acquire(FLOW, RUN, token=OWNER)
        second = await two.there.run_locks.try_acquire(FLOW, RUN, token=OWNER)

        assert first is not None
        assert second is not None
        assert second.fence == first.fence
        assert await two.there.run_locks.release(FLOW, RUN, token=OWNER)

    async def test_another_token_waits_for_the_release(self, two: Two) -> None:
        """No, until the owner lets go; then yes."""
        locks = two.there.run_locks
        await two.here.run_locks.try_acquire(FLOW, RUN, token=OWNER)

        assert await locks.try_acquire(FLOW, RUN, token=OTHER) is None
        assert await two.here.run_locks.release(FLOW, RUN, token=OWNER)
        assert await locks.try_acquire(FLOW, RUN, token=OTHER) is not None

    async def test_another_token_releases_nothing(self, two: Two) -> None:
        """Only the holder's own lease is given up."""
        lease = await taken(two.here.run_locks)

        assert not await two.here.run_locks.release(FLOW, RUN, token=OTHER)
        assert await two.there.run_locks.try_acquire(FLOW, RUN) is None
        assert await lease.renew()

    async def test_another_token_renews_nothing(self, two: Two) -> None:
        """Only the holder's own lease is prolonged."""
        lease = await taken(two.here.run_locks, lease=20)
        answer = await two.there.run_locks.renew(FLOW, RUN, token=OTHER, lease="10 minutes")
        info = await two.there.run_locks.get(FLOW, RUN)

        assert (bool(answer), answer.taken_by) == (False, (lease.holder,))
        assert info is not None
        assert info.expires_at == lease.expires_at

    async def test_a_released_token_begins_anew(self, two: Two) -> None:
        """A token can be used again; it is another lease then, with a higher fence."""
        first = await two.here.run_locks.try_acquire(FLOW, RUN, token=OWNER)
        assert first is not None
        await first.release()
        second = await two.here.run_locks.try_acquire(FLOW, RUN, token=OWNER)

        assert second is not None
        assert second.fence > first.fence
        assert [first.is_lost, second.is_lost] == [True, False]

    async def test_a_lapsed_token_begins_anew(self, two: Two) -> None:
        """After the end the same token is another lease, with a higher fence; the old one stays lost."""
        first = await two.here.run_locks.try_acquire(FLOW, RUN, token=OWNER, lease=two.brief)
        assert first is not None
        await two.until(first.expires_at)
        second = await two.here.run_locks.try_acquire(FLOW, RUN, token=OWNER)

        assert second is not None
        assert second.fence > first.fence
        assert first.is_lost
        assert not second.is_lost


class LapsingCases(RunLockGround):
    """Leases that end, and what their holders can still do."""

    async def test_a_lapsed_run_is_taken_over_with_a_higher_fence(self, two: Two) -> None:
        """Whoever comes first after the end has it."""
        old = await two.lapsed(always=True)
        new = await taken(two.there.run_locks)

        assert new.fence > old.fence
        assert old.is_lost

    async def test_a_lease_lasts_until_its_instant_and_not_a_moment_longer(self, two: Two) -> None:
        """One microsecond before the end it is held; at the end it is free."""
        if two.clock is None:
            pytest.skip("needs a clock that can be stopped: no clock fixture")
        await taken(two.here.run_locks, lease=two.brief)
        two.clock.advance(two.brief - 0.000_001)
        assert await two.there.run_locks.try_acquire(FLOW, RUN) is None
        two.clock.advance(0.000_001)

        assert await two.there.run_locks.try_acquire(FLOW, RUN) is not None

    async def test_of_many_racers_one_takes_over(self, two: Two) -> None:
        """A lease that a dead process has left is taken over in one step: there are no two winners."""
        await two.lapsed()
        locks = [two.here.run_locks, two.there.run_locks]
        answers = await asyncio.gather(*(locks[n % 2].try_acquire(FLOW, RUN) for n in range(RACERS)))

        assert sum(answer is not None for answer in answers) == 1

    async def test_the_old_holder_releases_nothing_after_a_take_over(self, two: Two) -> None:
        """Its release is for a lease that is over."""
        old = await two.lapsed()
        new = await taken(two.there.run_locks)

        assert not await old.release()
        assert await new.renew()

    async def test_the_old_holder_renews_nothing_after_a_take_over(self, two: Two) -> None:
        """It is told who has the run now."""
        old = await two.lapsed()
        new = await taken(two.there.run_locks)
        answers = [await old.renew(), await two.here.run_locks.renew(FLOW, RUN, token=old.token)]

        assert [bool(answer) for answer in answers] == [False, False]
        assert [answer.taken_by for answer in answers] == [(new.holder,)] * 2

    async def test_a_lapsed_lease_is_not_renewed_even_if_the_run_is_free(self, two: Two) -> None:
        """What is over is over; the answer says that the run can be leased again."""
        old = await two.lapsed()
        by_hand = await two.here.run_locks.renew(FLOW, RUN, token=old.token)
        by_lease = await old.renew()

        assert (bool(by_hand), by_hand.free) == (False, True)
        assert (bool(by_lease), by_lease.free) == (False, True)
        assert await two.here.run_locks.get(FLOW, RUN) is None

    async def test_a_renewed_lease_lasts_longer_and_keeps_its_fence(self, two: Two) -> None:
        """Renewing counts from the store's present time, and nothing that churns can fence its own holder."""
        lease = await taken(two.here.run_locks, lease=two.brief)
        fence, before = lease.fence, lease.expires_at
        answer = await lease.renew("10 minutes")
        info = await two.there.run_locks.get(FLOW, RUN)

        assert answer
        assert (answer.fence, lease.fence) == (fence, fence)
        assert answer.lease_expires_at == lease.expires_at > before
        assert info is not None
        assert (info.expires_at, info.fence) == (lease.expires_at, fence)

    async def test_a_renewed_lease_outlives_its_first_end(self, two: Two) -> None:
        """Others go by the new end."""
        lease = await taken(two.here.run_locks, lease=two.brief)
        first_end = lease.expires_at
        await lease.renew("10 minutes")
        await two.until(first_end)

        assert await two.there.run_locks.try_acquire(FLOW, RUN) is None
        assert not lease.is_lost

    async def test_a_lease_can_be_made_shorter(self, two: Two) -> None:
        """Renewing sets the end, it does not add to it."""
        lease = await taken(two.here.run_locks, lease=600)
        assert await lease.renew(two.brief)
        await two.until(lease.expires_at)

        assert lease.is_lost
        assert await two.there.run_locks.try_acquire(FLOW, RUN) is not None

    async def test_nothing_is_left_after_a_take_over_and_release(self, two: Two) -> None:
        """A lease that a dead process has left is swept up by whoever takes over."""
        await two.lapsed()
        await (await taken(two.there.run_locks)).release()

        assert await two.leftovers() == []
