"""The reference lists exactly what the conformance suites check.

After a change of a suite, ``python tests/docs/test_conformance_page.py`` writes the lists anew.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from standfast.testing.conformance import LockConformance, RunLockConformance, StoreConformance, WorkflowConformance

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "conformance.md"
SUITES: dict[str, tuple[type, str]] = {
    "cases": (StoreConformance, "##"),
    "lock cases": (LockConformance, "###"),
    "run lock cases": (RunLockConformance, "###"),
    "workflow cases": (WorkflowConformance, "###"),
}


def listing(marker: str) -> re.Pattern[str]:
    """Return what finds the list between its marks."""
    return re.compile(rf"(?<=<!-- {marker} -->\n).*?(?=<!-- /{marker} -->)", re.DOTALL)


def sentence(name: str) -> str:
    """Return the name of a test as a sentence."""
    return name.removeprefix("test_").replace("_", " ").capitalize()


def cases(suite: type, heading: str) -> str:
    """Return the list as it should be on the page."""
    lines: list[str] = []
    for group in suite.__bases__:
        tests = {name: test for name, test in vars(group).items() if name.startswith("test_")}
        lines += ["", f"{heading} {group.__name__.removesuffix('Cases')}", "", str(group.__doc__), ""]
        lines += [f"{sentence(name)}\n: {test.__doc__}\n" for name, test in tests.items()]
    return "\n".join([*lines, ""])


@pytest.mark.parametrize("marker", SUITES)
def test_the_page_lists_every_case(marker: str) -> None:
    """Whoever writes a store can read what it will be held to."""
    [listed] = listing(marker).findall(PAGE.read_text(encoding="utf-8"))
    assert listed == cases(*SUITES[marker])


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    for mark, wanted in SUITES.items():
        before, after = listing(mark).split(text)
        text = before + cases(*wanted) + after
    PAGE.write_text(text, encoding="utf-8")
