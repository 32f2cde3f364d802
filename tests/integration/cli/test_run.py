"""``standfast run`` with real processes: exit codes, signals, exclusion, and what happens when the lock is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli.programs import answer, python

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli.conftest import Start

pytestmark = pytest.mark.heavy  # many real processes: once, on the default interpreter

HOLD = ("run", "--lock", "a")
UNTIL_KILLED = "import signal; print('ready', flush=True); signal.pause()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {UNTIL_KILLED}"


@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_exit_code_is_the_commands(url: str, code: int) -> None:
    """Whatever the command exits with."""
    assert answer(url, *HOLD, *python(f"raise SystemExit({code})")) == (code, "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR1])
def test_a_command_that_a_signal_ends_gives_128_and_its_number(url: str, number: signal.Signals) -> None:
    """As a shell has it."""
    code = f"import os; os.kill(os.getpid(), {int(number)})"
    assert answer(url, *HOLD, *python(code)) == (128 + number, "")


def test_the_command_knows_its_key_and_its_fence(url: str) -> None:
    """They are in its environment, and the fence grows from hold to hold."""
    code = "import os; print(os.environ['STANDFAST_KEY'], os.environ['STANDFAST_FENCE'])"
    first, second = (answer(url, *HOLD, *python(code))[1].split() for _ in range(2))

    assert [first[0], second[0]] == ["a", "a"]
    assert 0 < int(first[1]) < int(second[1])


def test_the_command_reads_and_writes_as_usual(start: Start) -> None:
    """Stdin, stdout and stderr are its own."""
    code = "import sys; text = input(); print(text.upper()); print('done', file=sys.stderr)"
    program = start(*HOLD, *python(code))
    out, err = program.process.communicate(b"hello\n", timeout=40)
    assert (program.process.returncode, out, err) == (0, b"HELLO\n", b"done\n")


def test_options_of_the_command_are_its_own(url: str) -> None:
    """What follows the command belongs to it, even without ``--``."""
    assert answer(url, *HOLD, "echo", "--json", "--lock", "--", "x") == (0, "--json --lock -- x\n")


def test_signals_find_the_command_as_usual(url: str) -> None:
    """Nothing that Python ignores or blocks is ignored or blocked in the command."""
    code, said = answer(url, *HOLD, "--", "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
    assert code == 0
    assert {int(line.split()[1], 16) & ~(1 << 31 | 1 << 32) for line in said.splitlines()} == {0}


@pytest.mark.parametrize("name", ["no-such-command", "./no-such-command"])
def test_a_command_that_is_not_there_gives_127(url: str, name: str, tmp_path: Path) -> None:
    """At once, without waiting for the lock or making a store."""
    code, said = answer(url, *HOLD, "--", name)
    assert (code, said.splitlines()[0]) == (127, f"standfast: there is no command {name}")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_run_gives_126(url: str, tmp_path: Path) -> None:
    """One without the right to be run, and one that is no program."""
    (tmp_path / "plain").write_text("hello")
    (tmp_path / "odd").write_bytes(b"\x00\x01")
    (tmp_path / "odd").chmod(0o700)
    assert answer(url, *HOLD, "--", str(tmp_path / "plain"))[0] == 126
    code, said = answer(url, *HOLD, "--", str(tmp_path / "odd"))
    assert code == 126
    assert "cannot be run" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_passed_on(start: Start, number: signal.Signals) -> None:
    """The command gets what was sent to us, decides what to do, and its exit code counts."""
    code = f"import signal, sys; signal.signal({int(number)}, lambda *_: sys.exit(5)); {UNTIL_KILLED}"
    program = start(*HOLD, *python(code))
    assert program.hear() == "ready"
    program.send(number)
    assert program.end() == (5, "")


def test_a_signal_ends_the_wait(url: str, start: Start) -> None:
    """One that waits leaves the line, and the command is never started."""
    holder = start(*HOLD, *python(UNTIL_KILLED))
    assert holder.hear() == "ready"
    waiter = start(*HOLD, *python("print('never')"))
    wait_for(url, waiting=1)
    waiter.send(signal.SIGTERM)

    assert waiter.end() == (143, "")
    wait_for(url, waiting=0)


@pytest.mark.parametrize("limit", [["--no-wait"], ["--timeout", "100ms"], ["--timeout", "0.1"]])
def test_a_lock_that_is_not_free_gives_124(url: str, start: Start, limit: list[str]) -> None:
    """The message names the holder; the command is not started."""
    holder = start(*HOLD, *python(UNTIL_KILLED))
    assert holder.hear() == "ready"
    code, said = answer(url, *HOLD, *limit, *python("print('never')"))
    assert code == 124
    assert f"/{holder.process.pid}/" in said
    assert "never" not in said


def test_five_processes_exclude_each_other(start: Start, tmp_path: Path) -> None:
    """Of five at a time, none finds another inside, and each gets its turn."""
    inside = tmp_path / "inside"
    busy = "[os.stat('/') for _ in range(100_000)]"  # long enough to be found inside
    code = f"import os; os.mkdir({str(inside)!r}); {busy}; os.rmdir({str(inside)!r})"
    programs = [start(*HOLD, *python(code)) for _ in range(5)]
    assert [program.end() for program in programs] == [(0, "")] * 5


def test_permits_let_several_in(url: str, start: Start) -> None:
    """Two of two permits at once, and not a third."""
    permits = ("run", "--lock", "a", "--permits", "2")
    programs = [start(*permits, *python(UNTIL_KILLED)) for _ in range(2)]
    assert [program.hear() for program in programs] == ["ready", "ready"]
    assert answer(url, *permits, "--no-wait", "--", "true")[0] == 124
    _, said = answer(url, "run", "--lock", "a", "--permits", "3", "--no-wait", "--", "true")
    assert "standfast: a is in use with 2 permits; they count, and not 3" in said


def test_modes_are_shared_or_not(url: str, start: Start) -> None:
    """A reader comes in beside a reader, a writer does not."""
    reader = start(*HOLD, "--mode", "read", *python(UNTIL_KILLED))
    assert reader.hear() == "ready"
    assert answer(url, *HOLD, "--mode", "read", "--no-wait", "--", "true")[0] == 0
    assert answer(url, *HOLD, "--mode", "write", "--no-wait", "--", "true")[0] == 124
    code, said = answer(url, *HOLD, "--mode", "other", "--", "true")
    assert code == 2
    assert "'other' cannot be the mode of" in said


def test_a_lost_lock_ends_the_command(url: str, start: Start) -> None:
    """Released by force, it is told to end, and the exit code says why."""
    program = start(*HOLD, *python(UNTIL_KILLED))
    assert program.hear() == "ready"
    assert answer(url, "locks", "release", "a", "--yes")[0] == 0

    code, said = program.end()
    assert code == 123
    assert "the lock was lost while the command ran: a, fence" in said


@pytest.mark.parametrize("code", [UNTIL_KILLED, STUBBORN])
def test_what_will_not_end_is_killed_with_all_its_own(url: str, start: Start, code: str) -> None:
    """After the grace the command, if it still runs, and what it has started, if that does."""
    inner = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]); {code}"
    program = start(*HOLD, "--grace", "200ms", *python(inner))
    assert {program.hear(), program.hear()} == {"ready"}
    assert answer(url, "locks", "release", "a", "--yes")[0] == 0

    program.hear_the_end()
    assert program.end()[0] == 123


def test_the_lock_is_taken_away_after_max_hold(url: str) -> None:
    """However alive the command is."""
    code, said = answer(url, *HOLD, "--max-hold", "300ms", "--grace", "5s", "--", "sleep", "30")
    assert code == 123
    assert "max_hold" in said


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a child with its parent")
def test_a_command_does_not_outlive_a_killed_standfast(url: str, start: Start) -> None:
    """It is killed as well, and the lock is free for the next."""
    program = start(*HOLD, *python(STUBBORN))
    assert program.hear() == "ready"
    program.send(signal.SIGKILL)

    program.hear_the_end()
    assert answer(url, *HOLD, "--timeout", "20s", "--", "true") == (0, "")


def test_a_withdrawn_waiter_does_not_run(url: str, start: Start) -> None:
    """It ends with the code for a lock that could not be had."""
    holder = start(*HOLD, *python(UNTIL_KILLED))
    assert holder.hear() == "ready"
    waiter = start(*HOLD, *python("print('never')"))
    [entry] = wait_for(url, waiting=1)
    assert answer(url, "locks", "withdraw", "a", "--entry", entry, "--yes")[0] == 0

    code, said = waiter.end()
    assert code == 124
    assert "an operator took this waiter out" in said


@pytest.mark.parametrize(
    "wrong",
    [
        ["--permits", "2", "--mode", "read"],
        ["--no-wait", "--timeout", "1s"],
        ["--weight", "2"],
        ["--family", "f\n"],
    ],
)
def test_options_that_make_no_sense_together_are_refused(url: str, wrong: list[str], tmp_path: Path) -> None:
    """Before anything is made or waited for."""
    assert answer(url, *HOLD, *wrong, "--", "true")[0] in {1, 2, 125}
    assert list(tmp_path.iterdir()) == []


def test_without_stdin_it_runs_as_well(start: Start) -> None:
    """As a job of cron has it."""
    program = start(*HOLD, "--", "cat", stdin=subprocess.DEVNULL, start_new_session=True)
    assert program.end() == (0, "")


def wait_for(url: str, *, waiting: int) -> list[str]:
    """Return the entries of those who wait, once there are so many."""
    while True:
        told = json.loads(answer(url, "locks", "explain", "a", "--json")[1])
        if len(told["waiters"]) == waiting:
            return [each["entry"] for each in told["waiters"]]
