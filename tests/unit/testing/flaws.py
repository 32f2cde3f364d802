"""Every way to break the store contract that its suite must notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.unit.testing.tiny import Tiny

FLAWS: dict[str, type[Tiny]] = {}


def flaw(tiny: type[Tiny]) -> type[Tiny]:
    """Note a backend with a flaw; its docstring says which."""
    FLAWS[str(tiny.__doc__).rstrip(".")] = tiny
    return tiny
