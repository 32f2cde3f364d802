"""The demonstration works wherever it is started, and its exit code tells the truth."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

pytestmark = pytest.mark.heavy  # many real processes: once, on the default interpreter

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEMO = [sys.executable, "-W", "error", str(EXAMPLES / "demo.py"), "--quick"]
LYING_LEDGER = """
import sys
import demo
from demonstration import processes

read = processes.read_ledger
processes.read_ledger = lambda path: read(path) | {"Z/1": 0}
sys.argv = ["demo.py", "--quick", "--json", "--only", "store"]
sys.exit(demo.main())
"""

GULLIBLE_LEDGER = """
import sys
import demo
from demonstration.fenced import FencedLedger

def write(self, name, fence):
    with self._database:
        self._database.execute("INSERT INTO entries (name, fence) VALUES (?, ?)", (name, fence))
    return True

FencedLedger.write = write
sys.argv = ["demo.py", "--quick", "--json", "--only", "takeover"]
sys.exit(demo.main())
"""

UNCOLOURED = """
import os, sys
from demonstration.screen import Screen

os.environ |= {"NO_COLOR": "1", "TERM": "xterm"}
sys.stdout.isatty = lambda: True
screen = Screen(sys.stdout)
print(screen.paint("text", "bold") if screen.live else "not a terminal")
"""


def run(command: list[str], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run something with a temporary folder of its own, outside of a terminal."""
    path = os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=50)


def run_on_a_terminal(columns: int) -> tuple[int, str]:
    """Run the first part of the demonstration on a terminal; return its exit code and what it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS"}}
    process = subprocess.Popen([*DEMO, "--only", "tasks"], stdout=theirs, env={**environment, "TERM": "xterm"})
    os.close(theirs)
    written = b""
    while True:
        try:
            chunk = os.read(ours, 65_536)
        except OSError:  # what Linux answers when the other side has closed the terminal
            break
        if not chunk:
            break
        written += chunk
    os.close(ours)
    return process.wait(timeout=10), written.decode()


def test_without_a_terminal_it_prints_plain_lines_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """In a log there are no control codes and no long lines, and the temporary folder is empty afterwards."""
    answer = run([*DEMO, "--only", "tasks", "--only", "support"], tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "\x1b" not in answer.stdout
    assert max(map(len, answer.stdout.splitlines())) <= 80
    assert "What you saw" in answer.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """What ``--json`` prints for all of it."""
    return run([*DEMO, "--json"], tmp_path_factory.mktemp("demo"))


def reported(answer: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the report that was printed as JSON."""
    assert answer.stdout, answer.stderr
    report: dict[str, Any] = json.loads(answer.stdout)
    return report


def broken_promises(answer: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the promises that were not kept."""
    return [finding["promise"] for finding in reported(answer)["findings"] if not finding["kept"]]


def test_its_summary_for_machines_is_json(summary: subprocess.CompletedProcess[str]) -> None:
    """With ``--json`` nothing but the findings and their figures is printed."""
    report = reported(summary)
    assert summary.returncode == 0, report
    assert report["kept"] is True
    assert {finding["kept"] for finding in report["findings"]} == {True}
    assert report["figures"]["transfers"] > 0


def test_it_shows_a_killed_holder_followed_and_late_writers_refused(
    summary: subprocess.CompletedProcess[str],
) -> None:
    """It closes with who took over from the killed one and the stopped one, how soon, and that both were refused."""
    report = reported(summary)
    kept = {finding["promise"]: finding["kept"] for finding in report["findings"]}
    assert kept["A durable lock outlives its holder: the next in line has it at once."]
    assert kept["A process that is not heard of for a whole lease makes way."]
    assert kept["Whoever has lost a lock cannot write any more."]
    assert 0 < report["figures"]["takeover_after_kill_ms"] < 2000
    assert 0 < report["figures"]["takeover_after_stop_s"] < 2


def test_it_serves_a_chat_that_answers_in_order_and_a_webhook_that_runs_once(
    summary: subprocess.CompletedProcess[str],
) -> None:
    """Of a burst of messages all but the first wait, and of three deliveries one runs."""
    report = reported(summary)
    kept = {finding["promise"]: finding["kept"] for finding in report["findings"]}
    assert kept["Answers in one conversation are given one by one, in order."]
    assert kept["A webhook that fires twice runs once."]
    assert report["figures"]["messages_waited"] >= 1


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM], ids=lambda told: told.name)
def test_told_so_it_keeps_serving_until_it_is_interrupted(told: signal.Signals, tmp_path: Path) -> None:
    """The addresses that it prints are served, the chat and its dashboard, and Ctrl-C ends them in good order."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    command = [*DEMO, "--only", "support", "--serve"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True) as demo:
        assert demo.stdout is not None
        address = next(line for line in demo.stdout if line.startswith("Talk to it at")).split()[4]
        browser = build_opener(HTTPCookieProcessor())  # it is sent on with a cookie in place of the token
        with browser.open(address, timeout=10) as page:
            assert b"<html" in page.read().lower()
        dashboard = next(line for line in demo.stdout if line.startswith("Watch it at")).split()[3]
        with browser.open(dashboard, timeout=10) as page:
            assert b"<h1>Now</h1>" in page.read()
        os.kill(demo.pid, told)
        assert demo.wait(timeout=20) == 0
    for each in (address, dashboard):
        with pytest.raises(URLError):
            browser.open(each, timeout=10)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_promise_is_its_exit_code(tmp_path: Path) -> None:
    """If the ledger names a commit that the store does not have, the demonstration fails."""
    answer = run([sys.executable, "-c", LYING_LEDGER], tmp_path)
    assert answer.returncode == 1
    assert broken_promises(answer) == ["What was acknowledged is durable, whoever dies."]


def test_a_stale_write_that_is_accepted_is_its_exit_code(tmp_path: Path) -> None:
    """If the ledger takes what the killed holder had sent, the demonstration fails."""
    answer = run([sys.executable, "-c", GULLIBLE_LEDGER], tmp_path)
    assert answer.returncode == 1
    assert broken_promises(answer) == ["Whoever has lost a lock cannot write any more."]


def test_on_a_terminal_it_redraws_in_place() -> None:
    """Pictures are drawn over each other in colours, and the cursor comes back in the end."""
    code, written = run_on_a_terminal(84)
    assert code == 0
    assert "\x1b[6A" in written
    assert "\x1b[32m" in written
    assert written.endswith("\x1b[?25h")


def test_who_wants_no_colours_gets_none(tmp_path: Path) -> None:
    """``NO_COLOR`` is respected, on a terminal too."""
    answer = run([sys.executable, "-c", UNCOLOURED], tmp_path)
    assert answer.stdout == "text\n", answer.stderr
