"""What schedules of actions promise on every kind of store, with two servers that look after them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

import pytest

import standfast as sf
from standfast.errors import RequestCancelledError, RequestRejectedError, WorkflowConcurrencyLimitExceededError
from standfast.flows.dispatcher import Dispatcher
from tests.conformance.arbiter_visits import fresh_name
from tests.conformance.dispatch_stage import ANN, SOON, Stage, arrival, result

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.flows.dispatcher import ArbiterKind
    from standfast.flows.flow import OnOverlap
    from standfast.flows.handle import Handle

Pair: TypeAlias = tuple[Dispatcher, Dispatcher]


class TickContract:
    """The promises of schedules; a subclass provides ``url``, and ``kind`` if it is not shared."""

    kind: ArbiterKind = "shared"

    @pytest.fixture
    def stage(self) -> Stage:
        """What the actions do."""
        return Stage()

    @asynccontextmanager
    async def serving(
        self, stage: Stage, url: str, on_overlap: OnOverlap, action: str = "patient", every: str = "1 day"
    ) -> AsyncIterator[Pair]:
        """Serve with two servers, or the same one twice, and one schedule."""
        tick = stage.flow.actions[action].schedule(
            "clock", {"name": "tick"}, principal=ANN, session="s-1", on_overlap=on_overlap, every=every
        )
        namespace, many = fresh_name(), 2 if self.kind == "shared" else 1
        made = [
            Dispatcher(sf.Engine(url, namespace=namespace), [stage.flow], arbiter=self.kind, schedules=[tick])
            for _ in range(many)
        ]
        async with made[0], made[-1] if many > 1 else _nothing():
            yield made[0], made[-1]

    async def test_a_tick_is_skipped_while_one_is_unfinished(self, stage: Stage, url: str) -> None:
        """With on_overlap="skip" the later one is dropped, whichever server it comes to."""
        stage.hold("tick")
        async with self.serving(stage, url, "skip") as pair:
            first = await tick(pair[0])
            with pytest.raises(WorkflowConcurrencyLimitExceededError):
                await tick(pair[1])
            stage.release("tick")
            assert await result(first) == "did tick"
            await pair[0].engine.run(first.id).result(timeout=SOON)  # which ends just after what it has to do is done
            assert await result(await tick(pair[1])) == "did tick"

    async def test_ticks_wait_for_each_other(self, stage: Stage, url: str) -> None:
        """With on_overlap="queue" all of them run, one at a time."""
        stage.hold("tick")
        async with self.serving(stage, url, "queue") as pair:
            handles = [await tick(pair[number % 2]) for number in range(3)]
            await stage.until_begun("tick")
            assert (await handles[-1].info()).status == "waiting"
            stage.release("tick")
            assert [await result(each) for each in handles] == ["did tick"] * 3
        assert stage.most == 1

    async def test_ticks_run_side_by_side(self, stage: Stage, url: str) -> None:
        """With on_overlap="allow", if the action has no key in common, nothing is in their way."""
        stage.hold("tick")
        async with self.serving(stage, url, "allow", action="free") as pair:
            handles = [await tick(each) for each in pair]
            async with asyncio.timeout(SOON):
                while stage.most < 2:  # noqa: ASYNC110 -- workers drive them
                    await asyncio.sleep(0.005)
            stage.release("tick")
            assert [await result(each) for each in handles] == ["did tick"] * 2

    async def test_the_newest_tick_replaces_the_one_that_runs(self, stage: Stage, url: str) -> None:
        """With on_overlap="restart" the older one is cancelled, keeps nothing, and has ended when the newer begins."""
        stage.hold("tick")
        async with self.serving(stage, url, "restart") as pair:
            old = await tick(pair[0])
            await stage.until_begun("tick")
            new = await tick(pair[1])
            with pytest.raises(RequestCancelledError):
                await result(old)
            stage.release("tick")
            assert await result(new) == "did tick"
        assert (stage.most, stage.ended) == (1, ["tick"])

    async def test_the_policy_of_the_action_holds_for_ticks(self, stage: Stage, url: str) -> None:
        """While somebody has the key of an action that rejects, a tick is refused and names the holder."""
        stage.hold("mine")
        async with self.serving(stage, url, "allow", action="rejected") as pair:
            held = await pair[0].dispatch(arrival("rejected", "mine"))
            with pytest.raises(RequestRejectedError) as refused:
                await tick(pair[1])
            stage.release("mine")
            assert refused.value.request_id == held.id
            await result(held)

    async def test_a_tick_waits_behind_whoever_has_its_key(self, stage: Stage, url: str) -> None:
        """It stands in the line of its schedule and in the line of its session."""
        stage.hold("mine")
        async with self.serving(stage, url, "queue") as pair:
            held = await pair[0].dispatch(arrival("queued", "mine"))
            later = await tick(pair[1])
            assert (await later.info()).status == "waiting"
            stage.release("mine")
            assert (await result(held), await result(later)) == ("did mine", "did tick")
        assert (stage.begun, stage.most) == (["mine", "tick"], 1)

    async def test_each_tick_of_the_clock_is_one_request(self, stage: Stage, url: str) -> None:
        """Both servers see it at the same moment, and one of them takes it on."""
        async with self.serving(stage, url, "allow", action="free", every="1 second") as pair:
            async with asyncio.timeout(SOON):
                while len(stage.begun) < 2:  # noqa: ASYNC110 -- real time
                    await asyncio.sleep(0.01)
            info = await pair[0].engine.schedules.pause("clock")
        assert info.started == len(stage.begun)


async def tick(dispatcher: Dispatcher) -> Handle:
    """Let the schedule start a request now."""
    run = await dispatcher.engine.schedules.trigger("clock")
    return await dispatcher.find(ANN, run.id)


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield
