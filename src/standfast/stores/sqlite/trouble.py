"""Driver errors, translated once, at the edge."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import apsw

from standfast.errors import (
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreGoneError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from standfast.stores.moving.protocol import moved

if TYPE_CHECKING:
    from collections.abc import Mapping

_KINDS: Mapping[type[apsw.Error], tuple[type[StoreError], str]] = {
    apsw.BusyError: (StoreBusyError, "another program keeps it locked; retry, and leave the file to Standfast"),
    apsw.LockedError: (StoreBusyError, "it is locked; retry"),
    apsw.FullError: (StoreFullError, "the disk is full; free some space and retry"),
    apsw.ReadOnlyError: (StoreReadOnlyError, "it cannot be written to; fix the permissions of the file and its folder"),
    apsw.PermissionsError: (StoreReadOnlyError, "access is denied; fix the permissions of the file and its folder"),
    apsw.CantOpenError: (StoreUnavailableError, "it cannot be opened; check that the folder exists and may be used"),
    apsw.CorruptError: (StoreCorruptError, "its content is damaged; restore it from a backup"),
    apsw.NotADBError: (StoreCorruptError, "it is not an SQLite database; name another file"),
}


FROZEN: Final = re.compile(r"standfast frozen (?P<reason>[0-9]+)", re.ASCII)
"""What the trigger says that freezes a store."""


def translate(problem: apsw.Error, name: str) -> StoreError:
    """Return the Standfast error for a driver error."""
    code = getattr(problem, "extendedresult", 0)
    if code == apsw.SQLITE_READONLY_DBMOVED:
        return StoreGoneError(name, "the file was deleted, moved or replaced; put it back or open it anew")
    frozen = FROZEN.search(str(problem))
    if frozen is not None:
        return moved(name, int(frozen["reason"]))
    for kind, (error, advice) in _KINDS.items():
        if isinstance(problem, kind):
            return error(name, advice)
    return StoreUnavailableError(name, f"SQLite failed: {problem}")
