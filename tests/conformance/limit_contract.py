"""What the limits of actions promise, alone or with two servers on one store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import (
    QueueFullError,
    QueueTimeoutError,
    RequestCancelledError,
    RequestSupersededError,
    TooManyRequestsError,
    WaitsForItselfError,
)
from tests.conformance.dispatch_stage import SOON, Stage, arrival, result

if TYPE_CHECKING:
    from tests.conformance.dispatch_contract import Pair

BOB = sf.Principal("acme", "bob")
DURABLE = pytest.mark.parametrize("durable", [False, True], ids=["attended", "durable"])


class LimitContract:
    """The promises of limits; a subclass provides ``pair``: two dispatchers, or the same one twice."""

    @pytest.fixture
    def stage(self) -> Stage:
        """What the actions do."""
        return Stage()

    # --- room ----------------------------------------------------------------------------------------------------

    async def test_no_more_run_at_a_time_than_the_limit_says_whatever_their_keys(
        self, pair: Pair, stage: Stage
    ) -> None:
        """Attended and durable ones, of all sessions, by either server, are counted together."""
        stage.hold("0")
        handles = [
            await pair[n % 2].dispatch(arrival("limited", str(n), session=f"s-{n}", durable=n % 3 == 1))
            for n in range(6)
        ]
        stage.release("0")

        assert sorted([await result(each) for each in handles]) == [f"did {n}" for n in range(6)]
        assert stage.most == 1

    async def test_each_value_of_a_key_has_room_of_its_own(self, pair: Pair, stage: Stage) -> None:
        """Another user does not wait."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("limited_by_user", "a"))
        second = await pair[1].dispatch(arrival("limited_by_user", "b", session="s-2"))
        other = await pair[1].dispatch(arrival("limited_by_user", "c", session="s-3", principal=BOB))

        assert await result(other) == "did c"
        assert "b" not in stage.begun
        stage.release("a")
        assert [await result(first), await result(second)] == ["did a", "did b"]

    async def test_one_that_waits_for_a_limit_says_so(self, pair: Pair, stage: Stage) -> None:
        """Its status and its explanation name the limit."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("limited", "a"))
        second = await pair[1].dispatch(arrival("limited", "b", session="s-2"))
        info = await second.info()

        assert (second.status, info.status) == ("waiting", "waiting")
        assert info.explanation is not None
        assert info.explanation.key == "the limit of chat.limited"
        stage.release("a")
        assert [await result(first), await result(second)] == ["did a", "did b"]

    async def test_room_that_does_not_come_in_time_is_told(self, pair: Pair, stage: Stage) -> None:
        """It never runs, and has left the line: the next one gets the room."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("limited_shortly", "a"))
        late = await pair[1].dispatch(arrival("limited_shortly", "late", session="s-2"))
        with pytest.raises(QueueTimeoutError, match=r"the limit of chat\.limited_shortly"):
            await result(late)
        stage.release("a")

        assert await result(first) == "did a"
        assert await result(await pair[0].dispatch(arrival("limited_shortly", "b"))) == "did b"
        assert stage.begun == ["a", "b"]

    @DURABLE
    async def test_a_limit_that_does_not_let_wait_refuses_at_once(
        self, pair: Pair, stage: Stage, *, durable: bool
    ) -> None:
        """With the number, and when to come again."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("limited_strictly", "a"))
        await stage.until_begun("a")
        with pytest.raises(TooManyRequestsError) as refused:
            await pair[1].dispatch(arrival("limited_strictly", "b", session="s-2", durable=durable))
        stage.release("a")

        assert (refused.value.limit, refused.value.retry_after >= 1) == (1, True)
        assert await result(first) == "did a"
        assert "b" not in stage.begun

    async def test_as_many_wait_for_a_limit_as_may(self, pair: Pair, stage: Stage) -> None:
        """The next one is refused."""
        stage.hold("a")
        handles = [await pair[0].dispatch(arrival("limited_room", name, session=name)) for name in "ab"]
        with pytest.raises(QueueFullError):
            await pair[0].dispatch(arrival("limited_room", "c", session="c"))
        stage.release("a")

        assert [await result(each) for each in handles] == ["did a", "did b"]

    @DURABLE
    async def test_one_that_is_cancelled_while_it_waits_leaves_the_limit_and_its_key(
        self, pair: Pair, stage: Stage, *, durable: bool
    ) -> None:
        """Those behind it, at both, go on."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("limited_queue", "a"))
        await stage.until_begun("a")
        second = await pair[1].dispatch(arrival("limited_queue", "b", session="s-2", durable=durable))
        third = await pair[1].dispatch(arrival("limited_queue", "c", session="s-2"))
        await second.cancel("no more")
        stage.release("a")

        with pytest.raises(RequestCancelledError):
            await result(second)
        assert [await result(first), await result(third)] == ["did a", "did c"]
        assert stage.begun == ["a", "c"]

    async def test_one_that_is_superseded_while_it_waits_leaves_the_limit(self, pair: Pair, stage: Stage) -> None:
        """The newer one of its key takes both places."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("limited_restart", "a"))
        await stage.until_begun("a")
        old = await pair[0].dispatch(arrival("limited_restart", "old", session="s-2"))
        new = await pair[1].dispatch(arrival("limited_restart", "new", session="s-2"))
        with pytest.raises(RequestSupersededError):
            await result(old)
        stage.release("a")

        assert [await result(first), await result(new)] == ["did a", "did new"]
        assert stage.begun == ["a", "new"]

    async def test_the_order_of_a_session_is_kept_under_a_limit(self, pair: Pair, stage: Stage) -> None:
        """The place in the line of the key comes first, so only the first of a session waits for the limit."""
        stage.hold("x")
        other = await pair[0].dispatch(arrival("limited_queue", "x", session="other"))
        await stage.until_begun("x")
        handles = [await pair[n % 2].dispatch(arrival("limited_queue", str(n), durable=n == 1)) for n in range(3)]
        stage.release("x")

        assert [await result(each) for each in (other, *handles)] == ["did x", "did 0", "did 1", "did 2"]
        assert (stage.begun, stage.most) == (["x", "0", "1", "2"], 1)

    @pytest.mark.parametrize("action", ["limited_latest", "limited_batch"])
    async def test_what_is_answered_before_it_has_run_waits_for_the_limit_too(
        self, pair: Pair, stage: Stage, action: str
    ) -> None:
        """One at a time, and none is given up."""
        stage.hold("a")
        handles = [await pair[0].dispatch(arrival(action, "a"))]
        await stage.until_begun("a")
        handles += [await pair[n % 2].dispatch(arrival(action, str(n), session=f"s-{n + 2}")) for n in range(3)]
        stage.release("a")

        assert sorted([await result(each) for each in handles]) == ["did 0", "did 1", "did 2", "did a"]
        assert stage.most == 1

    async def test_limits_of_one_name_count_together(self, pair: Pair, stage: Stage) -> None:
        """Whichever actions they belong to."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival("shares_one", "a"))
        second = await pair[1].dispatch(arrival("shares_two", "b", session="s-2"))

        assert second.status == "waiting"
        stage.release("a")
        assert [await result(first), await result(second)] == ["did a", "did b"]
        assert stage.most == 1

    async def test_those_who_need_the_same_limits_never_wait_for_each_other(self, pair: Pair, stage: Stage) -> None:
        """In whichever order their actions name them."""
        actions = ["one_then_two", "two_then_one"] * 4
        handles = await asyncio.gather(
            *(pair[n % 2].dispatch(arrival(action, str(n), session=f"s-{n}")) for n, action in enumerate(actions))
        )

        assert [await result(each) for each in handles] == [f"did {n}" for n in range(8)]
        assert stage.most == 1

    async def test_of_those_who_wait_in_one_server_the_highest_priority_goes_first(
        self, pair: Pair, stage: Stage
    ) -> None:
        """Of the arrival, or else of the action; of equal ones, the first."""
        stage.hold("a")
        handles = [await pair[0].dispatch(arrival("shares_one", "a"))]
        await stage.until_begun("a")
        for name, action, priority in [
            ("low", "shares_one", -1),
            ("plain", "shares_one", None),
            ("also", "shares_one", None),
            ("action", "shares_two", None),
            ("high", "shares_one", 9),
        ]:
            handles.append(await pair[0].dispatch(arrival(action, name, session=name, priority=priority)))
        stage.release("a")
        for each in handles:
            await result(each)

        assert stage.begun == ["a", "high", "action", "plain", "also", "low"]

    async def test_a_request_does_not_wait_for_room_that_its_caller_has(self, pair: Pair, stage: Stage) -> None:
        """It is refused at once, since neither could ever go on."""
        refused: list[BaseException] = []

        async def nest(_request: sf.Request, name: str) -> str:
            try:
                await pair[0].dispatch(arrival("shares_one", name, session="inner"))
            except WaitsForItselfError as problem:
                refused.append(problem)
            return "outer"

        stage.nest = nest
        first = await pair[0].dispatch(arrival("nested_in_limit", "n"))

        assert await result(first) == "outer"
        assert len(refused) == 1

    # --- rates ---------------------------------------------------------------------------------------------------

    @DURABLE
    async def test_more_than_the_rate_is_refused_before_anything_is_written(
        self, pair: Pair, stage: Stage, *, durable: bool
    ) -> None:
        """By either server, for each user; the error says when to come again."""
        for n in range(2):
            await result(await pair[n].dispatch(arrival("rated", str(n), durable=durable)))
        with pytest.raises(TooManyRequestsError) as refused:
            await pair[1].dispatch(arrival("rated", "late", durable=durable))
        bobs = await pair[0].dispatch(arrival("rated", "bob", principal=BOB))

        assert await result(bobs) == "did bob"
        assert refused.value.limit == 2
        assert 0 < refused.value.retry_after <= 1_800
        assert "late" not in stage.begun

    async def test_a_request_that_is_sent_again_does_not_count_for_the_rate(self, pair: Pair, stage: Stage) -> None:
        """It is answered by its idempotency key."""
        first = await pair[0].dispatch(arrival("rated", "a", idempotency_key="k"))
        await result(first)
        again = [await pair[n % 2].dispatch(arrival("rated", "a", idempotency_key="k")) for n in range(3)]

        assert {each.id for each in again} == {first.id}
        assert await result(await pair[0].dispatch(arrival("rated", "b", idempotency_key="other"))) == "did b"
        with pytest.raises(TooManyRequestsError):
            await pair[0].dispatch(arrival("rated", "c", idempotency_key="third"))
        assert stage.begun == ["a", "b"]

    async def test_many_come_and_go_and_nothing_of_them_is_left(self, pair: Pair, stage: Stage) -> None:
        """Some are cancelled while they wait; all others run, one at a time, and then there is room."""
        stage.hold("0")
        handles = [await pair[n % 2].dispatch(arrival("limited", str(n), session=f"s-{n}")) for n in range(12)]
        for each in handles[3::3]:
            await each.cancel()
        stage.release("0")
        async with asyncio.timeout(SOON):
            ends = await asyncio.gather(*(each.result() for each in handles), return_exceptions=True)

        assert sum(isinstance(each, RequestCancelledError) for each in ends) == 3
        assert (len(stage.begun), stage.most) == (9, 1)
        assert await result(await pair[1].dispatch(arrival("limited", "last"))) == "did last"
