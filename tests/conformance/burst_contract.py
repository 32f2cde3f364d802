"""What every dispatcher promises about bursts and batches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.errors import RequestSupersededError
from tests.conformance.dispatch_stage import SOON, arrival, result, until_one_waits

if TYPE_CHECKING:
    from tests.conformance.dispatch_stage import Pair, Stage


class BurstContract:
    """Requests that are collected into one run; ``pair`` is two dispatchers, or the same one twice."""

    async def test_a_burst_is_one_run_with_the_last_input(self, pair: Pair, stage: Stage) -> None:
        """All its requests have one id and one result, and nothing of it is lost."""
        handles = [await pair[n % 2].dispatch(arrival("debounced", str(n))) for n in range(5)]
        results = [await result(each) for each in handles]

        assert {each.id for each in handles} == {handles[0].id}
        assert [each.is_new for each in handles] == [True, False, False, False, False]
        assert (results, stage.begun) == (["did 4"] * 5, ["4"])
        assert [each["name"] for each in stage.seen["4"]] == ["0", "1", "2", "3", "4"]

    async def test_what_comes_while_a_burst_runs_causes_one_later_run(self, pair: Pair, stage: Stage) -> None:
        """It is neither lost nor does it stop the run."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("debounced", "a"))
        await stage.until_begun("a")
        later = [await pair[1].dispatch(arrival("debounced", name)) for name in "bc"]
        stage.release("a")

        assert await result(first) == "did a"
        assert [await result(each) for each in later] == ["did c", "did c"]
        assert (stage.begun, stage.most) == (["a", "c"], 1)

    async def test_a_burst_that_waits_for_its_turn_still_collects(self, pair: Pair, stage: Stage) -> None:
        """While another action has the key, requests that come belong to the run that waits."""
        stage.hold("other")
        other = await pair[0].dispatch(arrival("queued", "other"))
        burst = await pair[0].dispatch(arrival("debounced", "a"))
        await until_one_waits(pair[0])
        more = await pair[1].dispatch(arrival("debounced", "b"))
        stage.release("other")

        # With lines in memory the run is taken up before it has its turn, and what comes then is for the next.
        first = "did b" if pair[0] is not pair[1] else "did a"
        assert (await result(other), await result(burst), await result(more)) == ("did other", first, "did b")

    async def test_endless_requests_do_not_put_a_burst_off_for_ever(self, pair: Pair, stage: Stage) -> None:
        """It is run when its first request has waited long enough."""
        async with asyncio.timeout(SOON):
            number = 0
            while not stage.begun:
                await pair[0].dispatch(arrival("capped", str(number)))
                number += 1
                await asyncio.sleep(0.02)

        assert int(stage.begun[0]) < number

    async def test_with_the_leading_edge_the_first_runs_at_once_and_the_rest_after_it(
        self, pair: Pair, stage: Stage
    ) -> None:
        """Two runs for a burst: the first request, and the last."""
        handles = [await pair[0].dispatch(arrival("leading", name)) for name in "abc"]

        assert [await result(each) for each in handles] == ["did a", "did c", "did c"]
        assert stage.begun == ["a", "c"]

    async def test_an_old_event_that_comes_late_does_not_replace_a_newer_one(self, pair: Pair, stage: Stage) -> None:
        """The order of events is that of their own times, if those are known."""
        times = {"new": "2026-05-01T12:00:05Z", "old": "2026-05-01T12:00:01Z"}
        sent = [arrival("debounced", name, metadata={"event_time": at}) for name, at in times.items()]
        handles = [await pair[0].dispatch(each) for each in sent]

        assert await result(handles[-1]) == "did new"
        assert [each["name"] for each in stage.seen["new"]] == ["old", "new"]

    async def test_an_old_event_that_comes_after_a_newer_one_was_run_is_not_run(self, pair: Pair, stage: Stage) -> None:
        """Its own burst is superseded by the run that was newer; one that is newer still is run."""
        times = {"new": "2026-05-01T12:00:05Z", "old": "2026-05-01T12:00:01Z", "newest": "2026-05-01T12:00:09Z"}
        sent = {name: arrival("capped", name, metadata={"event_time": at}) for name, at in times.items()}
        new = await pair[0].dispatch(sent["new"])
        assert await result(new) == "did new"
        with pytest.raises(RequestSupersededError) as told:
            await result(await pair[1].dispatch(sent["old"]))

        assert told.value.by == new.id
        assert await result(await pair[1].dispatch(sent["newest"])) == "did newest"
        assert stage.begun == ["new", "newest"]

    async def test_a_batch_is_run_when_it_is_full_and_each_item_is_in_one_run(self, pair: Pair, stage: Stage) -> None:
        """The action gets a list of what each request brought."""
        handles = [await pair[n % 2].dispatch(arrival("batched", str(n))) for n in range(3)]

        assert [await result(each) for each in handles] == [["0", "1", "2"]] * 3
        assert stage.begun == ["0+1+2"]
