"""What every dispatcher promises to whoever looks at a request, and about what it leaves behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import RequestFailedError, RequestNotFoundError
from tests.conformance.dispatch_stage import ANN, DURABLE, SOON, all_of, arrival, names_of, result

if TYPE_CHECKING:
    from tests.conformance.dispatch_stage import Pair, Stage


class FollowContract:
    """What is seen of a request, and kept; ``pair`` is two dispatchers, or the same one twice."""

    @DURABLE
    async def test_whoever_follows_gets_each_event_once_and_the_end(
        self, pair: Pair, stage: Stage, *, durable: bool
    ) -> None:
        """From any server, as it comes, and again after any number."""
        stage.hold("a")
        handle = await pair[0].dispatch(arrival("queued", "a", durable=durable))
        live = asyncio.ensure_future(all_of(await pair[1].find(ANN, handle.id)))
        await stage.until_begun("a")
        stage.release("a")
        events = await asyncio.wait_for(live, SOON)

        assert [(each.number, each.name) for each in events] == [(1, "message"), (2, "request.ended")]
        assert events[-1].data == {"status": "completed", "result": "did a"}
        again = await pair[1].find(ANN, handle.id)
        assert [[e.number for e in await all_of(again, after)] for after in (0, 1, 2)] == [[1, 2], [2], []]

    @pytest.mark.parametrize("action", ["told", "told_in_turn"])
    @pytest.mark.parametrize("pause", [0, 1, 50], ids=["quick", "after the first", "in the middle"])
    @DURABLE
    async def test_a_slow_reader_sees_all_of_a_burst_and_the_end(
        self, pair: Pair, stage: Stage, action: str, pause: int, *, durable: bool
    ) -> None:
        """All of it comes, and it ends, while the reader is between two reads."""
        stage.hold("100")
        handle = await pair[0].dispatch(arrival(action, "100", durable=durable))
        numbers: list[int] = []
        async with asyncio.timeout(SOON):
            async for event in handle.events():
                numbers.append(event.number)
                if len(numbers) == pause:
                    stage.release("100")
                    await result(handle)
                if len(numbers) == 1 and not pause:
                    stage.release("100")

        assert (numbers, event.name) == ([*range(1, 102)], "request.ended")

    async def test_a_request_of_another_tenant_is_not_there(self, pair: Pair, stage: Stage) -> None:
        """Whatever is asked about it is answered as if it had never been."""
        stage.hold("a")
        handle = await pair[0].dispatch(arrival("queued", "a"))
        other, absent = sf.Principal("evil", "ann"), f"{handle.id[:-4]}0000"
        told: list[str] = []
        for principal, name in ((other, handle.id), (ANN, absent)):
            for asked in (pair[0].find, pair[1].info, pair[1].explain, pair[0].cancel):
                with pytest.raises(RequestNotFoundError) as missing:
                    await asked(principal, name)
                told.append(str(missing.value).replace(name, ""))
        stage.release("a")

        assert len(set(told)) == 1
        assert await result(handle) == "did a"

    @DURABLE
    async def test_what_an_action_raises_is_told_and_kept(self, pair: Pair, stage: Stage, *, durable: bool) -> None:
        """The error is the cause of what its caller gets, and what was done to the session is dropped."""
        stage.failures["a"] = 1
        handle = await pair[0].dispatch(arrival("queued", "a", durable=durable))
        with pytest.raises(RequestFailedError) as failed:
            await result(handle)
        info = await (await pair[1].find(ANN, handle.id)).info()

        assert isinstance(failed.value.__cause__, ValueError)
        assert (info.status, info.error_type, info.error_status) == ("failed", "ValueError", 500)
        assert await names_of(pair[0]) == []

    async def test_a_durable_request_is_tried_again_and_what_it_does_once_is_not(
        self, pair: Pair, stage: Stage
    ) -> None:
        """It has as many attempts as its action says, and the record of the first knows what it did."""
        stage.failures["a"] = 2
        handle = await pair[0].dispatch(arrival("retried", "a", durable=True))

        assert await result(handle) == "did a"
        assert (stage.begun, stage.calls) == (["a", "a", "a"], ["a"])
        assert await names_of(pair[0]) == ["a"]

    async def test_a_follower_is_told_that_a_durable_request_begins_again(self, pair: Pair, stage: Stage) -> None:
        """What the first attempt told stays; an event before what the next one tells says that it is told anew."""
        stage.failures["a"] = 2
        handle = await pair[0].dispatch(arrival("retried", "a", durable=True))

        told = [(event.number, event.name, event.data) for event in await all_of(handle)]

        began, again = ("message", {"began": "a"}), "request.restarted"
        assert told == [
            (1, *began),
            (2, again, {"attempt": 2}),
            (3, *began),
            (4, again, {"attempt": 3}),
            (5, *began),
            (6, "request.ended", {"status": "completed", "result": "did a"}),
        ]

    async def test_what_is_done_to_a_session_meanwhile_is_kept(self, pair: Pair, stage: Stage) -> None:
        """A long request does not undo what a short one has appended while it ran."""
        stage.hold("long")
        long = await pair[0].dispatch(arrival("queued", "long", durable=True))
        await stage.until_begun("long")
        await result(await pair[1].dispatch(arrival("free", "short")))
        stage.release("long")
        await result(long)

        assert await names_of(pair[0]) == ["short", "long"]
