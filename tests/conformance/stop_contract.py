"""What every dispatcher promises about requests that stop, and about those that would never go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.errors import ArbiterUnavailableError, RequestCancelledError, WaitsForItselfError
from tests.conformance.dispatch_stage import ANN, DURABLE, SOON, all_of, arrival, result

if TYPE_CHECKING:
    import standfast as sf
    from tests.conformance.dispatch_stage import Pair, Stage


class StopContract:
    """Requests that are cancelled, left, or refused to wait; ``pair`` is two dispatchers, or the same one twice."""

    @DURABLE
    @pytest.mark.parametrize("what", ["waiting", "running"])
    async def test_a_request_is_cancelled_from_any_server(
        self, pair: Pair, stage: Stage, what: str, *, durable: bool
    ) -> None:
        """Whether it waits or runs; its place is free then, and why it stopped is known."""
        stage.hold("a", "b")
        first = await pair[0].dispatch(arrival("queued", "a", durable=durable))
        await stage.until_begun("a")
        second = await pair[0].dispatch(arrival("queued", "b", durable=durable))
        doomed = first if what == "running" else second
        await pair[1].cancel(ANN, doomed.id, "enough")
        with pytest.raises(RequestCancelledError) as told:
            await result(doomed)
        stage.release("a", "b")

        assert told.value.reason == "enough"
        assert await result(second if doomed is first else first) in ("did a", "did b")
        assert (await pair[1].info(ANN, doomed.id)).status == "cancelled"

    @pytest.mark.parametrize(("choice", "status"), [("cancel", "cancelled"), ("continue", "completed")])
    async def test_a_caller_that_goes_away_takes_its_request_along_or_not(
        self, pair: Pair, stage: Stage, choice: str, status: str
    ) -> None:
        """As was declared; the place is free in either case."""
        stage.hold("a")
        handle = await pair[0].dispatch(arrival("queued", "a", on_disconnect=choice))
        await stage.until_begun("a")
        caller = asyncio.ensure_future(handle.result())
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait({caller})
        stage.release("a")

        assert await result(await pair[1].dispatch(arrival("queued", "next"))) == "did next"
        assert (await all_of(handle))[-1].data["status"] == status  # its end is written once its place is free

    @pytest.mark.parametrize(("choice", "status"), [("cancel", "cancelled"), ("continue", "completed")])
    @DURABLE
    async def test_a_caller_that_goes_away_while_it_waits_leaves_the_line_or_not(
        self, pair: Pair, stage: Stage, choice: str, status: str, *, durable: bool
    ) -> None:
        """As was declared; whoever is behind it has its turn in either case."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("queued", "a"))
        waiting = await pair[1].dispatch(arrival("queued", "b", durable=durable, on_disconnect=choice))
        behind = await pair[0].dispatch(arrival("queued", "c"))
        caller = asyncio.ensure_future(waiting.result())
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait({caller})
        ended = (await all_of(waiting))[-1].data["status"] if choice == "cancel" else ""
        stage.release("a")

        assert (await result(first), await result(behind)) == ("did a", "did c")
        assert (ended or (await all_of(waiting))[-1].data["status"]) == status
        assert ("b" in stage.begun) == (choice == "continue")

    async def test_a_request_that_would_wait_for_its_own_key_is_refused(self, pair: Pair, stage: Stage) -> None:
        """Whether it is sent by the one that has the key, or a transport says so."""
        found: list[type[BaseException]] = []

        async def nest(request: sf.Request, name: str) -> str:
            with pytest.raises(WaitsForItselfError) as refused:
                await pair[1].dispatch(arrival("queued", "inner"))
            found.append(refused.type)
            with pytest.raises(WaitsForItselfError):
                await (await pair[1].dispatch(arrival("queued", "later", durable=True))).result()
            with pytest.raises(WaitsForItselfError):
                await pair[1].dispatch(arrival("queued", "far", chain=request.chain))
            return name

        stage.nest = nest
        assert await result(await pair[0].dispatch(arrival("nested", "a"))) == "a"
        assert found == [WaitsForItselfError]

    async def test_a_server_that_closes_lets_its_requests_end_and_admits_no_more(
        self, pair: Pair, stage: Stage
    ) -> None:
        """Attended ones have their time; what comes is refused."""
        stage.hold("a")
        handle = await pair[0].dispatch(arrival("queued", "a"))
        await stage.until_begun("a")
        closing = asyncio.ensure_future(pair[0].aclose())
        await asyncio.sleep(0)
        with pytest.raises(ArbiterUnavailableError):
            await pair[0].dispatch(arrival("queued", "b"))
        stage.release("a")

        assert await result(handle) == "did a"
        await asyncio.wait_for(closing, SOON)
