"""Neither arbiter admits anybody while it is not open."""

from __future__ import annotations

import pytest

import standfast as sf
from standfast.errors import ArbiterUnavailableError
from standfast.flows.arbiter.in_memory import LocalArbiter
from standfast.flows.arbiter.in_store import SharedArbiter
from tests.conformance.arbiter_visits import Visit, ask, fresh_name


@pytest.mark.parametrize("kind", [LocalArbiter, SharedArbiter])
async def test_an_arbiter_that_is_not_open_admits_nobody(kind: type[LocalArbiter | SharedArbiter]) -> None:
    """Neither before it is opened nor after it was closed."""
    async with sf.open("memory://", namespace=fresh_name()) as space:
        arbiter = kind(space)
        with pytest.raises(ArbiterUnavailableError):
            await Visit(arbiter, ask("r1")).ended()
        async with arbiter:
            pass
        with pytest.raises(ArbiterUnavailableError):
            await Visit(arbiter, ask("r2")).ended()
