"""Which holders may share a key: the whole algebra of modes, as functions of values.

A family declares its modes. Holders share a key only in one and the same mode, and only if that mode is not one
of those that stand ``alone``. A family without modes knows the one mode ``None``, which nobody shares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.errors import UnknownModeError

if TYPE_CHECKING:
    from standfast.keys import KeyFamily


def require_mode(family: KeyFamily, mode: str | None) -> None:
    """Refuse a mode that the family does not declare, and the lack of one where it declares some."""
    if mode in family.modes or mode in family.alone:
        return
    if mode is not None or family.modes or family.alone:
        raise UnknownModeError(family.name, mode, (*family.modes, *family.alone))


def share(family: KeyFamily, held: str | None, wanted: str | None) -> bool:
    """Tell whether a key held in mode ``held`` may at the same time be held in mode ``wanted``."""
    return held == wanted and wanted in family.modes
