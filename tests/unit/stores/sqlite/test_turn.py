"""The turn to write."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from holdfast.stores.sqlite import turn as turns
from holdfast.stores.sqlite.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def turn(tmp_path: Path) -> Iterator[Turn]:
    """A turn of its own."""
    made = Turn(str(tmp_path / "turn"))
    yield made
    made.close()


def test_a_turn_that_the_system_refuses_is_not_kept(turn: Turn, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the kernel has no lock left to give, the next one to try is not locked out for ever."""

    def refuse(_descriptor: int, _offset: int) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patched:
        patched.setattr(turns, "try_lock", refuse)
        with pytest.raises(OSError, match="No locks available"):
            turn.try_take()

    assert turn.try_take()
    turn.give()
