"""What every dispatcher promises about requests that are sent again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import IdempotencyInFlightError, IdempotencyMismatchError, RequestCancelledError
from tests.conformance.dispatch_stage import DURABLE, arrival, result

if TYPE_CHECKING:
    from tests.conformance.dispatch_stage import Pair, Stage


class RepeatContract:
    """Requests with an idempotency key; ``pair`` is two dispatchers, or the same one twice."""

    @DURABLE
    async def test_a_request_that_is_sent_twice_is_done_once(self, pair: Pair, stage: Stage, *, durable: bool) -> None:
        """In flight it is refused with the id; afterwards the answer is told again; also with no policy at all."""
        for action in ("free", "queued"):
            stage.hold(action)
            sent = arrival(action, action, durable=durable, idempotency_key=f"k-{action}")
            first = await pair[0].dispatch(sent)
            with pytest.raises(IdempotencyInFlightError) as told:
                await pair[1].dispatch(sent)
            stage.release(action)
            answer = await result(first)
            again = await pair[1].dispatch(sent)

            assert (told.value.request_id, again.id, again.is_new) == (first.id, first.id, False)
            assert await result(again) == answer
        assert stage.begun == ["free", "queued"]

    async def test_a_key_stands_for_what_was_sent_with_it_by_one_user(self, pair: Pair) -> None:
        """With other inputs it is refused; another user's key is another key."""
        await result(await pair[0].dispatch(arrival("queued", "a", idempotency_key="k")))
        with pytest.raises(IdempotencyMismatchError):
            await pair[1].dispatch(arrival("queued", "b", idempotency_key="k"))
        other = arrival("queued", "c", idempotency_key="k", principal=sf.Principal("acme", "bob"))

        assert await result(await pair[1].dispatch(other)) == "did c"

    async def test_of_many_who_send_one_key_at_once_one_is_run(self, pair: Pair, stage: Stage) -> None:
        """The key is written in the commit that takes the request on."""
        sent = arrival("free", "a", idempotency_key="k")
        answers = await asyncio.gather(*(pair[n % 2].dispatch(sent) for n in range(6)), return_exceptions=True)
        taken = [each for each in answers if not isinstance(each, BaseException) and each.is_new]
        await result(taken[0])

        assert (len(taken), stage.begun) == (1, ["a"])
        assert all(isinstance(each, IdempotencyInFlightError) for each in answers if isinstance(each, BaseException))

    async def test_a_request_that_was_cancelled_is_run_when_it_is_sent_again(self, pair: Pair, stage: Stage) -> None:
        """It left nothing behind, so its key is free."""
        stage.hold("a")
        sent = arrival("queued", "a", idempotency_key="k")
        first = await pair[0].dispatch(sent)
        await stage.until_begun("a")
        await first.cancel()
        with pytest.raises(RequestCancelledError):
            await result(first)
        stage.release("a")
        again = await pair[1].dispatch(sent)

        assert (again.is_new, await result(again)) == (True, "did a")
