"""What those can do to each other who share one run: nothing, alone or with two servers on one store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import RequestCancelledError, RequestSharedError
from tests.conformance.dispatch_stage import ANN, Stage, arrival, result

if TYPE_CHECKING:
    from tests.conformance.dispatch_contract import Pair

BOB = sf.Principal("acme", "bob")
BOSS = sf.Principal("acme", "boss", frozenset({"operator"}))
SHARED = pytest.mark.parametrize("action", ["debounced", "batched", "joined"])


class ShareContract:
    """The promises to those who share a run; a subclass provides ``pair`` and ``stage``."""

    @SHARED
    async def test_the_first_of_a_shared_run_cannot_cancel_it_for_the_others(
        self, pair: Pair, stage: Stage, action: str
    ) -> None:
        """It is refused with the reason, and the run goes on for all of them."""
        stage.hold("a")
        first = await pair[0].dispatch(arrival(action, "a"))
        second = await pair[1].dispatch(arrival(action, "b", principal=BOB))
        with pytest.raises(RequestSharedError):
            await first.cancel()
        with pytest.raises(RequestSharedError):
            await pair[1].cancel(ANN, first.id)
        stage.release("a")
        if action == "batched":
            await pair[0].dispatch(arrival(action, "c"))

        assert second.id == first.id
        assert await result(second) == await result(first)

    @SHARED
    async def test_a_run_that_nobody_else_shares_is_its_users_to_cancel(
        self, pair: Pair, stage: Stage, action: str
    ) -> None:
        """However many requests of that user are in it."""
        stage.hold("a", "b")
        handles = [await pair[n].dispatch(arrival(action, "ab"[n])) for n in range(2)]
        await pair[1].cancel(ANN, handles[0].id)

        with pytest.raises(RequestCancelledError):
            await result(handles[0])

    async def test_an_operator_can_cancel_a_shared_run(self, pair: Pair, stage: Stage) -> None:
        """It ends for all of them."""
        first = await pair[0].dispatch(arrival("batched", "a"))
        second = await pair[1].dispatch(arrival("batched", "b", principal=BOB))
        await pair[0].cancel(BOSS, first.id)

        for each in (first, second):
            with pytest.raises(RequestCancelledError):
                await result(each)
        assert stage.begun == []
