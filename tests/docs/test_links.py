"""Links between the files of the project lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(path for path in ROOT.glob("docs/**/*.md") if "_build" not in path.parts)])
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ +(?P<title>.+)$", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Return the anchors that the headings of a page give."""
    titles = (heading["title"].strip().lower() for heading in HEADING.finditer(text))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def broken_links(page: Path) -> list[str]:
    """Return the links to files or headings that are not there; addresses on the web are not looked up."""
    found: list[str] = []
    for link in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
        name, _, anchor = link["target"].partition("#")
        target = (page.parent / name).resolve() if name else page
        if re.match(r"[a-z]+:", link["target"]):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            found.append(link["target"])
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    """A relative link names a file, and a heading in it, that exist."""
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    """A missing file and a missing heading are both broken links; code is no link."""
    page = tmp_path / "page.md"
    page.write_text("# Here it is\n[a](#here-it-is) [b](#there) [c](gone.md) `[d](e)` [f](https://example.org)\n")
    assert broken_links(page) == ["#there", "gone.md"]
