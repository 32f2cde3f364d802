"""A process that is forked for a test is like one that was started."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.fork_server import ROOT, ForkedPopen, forked_exec, forked_run, server, words_of

if TYPE_CHECKING:
    from pathlib import Path

SHOW = """
import json, os, signal, sys, threading
os.environ.pop("COLUMNS", None), os.environ.pop("LINES", None)  # a library in C may have set them
print(json.dumps({
    "arguments": sys.argv, "path": sys.path, "folder": os.getcwd(), "parent": os.getppid(), "name": __name__,
    "group": os.getpgid(0) == os.getpgid(os.getppid()), "session": os.getsid(0) == os.getpid(),
    "variables": sorted(os.environ.items()), "descriptors": sorted(os.listdir("/proc/self/fd")),
    "threads": threading.active_count(), "warnings": sys.warnoptions, "mask": os.umask(0),
    "signals": [str(signal.getsignal(number)).split(" at ")[0] for number in sorted(signal.valid_signals())],
    "streams": [(s.fileno(), s.encoding, s.line_buffering, s.isatty()) for s in (sys.stdin, sys.stdout, sys.stderr)],
    "main": sys.modules["__main__"].__dict__ is globals(), "file": globals().get("__file__"),
}, indent=1), sys.stdin.read())
"""

ORPHAN = """
import os
ended, end = os.pipe()
if os.fork():
    os._exit(0)
parent = os.getppid()
while os.getppid() == parent and parent != 1 and os.path.exists(f"/proc/{parent}"):
    os.sched_yield()
print(os.getppid())
"""


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cwd": "/"},
        {"env": {**os.environ, "STANDFAST_OF_A_TEST": "1", "PYTHONPATH": "/a:/b"}},
        {"start_new_session": True},
        {"umask": 0o077},
    ],
    ids=["plain", "folder", "variables", "session", "mask"],
)
@pytest.mark.parametrize("way", ["code", "module", "script"])
def test_it_finds_what_a_fresh_interpreter_finds(tmp_path: Path, way: str, options: dict[str, Any]) -> None:
    """Its arguments, its path, its folder, its parent, its streams, its signals, its variables and nothing else."""
    script = tmp_path / "of_a_test.py"
    script.write_text(SHOW)
    words = {"code": ["-c", SHOW], "module": ["-m", "of_a_test"], "script": [str(script)]}[way]
    if way == "module":
        options = {"cwd": tmp_path, **options}
    command = [sys.executable, "-W", "error", *words, "one", "two"]
    fresh = subprocess.run(command, input="said", capture_output=True, text=True, check=False, **options)
    forked = forked_run(command, input="said", capture_output=True, text=True, check=False, **options)
    assert forked.stdout.splitlines() == fresh.stdout.splitlines()
    assert (forked.returncode, forked.stderr[-80:]) == (fresh.returncode, fresh.stderr[-80:])


@pytest.mark.parametrize(
    "code",
    [
        "",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('a sentence')",
        "1 / 0",
        "raise KeyboardInterrupt",
        "import os; os.kill(os.getpid(), 9)",
        "import atexit; atexit.register(print, 'the end')",
        "import threading, time; threading.Timer(0.01, print, ['late']).start()",
    ],
)
def test_it_ends_as_a_fresh_interpreter_does(code: str) -> None:
    """With the same status, the same output and the same last words."""
    command = [sys.executable, "-c", code]
    fresh = subprocess.run(command, capture_output=True, text=True, check=False)
    forked = forked_run(command, capture_output=True, text=True, check=False)
    assert (forked.returncode, forked.stdout) == (fresh.returncode, fresh.stdout)
    assert forked.stderr.splitlines()[-1:] == fresh.stderr.splitlines()[-1:]


def test_it_is_killed_by_its_number_and_waited_for() -> None:
    """It is a child of the process that started it, not of the server, and leaves nothing behind."""
    with ForkedPopen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(40) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


async def test_it_is_started_and_waited_for_in_a_loop() -> None:
    """As ``asyncio`` starts one, with streams to write to and to read from."""
    pipe = asyncio.subprocess.PIPE
    process = await forked_exec(sys.executable, "-c", "print(input()); exit(3)", stdin=pipe, stdout=pipe)
    said, _ = await process.communicate(b"said\n")
    assert said == b"said\n"
    assert process.returncode == 3


def test_orphans_are_adopted_only_while_one_is_being_started() -> None:
    """What other processes leave behind goes where it always goes."""
    server()
    done = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, check=True)
    assert int(done.stdout) != os.getpid()


@pytest.mark.parametrize("options", [{"env": {**os.environ, "PYTHONHASHSEED": "7"}}, {"preexec_fn": os.getpid}])
def test_what_a_fork_cannot_honour_is_a_fresh_interpreter(options: dict[str, Any]) -> None:
    """A seed of hashes is read when an interpreter starts, so one is started."""
    code = "import sys; print('standfast' in sys.modules)"
    assert forked_run([sys.executable, "-c", code], stdout=subprocess.PIPE, **options).stdout == b"False\n"
    assert forked_run([sys.executable, "-c", code], stdout=subprocess.PIPE).stdout == b"True\n"


@pytest.mark.parametrize("words", [["-P", "-c", "1"], ["-X", "dev", "-c", "1"], ["-"], []])
def test_an_option_that_it_does_not_know_is_left_to_a_fresh_interpreter(words: list[str]) -> None:
    """Only warnings are understood."""
    assert words_of([sys.executable, *words]) is None
    assert words_of(["/bin/true", "-c", "1"]) is None


def test_random_numbers_of_two_forks_differ() -> None:
    """Nothing that was drawn before the fork is drawn twice."""
    code = "import random, uuid; from standfast.ids import *; print(random.random(), uuid.uuid4())"
    command = [sys.executable, "-c", code]
    first, second = (forked_run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout.split() for _ in "ab")
    assert not {*first} & {*second}
