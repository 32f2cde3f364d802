"""What every arbiter promises: each policy, collisions, cancellations and commits, whoever keeps the lines."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeAlias

import pytest

from standfast.clock import Instant
from standfast.errors import (
    QueueFullError,
    QueueTimeoutError,
    RequestCancelledError,
    RequestInterruptedError,
    RequestRejectedError,
    RequestSupersededError,
)
from standfast.flows.arbiter.protocol import JoinsError, Stop, queue_rules_of
from standfast.policies import Queue
from tests.conformance.arbiter_visits import (
    HASTY,
    JOIN,
    LATEST,
    QUEUE,
    REJECT,
    RESTART,
    Visit,
    ask,
    failing,
    leaves,
    putting,
)

if TYPE_CHECKING:
    from standfast.flows.arbiter.protocol import Arbiter
    from standfast.space import Space

    Pair: TypeAlias = tuple[Arbiter, Arbiter]


class ArbiterContract:
    """The contract as tests: subclass it and provide ``arbiters``, two of them for one app, and its ``space``."""

    @pytest.fixture
    def arbiters(self) -> Pair:
        """Two arbiters of one app: the same one twice, if there is only one server."""
        raise NotImplementedError

    @pytest.fixture
    def space(self) -> Space:
        """The space of the first."""
        raise NotImplementedError

    # --- queue ---------------------------------------------------------------------------------------------------

    async def test_a_queue_runs_one_at_a_time_in_the_order_of_arrival(self, arbiters: Pair) -> None:
        """First come, first served, whichever process they came to."""
        first = await Visit(arbiters[0], ask("r0")).runs()
        others = [await Visit(arbiters[number % 2], ask(f"r{number}")).waits() for number in range(1, 5)]
        assert [each.position for each in others] == [1, 2, 3, 4]
        await first.end()
        for each in others:
            assert not any(other.inside.is_set() for other in others if other is not each and not other.task.done())
            await (await each.runs()).end()

    async def test_distinct_keys_run_side_by_side(self, arbiters: Pair) -> None:
        """Only requests of one key collide."""
        one = await Visit(arbiters[0], ask("r1", key="s-1")).runs()
        other = await Visit(arbiters[1], ask("r2", key="s-2")).runs()
        assert [await one.end(), await other.end()] == ["r1", "r2"]

    async def test_a_queue_that_is_full_refuses_the_next_one(self, arbiters: Pair) -> None:
        """The refused one is told how many wait and when to come back; one that leaves makes room."""
        short = queue_rules_of(Queue(max_waiting=1))
        first = await Visit(arbiters[0], ask("r1", short)).runs()
        second = await Visit(arbiters[1], ask("r2", short)).waits()
        with pytest.raises(QueueFullError) as refused:
            await Visit(arbiters[0], ask("r3", short)).ended()
        assert (refused.value.waiting, refused.value.retry_after >= 1) == (1, True)
        second.task.cancel()
        await leaves(arbiters[0], "r2")
        third = await Visit(arbiters[0], ask("r4", short)).waits()
        await first.end()
        assert await third.end() == "r4"

    async def test_a_turn_that_does_not_come_in_time_is_not_waited_for(self, arbiters: Pair) -> None:
        """It ends with an error of its own, has left the line, and is not in anybody's way."""
        first = await Visit(arbiters[0], ask("r1")).runs()
        with pytest.raises(QueueTimeoutError) as late:
            await Visit(arbiters[1], ask("r2", queue_rules_of(Queue(timeout="50ms")))).ended()
        assert late.value.seconds == 0.05
        assert (await arbiters[0].look(ask("").address)).waiters == ()
        await first.end()
        await (await Visit(arbiters[1], ask("r3", REJECT)).runs()).end()

    # --- reject --------------------------------------------------------------------------------------------------

    async def test_a_rejected_one_is_told_who_runs_and_since_when(self, arbiters: Pair) -> None:
        """By the line as the refusal saw it; and after the holder has ended, the key is free."""
        first = await Visit(arbiters[0], ask("r1", REJECT)).runs()
        with pytest.raises(RequestRejectedError) as refused:
            await Visit(arbiters[1], ask("r2", REJECT)).ended()
        assert first.turn is not None
        told = refused.value
        assert (told.request_id, told.since, told.holder_status, told.holder_is_durable) == (
            "r1",
            first.turn.since,
            "running",
            False,
        )
        await first.end()
        await (await Visit(arbiters[1], ask("r3", REJECT)).runs()).end()

    async def test_reject_and_queue_share_one_line(self, arbiters: Pair) -> None:
        """What does not wait is refused behind a queue, and a queue waits behind it."""
        first = await Visit(arbiters[0], ask("r1", REJECT)).runs()
        second = await Visit(arbiters[1], ask("r2", QUEUE)).waits()
        with pytest.raises(RequestRejectedError):
            await Visit(arbiters[1], ask("r3", REJECT)).ended()
        await first.end()
        await (await second.runs()).end()

    async def test_of_many_at_once_one_gets_in(self, arbiters: Pair) -> None:
        """Two callers at the same instant cannot both win."""
        visits = [Visit(arbiters[number % 2], ask(f"r{number}", REJECT)) for number in range(6)]
        [winner] = [each for each in visits if await each.gets_in()]
        assert await winner.end() in {f"r{number}" for number in range(6)}

    async def test_a_body_that_raises_frees_the_key(self, arbiters: Pair) -> None:
        """Its exception comes out as it is."""
        with pytest.raises(ZeroDivisionError):
            async with arbiters[0].hold(ask("r1")):
                raise ZeroDivisionError
        await (await Visit(arbiters[1], ask("r2", REJECT)).runs()).end()

    # --- join ----------------------------------------------------------------------------------------------------

    async def test_a_join_is_told_the_run_in_flight_of_the_same_action(self, arbiters: Pair) -> None:
        """It is not run, and follows the other one."""
        first = await Visit(arbiters[0], ask("r1", JOIN)).runs()
        with pytest.raises(JoinsError) as joined:
            await Visit(arbiters[1], ask("r2", JOIN)).ended()
        assert joined.value.who.id == "r1"
        await first.end()
        await (await Visit(arbiters[1], ask("r3", JOIN)).runs()).end()

    async def test_a_join_behind_another_action_queues_and_is_joined_there(self, arbiters: Pair) -> None:
        """The first of them waits its turn, and the others share its run."""
        first = await Visit(arbiters[0], ask("r1", action="chat.append")).runs()
        second = await Visit(arbiters[1], ask("r2", JOIN)).waits()
        with pytest.raises(JoinsError) as joined:
            await Visit(arbiters[0], ask("r3", JOIN)).ended()
        assert joined.value.who.id == "r2"
        await first.end()
        await (await second.runs()).end()

    # --- restart -------------------------------------------------------------------------------------------------

    async def test_a_restart_cancels_the_one_that_runs_and_starts_when_it_has_ended(self, arbiters: Pair) -> None:
        """The old one is told who superseded it, and the new one whom it superseded."""
        first = await Visit(arbiters[0], ask("r1", RESTART, packed=b"[1]")).runs()
        second = await Visit(arbiters[1], ask("r2", RESTART)).runs()
        with pytest.raises(RequestSupersededError) as superseded:
            await first.ended()
        assert superseded.value.by == "r2"
        assert second.turn is not None
        assert [each.id for each in second.turn.superseded] == ["r1"]
        assert await second.end() == "r2"

    async def test_one_that_does_not_stop_loses_its_grant_and_commits_nothing(
        self, arbiters: Pair, space: Space
    ) -> None:
        """After the grace the new one runs, and whatever the old one still does, its commit is refused."""
        key = space.key("session", "acme", "s-1")
        first = await Visit(arbiters[0], ask("r1", HASTY), stubborn=True, last=putting(key, b"old")).runs()
        second = await Visit(arbiters[1], ask("r2", HASTY), last=putting(key, b"new")).runs()
        await second.end()
        with pytest.raises(RequestSupersededError):
            await first.end()
        record = (await space.read(key)).get(key)
        assert record is not None
        assert record.value == b"new"

    async def test_of_many_restarts_the_newest_runs(self, arbiters: Pair) -> None:
        """Those that wait are superseded as well, and only the newest is left."""
        visits = [await Visit(arbiters[0], ask("r0", RESTART), stubborn=True).runs()]
        for number in range(1, 4):
            visits.append(await Visit(arbiters[number % 2], ask(f"r{number}", RESTART)).waits())
            await visits[number - 1].asked()
        with contextlib.suppress(RequestSupersededError):
            await visits[0].end()
        assert await (await visits[-1].runs()).end() == "r3"
        ended = await asyncio.gather(*(each.ended() for each in visits[:-1]), return_exceptions=True)
        assert all(isinstance(each, RequestSupersededError) for each in ended)

    async def test_a_restart_queues_behind_other_actions(self, arbiters: Pair) -> None:
        """What another action does with the same key is not cancelled."""
        first = await Visit(arbiters[0], ask("r1", action="chat.append")).runs()
        second = await Visit(arbiters[1], ask("r2", HASTY)).waits()
        assert await first.end() == "r1"
        await (await second.runs()).end()

    # --- latest --------------------------------------------------------------------------------------------------

    async def test_latest_keeps_only_the_newest_waiting(self, arbiters: Pair) -> None:
        """The one that runs is finished, and of those that wait the older ones are superseded."""
        first = await Visit(arbiters[0], ask("r1", LATEST)).runs()
        second = await Visit(arbiters[0], ask("r2", LATEST)).waits()
        third = await Visit(arbiters[1], ask("r3", LATEST)).waits()
        with pytest.raises(RequestSupersededError) as superseded:
            await second.ended()
        assert superseded.value.by == "r3"
        assert await first.end() == "r1"
        assert await (await third.runs()).end() == "r3"

    # --- cancellation --------------------------------------------------------------------------------------------

    async def test_one_cancelled_while_it_waits_leaves_the_line(self, arbiters: Pair) -> None:
        """Those behind it move up."""
        first = await Visit(arbiters[0], ask("r1")).runs()
        second = await Visit(arbiters[0], ask("r2")).waits()
        third = await Visit(arbiters[1], ask("r3")).waits()
        second.task.cancel()
        await asyncio.wait({second.task})
        assert second.task.cancelled()
        await first.end()
        assert await (await third.runs()).end() == "r3"

    async def test_one_cancelled_at_the_hand_over_passes_its_turn_on(self, arbiters: Pair) -> None:
        """The turn that it was just given is not lost with it."""
        first = await Visit(arbiters[0], ask("r1")).runs()
        second = await Visit(arbiters[0], ask("r2")).waits()
        third = await Visit(arbiters[1], ask("r3")).waits()
        ending = asyncio.ensure_future(first.end())
        ending.add_done_callback(lambda _: second.task.cancel())
        await ending
        await asyncio.wait({second.task})
        assert await (await third.runs()).end() == "r3"

    async def test_one_cancelled_while_it_runs_frees_the_key(self, arbiters: Pair) -> None:
        """The cancellation of its caller comes out as it is."""
        first = await Visit(arbiters[0], ask("r1")).runs()
        first.task.cancel()
        await asyncio.wait({first.task})
        assert first.task.cancelled()
        await (await Visit(arbiters[1], ask("r2", REJECT)).runs()).end()

    async def test_a_request_can_be_stopped_while_it_waits_and_while_it_runs(self, arbiters: Pair) -> None:
        """From any process; it ends with the reason, and its task is not left cancelled."""
        first = await Visit(arbiters[0], ask("r1")).runs()
        second = await Visit(arbiters[0], ask("r2")).waits()
        for name in ("r2", "r1"):
            assert await arbiters[1].stop(ask("").address, name, Stop(reason="enough"))
        for each in (second, first):
            with pytest.raises(RequestCancelledError) as cancelled:
                await each.ended()
            assert cancelled.value.reason == "enough"
            assert not each.task.cancelling()

    async def test_stopping_one_that_has_ended_does_not_reach_the_next(self, arbiters: Pair) -> None:
        """A stop is for one request, never for whoever has the key."""
        await (await Visit(arbiters[0], ask("r1")).runs()).end()
        second = await Visit(arbiters[0], ask("r2")).runs()
        assert not await arbiters[1].stop(ask("").address, "r1", Stop(reason="late"))
        assert await second.end() == "r2"

    # --- commits -------------------------------------------------------------------------------------------------

    async def test_a_record_is_there_when_the_place_is_taken(self, arbiters: Pair, space: Space) -> None:
        """Also of one that waits, with its position."""
        keys = [space.key("request", "acme", name) for name in ("r1", "r2")]
        first = await Visit(arbiters[0], ask("r1", extra_changes=putting(keys[0], b""))).runs()
        second = await Visit(arbiters[1], ask("r2", extra_changes=putting(keys[1], b""))).waits()
        seen = await space.read(*keys)
        assert [seen.records[key].value for key in keys] == [b"0", b"1"]
        assert [await first.end(), await second.end()] == ["r1", "r2"]

    async def test_a_record_that_cannot_be_means_no_place(self, arbiters: Pair, space: Space) -> None:
        """What the caller's function raises comes out, and the key stays free."""
        with pytest.raises(KeyError):
            await Visit(arbiters[0], ask("r1", extra_changes=failing(space.key("request", "r1")))).ended()
        await (await Visit(arbiters[1], ask("r2", REJECT)).runs()).end()

    async def test_one_that_is_not_taken_on_supersedes_nobody(self, arbiters: Pair, space: Space) -> None:
        """Such as one that was sent twice at once: whoever runs is not stopped for nothing."""
        first = await Visit(arbiters[0], ask("r1", RESTART)).runs()
        with pytest.raises(KeyError):
            await Visit(arbiters[1], ask("r2", RESTART, extra_changes=failing(space.key("request", "r2")))).ended()
        assert not first.stopped.is_set()
        assert await first.end() == "r1"

    async def test_final_changes_are_there_when_the_next_one_runs(self, arbiters: Pair, space: Space) -> None:
        """They are in the commit that leaves the line."""
        key = space.key("session", "acme", "s-1")
        first = await Visit(arbiters[0], ask("r1"), last=putting(key, b"done")).runs()
        second = await Visit(arbiters[1], ask("r2")).waits()
        await asyncio.gather(first.end(), second.runs())
        assert (await space.read(key)).records[key].value == b"done"
        await second.end()

    async def test_one_whose_final_changes_fail_leaves_the_line_all_the_same(
        self, arbiters: Pair, space: Space
    ) -> None:
        """The error is its own, and the key is free."""
        first = await Visit(arbiters[0], ask("r1"), last=failing(space.key("session", "s"))).runs()
        with pytest.raises(KeyError):
            await first.end()
        await (await Visit(arbiters[1], ask("r2", REJECT)).runs()).end()

    async def test_a_commit_by_a_turn_that_was_revoked_is_refused(self, arbiters: Pair, space: Space) -> None:
        """Also before its task has noticed anything."""
        key = space.key("session", "acme", "s-1")
        first = await Visit(arbiters[0], ask("r1"), stubborn=True).runs()
        assert first.turn is not None
        await first.turn.update(putting(key, b"in time"))
        assert await arbiters[1].evict(ask("").address, "r1")
        with pytest.raises(RequestInterruptedError):
            await first.turn.update(putting(key, b"too late"))
        with pytest.raises(RequestInterruptedError):
            await first.end()
        assert (await space.read(key)).records[key].value == b"in time"

    async def test_one_that_has_left_the_line_commits_nothing_any_more(self, arbiters: Pair, space: Space) -> None:
        """Whatever of its work is still under way: the next one has its turn."""
        key = space.key("session", "acme", "s-1")
        first = await Visit(arbiters[0], ask("r1")).runs()
        turn = first.turn
        assert turn is not None
        await turn.update(putting(key, b"in time"))
        await first.end()
        with pytest.raises(RequestInterruptedError):
            await turn.update(putting(key, b"too late"))
        assert (await space.read(key)).records[key].value == b"in time"

    # --- looking -------------------------------------------------------------------------------------------------

    async def test_a_look_shows_who_runs_and_who_waits(self, arbiters: Pair) -> None:
        """With positions, and since when; and nothing is left when all have ended."""
        visits = [await Visit(arbiters[0], ask("r0")).runs()]
        visits += [await Visit(arbiters[1], ask(f"r{number}")).waits() for number in (1, 2)]
        seen = await arbiters[1].look(ask("").address)
        assert seen.holder is not None
        assert (seen.holder.id, seen.holder.action, seen.waiting) == ("r0", "chat.respond", 2)
        assert [seen.position(f"r{number}") for number in range(4)] == [0, 1, 2, None]
        assert Instant(0) < seen.holder.since <= seen.waiters[0].since <= seen.at
        for each in visits:
            await (await each.runs()).end()
        assert (await arbiters[0].look(ask("").address)).holder is None
