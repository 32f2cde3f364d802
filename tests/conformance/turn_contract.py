"""What every dispatcher promises about turns: who runs, waits, is refused, joins or takes a place."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.errors import QueueFullError, QueueTimeoutError, RequestRejectedError, RequestSupersededError
from tests.conformance.dispatch_stage import ANN, DURABLE, SOON, arrival, names_of, result, until_free

if TYPE_CHECKING:
    from tests.conformance.dispatch_stage import Pair, Stage


class TurnContract:
    """Requests of one key, as their policies say; ``pair`` is two dispatchers, or the same one twice."""

    async def test_requests_of_one_key_run_one_at_a_time_in_order_whatever_they_are(
        self, pair: Pair, stage: Stage
    ) -> None:
        """Attended and durable ones, by either server, stand in one line."""
        stage.hold("0")
        handles = [await pair[n % 2].dispatch(arrival("queued", str(n), durable=n % 3 == 1)) for n in range(4)]
        stage.release("0")

        assert [await result(each) for each in handles] == ["did 0", "did 1", "did 2", "did 3"]
        assert (stage.begun, stage.most) == (["0", "1", "2", "3"], 1)

    async def test_requests_without_a_key_run_side_by_side(self, pair: Pair, stage: Stage) -> None:
        """Nothing is arbitrated without a session."""
        stage.hold("a", "b")
        handles = [await pair[0].dispatch(arrival("queued", name, session="")) for name in "ab"]
        await stage.until_begun("b")
        stage.release("a", "b")

        assert [await result(each) for each in handles] == ["did a", "did b"]
        assert stage.most == 2

    @DURABLE
    async def test_a_request_that_waits_tells_for_whom_and_its_place(
        self, pair: Pair, stage: Stage, *, durable: bool
    ) -> None:
        """The handle is there at once, with who has the key and how many are before."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("queued", "a"))
        await pair[0].dispatch(arrival("queued", "b"))
        third = await pair[1].dispatch(arrival("queued", "c", durable=durable))
        why = (await third.info()).explanation

        assert (third.status, third.position) == ("waiting", 1)
        assert why is not None
        assert (why.holder, why.position, why.key) == (first.id, 1, "session 's-1'")
        stage.release("a")
        await result(third)

    @DURABLE
    async def test_a_request_that_is_rejected_names_the_holder_and_leaves_nothing(
        self, pair: Pair, stage: Stage, *, durable: bool
    ) -> None:
        """While one has the key, another is refused with its id; when it has ended, the next is taken on."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("rejected", "a"))
        with pytest.raises(RequestRejectedError) as refused:
            await pair[1].dispatch(arrival("rejected", "b", durable=durable))
        stage.release("a")

        assert refused.value.request_id == first.id
        assert await result(first) == "did a"
        assert await result(await pair[1].dispatch(arrival("rejected", "c", durable=durable))) == "did c"

    @DURABLE
    async def test_whoever_is_rejected_while_the_holder_ends_gets_an_id_that_can_be_asked_about(
        self, pair: Pair, *, durable: bool
    ) -> None:
        """Nobody is told of a request that is not there; when that one has ended, trying again succeeds."""
        async with asyncio.timeout(SOON):
            for number in range(10):
                handles = [await pair[0].dispatch(arrival("rejected", str(number), durable=durable))]
                while len(handles) < 2:
                    try:
                        handles.append(await pair[1].dispatch(arrival("rejected", "again", durable=durable)))
                    except RequestRejectedError as refused:
                        assert (await pair[1].info(ANN, refused.request_id)).id == handles[0].id  # noqa: PT017 -- as often as it is
                        await asyncio.sleep(0.001)
                for each in handles:
                    await result(each)
                    await until_free(pair[0])

    @DURABLE
    async def test_a_queue_that_is_full_refuses_the_next(self, pair: Pair, stage: Stage, *, durable: bool) -> None:
        """As many wait as may; the next one is told how many and when to come again."""
        stage.hold("0")
        handles = [await pair[0].dispatch(arrival("queued", str(n))) for n in range(4)]
        with pytest.raises(QueueFullError) as full:
            await pair[1].dispatch(arrival("queued", "late", durable=durable))
        stage.release("0")

        assert (full.value.waiting, full.value.retry_after >= 1) == (3, True)
        assert [await result(each) for each in handles] == ["did 0", "did 1", "did 2", "did 3"]

    @DURABLE
    async def test_a_turn_that_does_not_come_in_time_is_told_and_written_down(
        self, pair: Pair, stage: Stage, *, durable: bool
    ) -> None:
        """It never runs, and whoever asks later learns why."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("queued", "a"))
        late = await pair[0].dispatch(arrival("hasty", "late", durable=durable))
        with pytest.raises(QueueTimeoutError):
            await result(late)
        stage.release("a")

        info = await (await pair[1].find(ANN, late.id)).info()
        assert (info.status, info.error_type, info.error_status) == ("refused", "QueueTimeoutError", 503)
        assert await result(first) == "did a"
        assert "late" not in stage.begun

    @DURABLE
    async def test_requests_that_join_share_one_run(self, pair: Pair, stage: Stage, *, durable: bool) -> None:
        """They have the id and the result of the one in flight; their inputs are not used."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("joined", "a", durable=durable))
        await stage.until_begun("a")
        second = await pair[1].dispatch(arrival("joined", "b", durable=durable))
        stage.release("a")

        assert (second.id, second.is_new) == (first.id, False)
        assert [await result(first), await result(second)] == ["did a", "did a"]
        assert stage.begun == ["a"]

    @DURABLE
    async def test_the_newest_request_takes_the_place_of_the_one_that_runs(
        self, pair: Pair, stage: Stage, *, durable: bool
    ) -> None:
        """The old one ends superseded and keeps nothing; the new one sees what both brought."""
        stage.hold("old")
        old = await pair[0].dispatch(arrival("restarted", "old", durable=durable))
        await stage.until_begun("old")
        new = await pair[1].dispatch(arrival("restarted", "new", durable=durable))

        assert await result(new) == "did new"
        with pytest.raises(RequestSupersededError) as told:
            await result(old)
        assert told.value.by == new.id
        assert [each["name"] for each in stage.seen["new"]] == ["old", "new"]
        assert await names_of(pair[0]) == ["new"]

    async def test_of_those_that_wait_only_the_latest_is_run(self, pair: Pair, stage: Stage) -> None:
        """The one that runs is finished; those between end superseded."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("latest", "a"))
        await stage.until_begun("a")
        between = await pair[1].dispatch(arrival("latest", "b"))
        last = await pair[0].dispatch(arrival("latest", "c"))
        with pytest.raises(RequestSupersededError) as told:
            await result(between)
        stage.release("a")

        assert [await result(first), await result(last)] == ["did a", "did c"]
        assert (stage.begun, told.value.by) == (["a", "c"], last.id)
