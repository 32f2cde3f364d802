"""What those hand over whose place is taken, and what they leave behind: alone or with two servers on one store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import RequestSupersededError
from standfast.events import RequestsOverlap
from tests.conformance.dispatch_contract import names_of
from tests.conformance.dispatch_stage import SOON, Stage, arrival, result, until_set

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.events import Event
    from standfast.flows.handle import Handle
    from tests.conformance.dispatch_contract import Pair

DURABLE = pytest.mark.parametrize("durable", [False, True], ids=["attended", "durable"])


class Mule:
    """An action whose first call does not stop when it is told to, and what hooks were told meanwhile."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.begun: list[str] = []
        self.news = asyncio.Event()
        self.may_end = asyncio.Event()
        self.flow = sf.Flow("mule")

        @self.flow.action(concurrency=sf.Restart(grace="20ms"))
        async def work(request: sf.Request, name: str) -> str:
            self.begun.append(name)
            request.session.append("names", name)
            self.news.set()
            if len(self.begun) == 1:
                await until_set(self.may_end)
            return f"did {name}"

    def arrival(self, name: str, *, durable: bool) -> sf.Call:
        """Return a request for it."""
        sent = arrival("work", name, durable=durable)
        return sf.Call(
            flow="mule",
            action="work",
            inputs=sent.inputs,
            principal=sent.principal,
            session=sent.session,
            attended=sent.attended,
        )

    async def until_begun(self, name: str) -> None:
        """Wait until it was called."""
        async with asyncio.timeout(SOON):
            while name not in self.begun:
                self.news.clear()
                await self.news.wait()


class SupersedeContract:
    """The promises of those who take a place; a subclass provides ``pair``, two servers of both flows."""

    @pytest.fixture
    def stage(self) -> Stage:
        """What the actions do."""
        return Stage()

    @pytest.fixture
    def mule(self) -> Mule:
        """An action that does not stop."""
        return Mule()

    @DURABLE
    async def test_the_last_of_several_restarts_gets_what_all_of_them_brought(
        self, pair: Pair, stage: Stage, *, durable: bool
    ) -> None:
        """Also from one that was superseded by another that was superseded in turn: none of them was ever done."""
        stage.hold("a", "b")
        handles = [await self._begun(pair, stage, "restarted", name, durable=durable) for name in "ab"]
        last = await pair[0].dispatch(arrival("restarted", "c", durable=durable))

        assert await result(last) == "did c"
        assert seen_by(stage, "c") == ["a", "b", "c"]
        assert (await last.info()).superseded == tuple(each.id for each in handles)

    async def test_the_latest_gets_what_those_brought_whose_place_it_took(self, pair: Pair, stage: Stage) -> None:
        """And not what the one brought that was finished before it."""
        stage.hold("a")
        handles = [await pair[n % 2].dispatch(arrival("latest", name)) for n, name in enumerate("abcd")]
        await stage.until_begun("a")
        await superseded(handles[1:3])
        stage.release("a")

        assert [await result(each) for each in (handles[0], handles[3])] == ["did a", "did d"]
        assert seen_by(stage, "d") == ["b", "c", "d"]

    @DURABLE
    @pytest.mark.parametrize("action", ["latest", "restarted"])
    async def test_those_whose_place_is_taken_are_not_counted_in_front(
        self, pair: Pair, stage: Stage, action: str, *, durable: bool
    ) -> None:
        """Each newcomer is told that it is the next one, also while the one before it is still leaving."""
        stage.hold("other")
        await pair[0].dispatch(arrival("queued", "other"))
        told = [await pair[turn % 2].dispatch(arrival(action, f"n{turn}", durable=durable)) for turn in range(4)]
        assert [each.position for each in told] == [0, 0, 0, 0]
        stage.release("other")
        assert await result(told[-1]) == "did n3"

    @DURABLE
    async def test_an_overlap_with_one_that_does_not_stop_is_told_and_it_commits_nothing(
        self, pair: Pair, mule: Mule, *, durable: bool
    ) -> None:
        """After the grace the newer one runs: hooks and its record say so, and the session has what that one did."""
        old = await pair[0].dispatch(mule.arrival("old", durable=durable))
        await mule.until_begun("old")
        new = await pair[1].dispatch(mule.arrival("new", durable=durable))
        assert await result(new) == "did new"
        mule.may_end.set()
        await superseded([old])

        [told] = [event for event in mule.told if isinstance(event, RequestsOverlap)]
        assert (told.request, told.superseded, told.key) == (new.id, (old.id,), "session 's-1'")
        assert (await new.info()).overlap
        assert await names_of(pair[0]) == ["new"]

    async def _begun(self, pair: Pair, stage: Stage, action: str, name: str, **more: Any) -> Handle:
        handle = await pair[len(stage.begun) % 2].dispatch(arrival(action, name, **more))
        await stage.until_begun(name)
        return handle


def seen_by(stage: Stage, name: str) -> list[str]:
    """Return which inputs an action has seen."""
    return [each["name"] for each in stage.seen[name]]


async def superseded(handles: Iterable[Handle]) -> None:
    """Wait until these have ended because newer ones took their places."""
    for each in handles:
        with pytest.raises(RequestSupersededError):
            await result(each)
