"""What callers are told when the store fails: that it does, and not where it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import ArbiterUnavailableError, StoreFullError
from standfast.flows.arbiter.in_store import SharedArbiter
from standfast.flows.arbiter.protocol import Ask
from standfast.web.problems import problem_of

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_caller_is_not_told_where_the_store_lies(tmp_path: Path) -> None:
    """That is for operators, who find it in the cause."""
    path = str(tmp_path / "secret.db")

    async def begin() -> None:
        raise StoreFullError(path, f"the disk of {path} is full")

    async with sf.open(f"sqlite:///{path}") as space, SharedArbiter(space) as arbiter:
        ask = Ask(id="r", address=("request", "a"), action="chat.act")
        with pytest.raises(ArbiterUnavailableError) as told:
            await arbiter.start(ask, begin)
    assert path not in str(problem_of(told.value))
    assert "StoreFullError" in problem_of(told.value)["detail"]
    assert path in str(told.value.__cause__)
