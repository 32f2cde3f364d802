"""The backend that the documentation builds keeps the store contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.docs.page import blocks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "write-a-store.md"


def defined_on_the_page() -> dict[str, Any]:
    """Return what the blocks of the page define; the one that awaits only shows it off."""
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks(PAGE.read_text(encoding="utf-8")):
        if "await store" not in block.code.replace("await store.aclose", ""):
            exec(compile("\n" * block.line + block.code, str(PAGE), "exec"), namespace)  # noqa: S102 -- our own page
    return namespace


TestShelf = defined_on_the_page()["TestShelf"]
