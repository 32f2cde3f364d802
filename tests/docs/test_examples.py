"""Every example runs and prints what its last comment says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fork_server import forked_run

FOLDER = Path(__file__).resolve().parents[2] / "examples"
# The demonstration takes a while and shows live timings; it has tests of its own, in tests/integration/test_demo.py.
CHECKED_ELSEWHERE = {"demo.py"}
EXAMPLES = [path for path in sorted(FOLDER.glob("*.py")) if path.name not in CHECKED_ELSEWHERE]
MARK = "\n# Output:\n"


def promised(text: str) -> str:
    """Return what an example says it prints: the comment lines after ``# Output:``."""
    assert MARK in text, "an example ends in a comment: # Output:"
    lines = text.rsplit(MARK, maxsplit=1)[-1].splitlines()
    assert all(line == "#" or line.startswith("# ") for line in lines), "only comment lines follow # Output:"
    return "".join(f"{line[2:]}\n" for line in lines)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_prints_what_it_says(example: Path, tmp_path: Path) -> None:
    """An example works in an empty folder, without a warning, and prints exactly its last comment."""
    command = [sys.executable, "-W", "error", str(example)]
    answer = forked_run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=50)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout == promised(example.read_text(encoding="utf-8"))


def test_the_promise_of_an_example_is_read_line_by_line() -> None:
    """An empty comment line stands for an empty line of output."""
    assert promised("print()\n\n# Output:\n# a\n#\n#   b\n") == "a\n\n  b\n"
