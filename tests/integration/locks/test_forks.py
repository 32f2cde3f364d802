"""Forking in the middle of a hold: the parent holds the mutex, whatever its child does and however that ends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from standfast.clock import monotonic

if TYPE_CHECKING:
    from tests.integration.locks.conftest import Gather


async def test_a_forked_child_holds_nothing_and_takes_nothing_away(gather: Gather) -> None:
    """The child is refused what it inherited and waits like anybody else; its end releases nothing of its parent's."""
    crew = gather(2)
    parent, other = crew.members
    parent.tell("fork")
    fence = parent.held().fence
    said = dict(parent.child.hear() for _ in range(6))
    other.tell("try")
    assert other.child.hear() == ["WouldWaitError"]

    assert said == {
        "check": "forked",
        "guard": "forked",
        "hold": "forked",
        "own": "WouldWaitError",
        "close": "worked",
        "status": "0",
    }
    parent.tell("go")
    parent.left()
    other.tell("try")
    assert other.held().fence > fence


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which process has a lock")
async def test_a_forked_child_does_not_keep_what_its_parent_held(gather: Gather) -> None:
    """Once the parent is killed the next takes over, although its child lives on with all that it inherited."""
    crew = gather(2)
    parent, other = crew.members
    parent.tell("bear")
    fence = parent.held().fence
    assert parent.child.hear() == ["born"]
    other.tell("pass")
    await crew.lined_up(other)

    killed_at = monotonic()
    parent.child.process.kill()
    held = other.held()

    assert held.fence > fence
    assert held.at - killed_at < 1.0
