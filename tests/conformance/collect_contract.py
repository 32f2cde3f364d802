"""What becomes of requests that are put together, and of those that are not: alone or with two servers on one store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest

import standfast as sf
from tests.conformance.dispatch_stage import ANN, SOON, result

if TYPE_CHECKING:
    from standfast.policies import Policy
    from tests.conformance.dispatch_contract import Pair

POLICIES: Final[dict[str, Policy]] = {
    "side_by_side": sf.Allow(),
    "last_of": sf.Debounce("250ms", collapse="last"),
    "all_of": sf.Debounce("250ms", collapse="all"),
    "first_at_once": sf.Debounce("500ms", edge="leading", collapse="last"),
    "first_and_all": sf.Debounce("500ms", edge="leading", collapse="all"),
}


class Desk:
    """Actions that tell what they were called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[Any]]] = []
        self.now = self.most = 0
        self.flow = sf.Flow("desk")

        async def work(request: sf.Request, name: str) -> str:
            self.calls.append((name, [each["name"] for each in request.inputs]))
            self.now += 1
            self.most = max(self.most, self.now)
            async with asyncio.timeout(SOON):
                while name in ("x", "y") and self.most < 2:  # noqa: ASYNC110 -- the other one is called elsewhere
                    await asyncio.sleep(0.001)
            self.now -= 1
            return f"did {name}"

        for action, policy in POLICIES.items():
            self.flow.action(name=action, concurrency=policy)(work)

        @self.flow.action(concurrency=sf.Batch(3, "250ms"))
        async def batched(request: sf.Request, name: list[str]) -> str:
            self.calls.append(("+".join(name), [each["name"] for each in request.inputs]))
            return "+".join(name)


def sent(action: str, name: str) -> sf.Call:
    """Return a request of ann's in her one session."""
    return sf.Call(flow="desk", action=action, inputs={"name": name}, principal=ANN, session="s-1")


class CollectContract:
    """The promises to those whose requests become one run; a subclass provides ``pair``, two servers of the desk."""

    @pytest.fixture
    def desk(self) -> Desk:
        """What the actions do."""
        return Desk()

    async def test_requests_that_are_allowed_run_side_by_side_in_one_session(self, pair: Pair, desk: Desk) -> None:
        """Each waits until the other has begun."""
        handles = [await pair[n].dispatch(sent("side_by_side", "xy"[n])) for n in range(2)]
        assert [await result(each) for each in handles] == ["did x", "did y"]
        assert desk.most == 2

    @pytest.mark.parametrize(("action", "inputs"), [("last_of", ["c"]), ("all_of", ["a", "b", "c"])])
    async def test_an_action_sees_the_last_of_a_burst_or_all_of_it(
        self, pair: Pair, desk: Desk, action: str, inputs: list[str]
    ) -> None:
        """It is called with the last in both cases."""
        handles = [await pair[n % 2].dispatch(sent(action, "abc"[n])) for n in range(3)]
        assert {await result(each) for each in handles} == {"did c"}
        assert desk.calls == [("c", inputs)]

    @pytest.mark.parametrize(("action", "inputs"), [("first_at_once", ["c"]), ("first_and_all", ["b", "c"])])
    async def test_what_follows_the_leading_one_is_collected_like_any_burst(
        self, pair: Pair, desk: Desk, action: str, inputs: list[str]
    ) -> None:
        """The first has been run already, and is not seen again."""
        handles = [await pair[n % 2].dispatch(sent(action, "abc"[n])) for n in range(3)]
        assert [await result(each) for each in handles] == ["did a", "did c", "did c"]
        assert desk.calls == [("a", ["a"]), ("c", inputs)]

    async def test_a_leading_one_is_not_run_again_when_its_window_is_over(self, pair: Pair, desk: Desk) -> None:
        """Whatever comes after it has ended is run for itself."""
        for n, name in enumerate("ab"):
            assert await result(await pair[n % 2].dispatch(sent("first_at_once", name))) == f"did {name}"
        assert desk.calls == [("a", ["a"]), ("b", ["b"])]

    async def test_a_batch_that_does_not_fill_up_is_run_when_its_time_has_come(self, pair: Pair, desk: Desk) -> None:
        """With what is there; and one that fills up does not wait for that."""
        handles = [await pair[n % 2].dispatch(sent("batched", "abcd"[n])) for n in range(4)]
        assert [await result(each) for each in handles] == ["a+b+c"] * 3 + ["d"]
        assert desk.calls == [("a+b+c", ["a", "b", "c"]), ("d", ["d"])]
