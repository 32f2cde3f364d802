"""``standfast run`` on a terminal: what is typed there reaches the command, and a wait is told."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli.programs import python
from tests.integration.cli.terminals import CONTROL_C, CONTROL_D, CONTROL_Z, begin
from tests.integration.cli.test_run import HOLD, UNTIL_KILLED

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Start
    from tests.integration.cli.terminals import Terminal

pytestmark = pytest.mark.heavy  # many real processes: once, on the default interpreter


def test_control_c_reaches_the_command_once(start: Start, terminal: Terminal) -> None:
    """The command is interrupted as usual, and we end as it does."""
    handler = "import signal; signal.signal(signal.SIGINT, lambda *_: print('once', flush=True))"
    code = f"{handler}; {UNTIL_KILLED}; signal.pause()"
    program = begin(start, terminal, *HOLD, *python(code))
    terminal.read_until(b"ready")
    terminal.type(CONTROL_C)
    terminal.read_until(b"once")
    program.send(signal.SIGTERM)

    assert program.end()[0] == 128 + signal.SIGTERM
    assert terminal.shown.count(b"once") == 1


def test_control_c_ends_the_wait(start: Start, terminal: Terminal) -> None:
    """Somebody who waits is told for whom, and can give up."""
    holder = start(*HOLD, "--note", "backup", *python(UNTIL_KILLED))
    assert holder.hear() == "ready"
    program = begin(start, terminal, *HOLD, "--", "true")
    terminal.read_until(b"(backup)")
    terminal.type(CONTROL_C)

    assert program.end()[0] == 128 + signal.SIGINT
    assert b"standfast: waiting for a: 0 in front, held by" in terminal.shown


def test_the_command_can_be_typed_to(start: Start, terminal: Terminal) -> None:
    """It has the terminal, so that reading from it does not stop it."""
    program = begin(start, terminal, *HOLD, *python("print('ready', flush=True); print('got', input())"))
    terminal.read_until(b"ready")
    terminal.type(b"hello\n")
    terminal.read_until(b"got hello")
    assert program.end()[0] == 0


def test_control_z_stops_both_and_both_go_on(start: Start, terminal: Terminal) -> None:
    """A shell sees its job stop; when it goes on, so does the command, since the lock is still held."""
    code = "print('ready', flush=True); print('got', input())"
    program = begin(start, terminal, *HOLD, *python(code))
    terminal.read_until(b"ready")
    terminal.type(CONTROL_Z)
    assert os.waitid(os.P_PID, program.process.pid, os.WSTOPPED | os.WNOWAIT) is not None
    program.send(signal.SIGCONT)
    terminal.type(b"hello\n")
    terminal.read_until(b"got hello")
    assert program.end()[0] == 0


def test_a_command_that_slept_past_its_lease_does_not_go_on(start: Start, terminal: Terminal) -> None:
    """Stopped for longer than the lease, it is ended before it can do anything more."""
    code = "print('ready', flush=True); input(); print('went on', flush=True)"
    program = begin(start, terminal, *HOLD, "--lease", "300ms", "--grace", "0s", *python(code))
    terminal.read_until(b"ready")
    terminal.type(CONTROL_Z)
    assert os.waitid(os.P_PID, program.process.pid, os.WSTOPPED | os.WNOWAIT) is not None
    terminal.type(b"hello\n")
    successor = start(*HOLD, "--", "true")  # it gets the lock when the lease is over
    assert successor.end() == (0, "")
    program.send(signal.SIGCONT)

    assert program.end()[0] == 123
    terminal.read_until(b"the lock was lost")
    assert b"went on" not in terminal.shown


@pytest.mark.parametrize("key", [CONTROL_C, CONTROL_D], ids=["Ctrl-C", "end"])
@pytest.mark.parametrize(
    ("arguments", "question"),
    [
        (("locks", "release", "a"), b"Release a by force"),
        (("locks", "withdraw", "a", "--entry", "x"), b"Withdraw x"),
        (("runs", "erase", "acme"), b"Delete everything"),
        (("requests", "cancel", "x"), b"Cancel the request"),
        (("fence",), b"loses what it holds"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else " ".join(value),
)
def test_a_question_without_an_answer_ends_the_command_at_once(
    start: Start, terminal: Terminal, arguments: tuple[str, ...], question: bytes, key: bytes
) -> None:
    """One key is enough, no traceback is shown, and nothing was done."""
    holder = start(*HOLD, *python(UNTIL_KILLED))
    assert holder.hear() == "ready"
    program = begin(start, terminal, *arguments)
    terminal.read_until(question)
    terminal.read_until(b"[y/N]")
    terminal.type_until(key, b"nothing was done")

    assert program.end()[0] == 128 + signal.SIGINT
    assert b"Traceback" not in terminal.shown
    assert holder.process.poll() is None
