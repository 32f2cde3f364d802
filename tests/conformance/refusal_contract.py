"""What those are told who are not let in, or not in time: alone or with two servers on one store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.errors import QueueFullError, QueueTimeoutError, RequestRejectedError
from tests.conformance.dispatch_stage import ANN, arrival, result

if TYPE_CHECKING:
    from standfast.flows.handle import Handle
    from tests.conformance.dispatch_contract import Pair
    from tests.conformance.dispatch_stage import Stage

DURABLE = pytest.mark.parametrize("durable", [False, True], ids=["attended", "durable"])


class RefusalContract:
    """The promises to those who are refused; a subclass provides ``pair`` and ``stage``."""

    @DURABLE
    async def test_a_refusal_says_who_has_the_key_and_since_when(
        self, pair: Pair, stage: Stage, *, durable: bool
    ) -> None:
        """Whether the request may not wait, or too many do: it is the holder, as long as it has the key."""
        first = await self._held(pair, stage)
        with pytest.raises(RequestRejectedError) as rejected:
            await pair[1].dispatch(arrival("rejected", "b", durable=durable))
        waiting = [await pair[0].dispatch(arrival("queued", name)) for name in "cde"]
        with pytest.raises(QueueFullError) as full:
            await pair[1].dispatch(arrival("queued", "f", durable=durable))
        since = (await pair[1].arbiter.look(first.record.address)).holder
        stage.release("a")

        assert since is not None
        assert (rejected.value.request_id, rejected.value.since) == (first.id, since.since)
        assert (full.value.holder, full.value.since, full.value.waiting) == (first.id, since.since, 3)
        for each in (first, *waiting):
            await result(each)

    async def test_whose_turn_does_not_come_is_told_who_had_the_key(self, pair: Pair, stage: Stage) -> None:
        """The caller by the error, and whoever asks later by the record."""
        first = await self._held(pair, stage)
        late = await pair[1].dispatch(arrival("hasty", "late"))
        with pytest.raises(QueueTimeoutError) as refused:
            await result(late)
        stage.release("a")

        assert refused.value.holder == first.id
        assert refused.value.since > 0
        assert first.id in (await pair[0].info(ANN, late.id)).error
        await result(first)

    async def _held(self, pair: Pair, stage: Stage) -> Handle:
        stage.hold("a")
        first = await pair[0].dispatch(arrival("queued", "a"))
        await stage.until_begun("a")
        return first
