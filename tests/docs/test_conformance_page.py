"""The reference lists exactly what the conformance suite checks.

After a change of the suite, ``python tests/docs/test_conformance_page.py`` writes the list anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.testing.conformance import StoreConformance

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "conformance.md"
LIST = re.compile(r"(?<=<!-- cases -->\n).*?(?=<!-- /cases -->)", re.DOTALL)


def sentence(name: str) -> str:
    """Return the name of a test as a sentence."""
    return name.removeprefix("test_").replace("_", " ").capitalize()


def cases() -> str:
    """Return the list as it should be on the page."""
    lines: list[str] = []
    for group in StoreConformance.__bases__:
        tests = {name: test for name, test in vars(group).items() if name.startswith("test_")}
        lines += ["", f"## {group.__name__.removesuffix('Cases')}", "", str(group.__doc__), ""]
        lines += [f"{sentence(name)}\n: {test.__doc__}\n" for name, test in tests.items()]
    return "\n".join([*lines, ""])


def test_the_page_lists_every_case() -> None:
    """Whoever writes a store can read what it will be held to."""
    [listed] = LIST.findall(PAGE.read_text(encoding="utf-8"))
    assert listed == cases()


if __name__ == "__main__":
    PAGE.write_text(LIST.sub(lambda _: cases(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
