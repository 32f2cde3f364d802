"""The turn to write."""

from __future__ import annotations

import errno
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from standfast.stores.sqlite import locks as turns
from standfast.stores.sqlite.locks import _NEXT, WriteTurn, lock_holder
from tests.fork_server import ForkedPopen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which process has a lock")

# Another process: it takes the turn, waiting for it if need be, says so, and gives it back when it is told to.
RIVAL = """
import sys
from standfast.stores.sqlite.locks import WriteTurn
turn = WriteTurn(sys.argv[1])
turn.take() if sys.argv[2] == "take" else turn.try_take()
print("taken", flush=True)
sys.stdin.readline()
turn.give()
print("given", flush=True)
sys.stdin.readline()
"""


@contextmanager
def rival(path: Path, way: str) -> Iterator[subprocess.Popen[str]]:
    """Let another process take the turn."""
    command = [sys.executable, "-c", RIVAL, str(path), way]
    with ForkedPopen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    """Wait for what the other process says next."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    """Tell the other process to go on."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.fixture
def turn(tmp_path: Path) -> Iterator[WriteTurn]:
    """A turn of its own."""
    made = WriteTurn(str(tmp_path / "turn"))
    yield made
    made.close()


def test_a_turn_that_the_system_refuses_is_not_kept(turn: WriteTurn, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the kernel has no lock left to give, the next one to try is not locked out for ever."""

    def refuse(_descriptor: int, _gate: int) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patched:
        patched.setattr(turns, "try_lock_through", refuse)
        with pytest.raises(OSError, match="No locks available"):
            turn.try_take()

    assert turn.try_take()
    turn.give()


@linux
def test_who_gives_the_turn_back_gets_behind_the_one_who_waits(turn: WriteTurn, tmp_path: Path) -> None:
    """However quickly it asks again, it is the other's turn."""
    assert turn.try_take()
    with rival(tmp_path / "turn", "take") as other:
        while lock_holder(turn._descriptor, _NEXT) != other.pid:  # it stands in the turnstile
            assert other.poll() is None
        turn.give()
        assert not turn.take_within(0.0)
        assert said(other) == "taken"
        assert turn.holder() == other.pid


@linux
@pytest.mark.parametrize("way", ["take", "try_take"])
def test_who_has_the_turn_keeps_no_place_in_the_turnstile(turn: WriteTurn, tmp_path: Path, way: str) -> None:
    """The next one can stand in it, and has the turn as soon as it is given back."""
    with rival(tmp_path / "turn", way) as other:
        assert said(other) == "taken"
        assert lock_holder(turn._descriptor, _NEXT) is None
        assert not turn.try_take()
        tell(other)
        assert said(other) == "given"
        assert turn.try_take()
        turn.give()


def be_alone(turn: WriteTurn) -> None:
    """Say so, and see it when the turn is given back."""
    turn.tell_alone(lambda: True)
    turn.take()
    turn.give()


@linux
def test_a_process_that_is_alone_takes_no_lock(turn: WriteTurn, tmp_path: Path) -> None:
    """None of another process could be in its way; in its own, one of its handles has the turn."""
    be_alone(turn)
    with rival(tmp_path / "turn", "take") as other:
        assert said(other) == "taken"
        assert turn.try_take()
        assert not turn.try_take()
        turn.give()
        assert turn.holder() == other.pid


@linux
@pytest.mark.parametrize("looks", [[False, False], [True, False]], ids=["before", "meanwhile"])
def test_a_process_that_was_alone_waits_for_its_turn_when_another_has_come(
    turn: WriteTurn, tmp_path: Path, looks: list[bool]
) -> None:
    """Also if that came between its look and what it says. One transaction may be too early."""
    be_alone(turn)
    turn.tell_alone(lambda: looks.pop(0))
    assert not looks
    with rival(tmp_path / "turn", "take") as other:
        assert said(other) == "taken"
        assert turn.try_take()
        turn.give()
        assert not turn.is_alone
        assert not turn.try_take()


@linux
def test_a_process_that_cannot_say_that_it_is_alone_takes_the_turn(
    turn: WriteTurn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full: then it is as if there were others."""

    def refuse(_descriptor: int, _data: bytes, _offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.pwrite", refuse)
        be_alone(turn)
    with rival(tmp_path / "turn", "take") as other:
        assert said(other) == "taken"
        assert not turn.try_take()
