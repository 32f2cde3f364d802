"""What the documentation shows is what happens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.page import blocks
from tests.fork_server import forked_run

if TYPE_CHECKING:
    import subprocess

ROOT = Path(__file__).resolve().parents[2]
RUNNER = Path(__file__).with_name("page.py")
PAGES = sorted([*ROOT.glob("*.md"), *(path for path in ROOT.glob("docs/**/*.md") if "_build" not in path.parts)])


def run_page(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a page in a process of its own, in an empty folder, with warnings as errors."""
    command = [sys.executable, "-W", "error", str(RUNNER), str(page)]
    return forked_run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=50)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_on_a_page_runs_and_prints_what_the_page_says(page: Path, tmp_path: Path) -> None:
    """Every Python block of every page works, in order, in a process of its own."""
    if not blocks(page.read_text(encoding="utf-8")):
        return
    answer = run_page(page, tmp_path)
    assert answer.returncode == 0, answer.stderr


def test_a_page_that_prints_something_else_fails(tmp_path: Path) -> None:
    """A wrong output on a page is found, and the message has both sides."""
    page = tmp_path / "page.md"
    page.write_text("```python\nimport asyncio\nawait asyncio.sleep(0)\nprint(1 + 1)\n```\n\n```output\n3\n```\n")
    answer = run_page(page, tmp_path)
    assert answer.returncode != 0
    assert "printed\n2\n" in answer.stderr


def test_an_error_on_a_page_names_the_page_and_its_line(tmp_path: Path) -> None:
    """The traceback of a broken block points into the page."""
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\nx.nothing\n```\n")
    assert f'{page}", line 5' in run_page(page, tmp_path).stderr


@pytest.mark.parametrize("info", ["python no-run", "python no-run: because", "py", "{code-block} python"])
def test_a_block_cannot_be_left_out_without_a_reason(info: str) -> None:
    """Python that does not run must say why in its fence."""
    with pytest.raises(ValueError, match="line 1"):
        blocks(f"```{info}\n1 / 0\n```\n")


def test_a_block_in_a_list_is_found() -> None:
    """The indent that a list gives to a block is taken off."""
    [block] = blocks("1. First:\n\n   ```python\n   if True:\n       x = 1\n   ```\n")
    assert block.code == "if True:\n    x = 1\n"
