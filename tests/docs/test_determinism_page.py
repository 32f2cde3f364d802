"""Every row of the page about determinism has its test, and every test of a mistake has its row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "reference" / "determinism.md").read_text(encoding="utf-8")
FOLDER = ROOT / "tests" / "unit" / "workflows"
ROW = re.compile(r"^\| (?!mistake |what looks |change ).+ \|$", re.MULTILINE)
NAMED = re.compile(r"\| `(test_\w+)` \|$", re.MULTILINE)


def cases_of(name: str) -> set[str]:
    """Return the tests of a file."""
    tree = ast.parse((FOLDER / name).read_text(encoding="utf-8"))
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


@pytest.mark.parametrize("row", [row.strip("| ") for row in ROW.findall(TEXT)])
def test_a_row_names_a_test_that_exists(row: str) -> None:
    """The last cell is a test of one of the two files."""
    [named] = NAMED.findall(f"| {row} |")
    assert named in cases_of("test_context_mistakes.py") | cases_of("test_replay.py")


@pytest.mark.parametrize("file", ["test_context_mistakes.py", "test_replay.py"])
def test_every_test_of_a_mistake_is_on_the_page(file: str) -> None:
    """What is tried is also told."""
    assert cases_of(file) <= set(NAMED.findall(TEXT))
