"""Every dependency has its reason written down."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "dependencies.md"


def declared() -> set[str]:
    """Return the names of all direct dependencies, of the package and of its development."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"].get("optional-dependencies", {})
    lists = [project["project"]["dependencies"], *project["dependency-groups"].values(), *extras.values()]
    texts = [entry for entries in lists for entry in entries if isinstance(entry, str)]
    inputs = [line for path in ROOT.glob("requirements/*.in") for line in path.read_text(encoding="utf-8").splitlines()]
    return {re.split(r"[^\w.-]", text)[0].lower() for text in texts + inputs}


def test_every_dependency_has_its_reason_on_the_page() -> None:
    """The page of dependencies names what is declared, no more and no less."""
    named = re.findall(r"^\| `([\w.-]+)` \| \S.*\S \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(named) == sorted(declared())
