"""The README is read in a minute, and what it and the pages about crashes show in a terminal is what happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import httpx
import pytest

from tests.docs.page import blocks
from tests.docs.test_guarantees import PROOF, functions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Start = Callable[..., subprocess.Popen[str]]

ROOT: Final = Path(__file__).resolve().parents[2]
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
PROOFS: Final = ROOT / "docs" / "explanation" / "proofs.md"
MOST_WORDS: Final = 800
COMMAND: Final = Path(sys.executable).with_name("standfast")


def saved(page: str, name: str, folder: Path) -> None:
    """Save the block of a page that the page says to save under this name."""
    text = (ROOT / page).read_text(encoding="utf-8")
    place = re.search(rf"[Ss]ave (?:this )?as `{name}`", text)
    assert place is not None
    (folder / name).write_text(blocks(text[place.start() :])[0].code, encoding="utf-8")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start programs in an empty folder, and end what is left of them."""
    started: list[subprocess.Popen[str]] = []
    environment = {**os.environ, "STANDFAST_STORE": "sqlite:///expenses.db"}

    def popen(*command: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        started.append(process)
        return process

    yield popen
    for process in started:
        process.kill()
        process.communicate()


def wait_for(line: str, stream: IO[str] | None) -> list[str]:
    """Read lines until one has this in it; return all of them."""
    assert stream is not None
    seen: list[str] = []
    for text in stream:
        seen.append(text.rstrip("\n"))
        if line in seen[-1]:
            return seen
    pytest.fail(f"it ended before {line!r}: {seen}")


def test_the_readme_is_read_in_a_minute() -> None:
    """It stays short: what is longer has a page."""
    assert len(README.split()) <= MOST_WORDS


@pytest.mark.parametrize(
    ("page", "row", "column", "said"),
    [
        (
            "promises",
            "a worker is killed in the middle of a step: another one runs that step after",
            1,
            "after {:.2f} s",
        ),
        ("promises", "a worker is killed in the middle of a step: another one runs that step after", 4, "[{:.1f} s"),
        ("figures", "20 processes: Jain's index (1 is fair)", 2, "(Jain's index) of {:.2f}"),
        ("figures", "100 at a time, 5 steps (runs/s)", 2, "{:,.0f} workflows of five steps"),
        ("figures", "1,000,000 sleeping runs add to a worker (MB)", 2, "add {:.1f} MB"),
        ("figures", "at the seam: arbitration, queue less allow (us)", 2, "adds {:.1f} µs"),
        ("figures", "PostgreSQL: 100 tasks (commits/s)", 2, "{:,.0f} durable commits"),
    ],
)
def test_a_figure_of_the_readme_is_the_measured_one(page: str, row: str, column: int, said: str) -> None:
    """Each highlight says what the page has that a command writes."""
    text = (ROOT / "docs" / "explanation" / f"{page}.md").read_text(encoding="utf-8")
    [line] = [line for line in text.splitlines() if line.startswith(f"| {row} |")]
    [cell] = re.findall(r"^[\d.,]+", line.split("|")[column + 1].strip())
    assert said.format(float(cell.replace(",", ""))) in README


@pytest.mark.parametrize(("name", "path"), PROOF.findall(PROOFS.read_text(encoding="utf-8")))
def test_a_proof_of_the_short_list_is_a_test_that_exists(name: str, path: str) -> None:
    """A link names a test of the file it leads to."""
    assert any(each.rpartition(".")[2] == name for each in functions((PROOFS.parent / path).resolve()))


@pytest.mark.heavy
def test_the_order_of_the_readme_is_charged_once(start: Start, tmp_path: Path) -> None:
    """Killed while it sleeps and started again, as the README does it."""
    saved("README.md", "order.py", tmp_path)
    first = start(sys.executable, "order.py")
    wait_for("charging for tea", first.stdout)
    store = ("--store", "sqlite:///app.db")
    wait_for("sleep", start(COMMAND, *store, "runs", "tail", "order-7").stdout)
    first.kill()

    said, _ = start(sys.executable, "order.py").communicate(timeout=30)
    # A slow machine has killed it before it was suspended: then it is said that its worker died.
    assert re.fullmatch(r"(event=worker-died .* runs=1\n)?receipt for tea\n", said)


@pytest.mark.heavy
def test_an_approval_reaches_a_run_while_no_worker_is_up(start: Start, tmp_path: Path) -> None:
    """The terminal of the page about human approval."""
    saved("docs/how-to/wait-for-human-approval.md", "expenses.py", tmp_path)
    worker = start(COMMAND, "worker", "expenses:engine")
    wait_for("workflows: reimburse", worker.stdout)
    begun = start(COMMAND, "runs", "start", "reimburse", "--input", '["train", 80]', "--id", "expense-1")
    assert begun.wait(30) == 0
    wait_for("to manager: please decide on expense-1: 80 for train", worker.stdout)
    worker.kill()
    worker.wait()

    decision = '{"approved": true, "by": "eve"}'
    sent, _ = start(COMMAND, "runs", "signal", "expense-1", "decision", decision).communicate(timeout=30)
    assert sent == "decision is sent to expense-1\n"
    seen = wait_for("paying 80 for train", start(COMMAND, "worker", "expenses:engine").stdout)
    assert not any(line.startswith("to manager") for line in seen)


@pytest.mark.heavy
def test_a_killed_server_of_fastapi_packs_again_and_charges_once(start: Start, tmp_path: Path) -> None:
    """The terminal of the page about an engine in FastAPI, with curl's part done by httpx."""
    saved("docs/how-to/run-an-engine-in-fastapi.md", "shop.py", tmp_path)
    serve = (sys.executable, "-m", "uvicorn", "shop:api", "--port", "0", "--no-access-log")
    order = {"customer": "ann", "item": "tea", "packing": 3}
    server = start(*serve)
    httpx.put(f"{address(server)}/orders/order-7", json=order).raise_for_status()
    wait_for("packing tea", server.stdout)
    server.kill()
    server.wait()

    server = start(*serve)
    assert httpx.get(f"{address(server)}/orders/order-7/receipt", timeout=30).json() == "receipt for tea"
    server.terminate()
    said, _ = server.communicate(timeout=30)
    assert "charging" not in said


def address(server: subprocess.Popen[str]) -> str:
    """Return where a server listens, when it does."""
    found = re.search(r"http://\S+", wait_for("Uvicorn running", server.stdout)[-1])
    assert found is not None
    return found[0]
