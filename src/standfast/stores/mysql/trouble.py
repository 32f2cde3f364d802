"""What a server or its driver complains of, in the words of Standfast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from asyncmy import errors as driver

from standfast.errors import (
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreGoneError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores.credentials import tls_trouble

if TYPE_CHECKING:
    from collections.abc import Mapping

NULL_REFUSED: Final = 1048
"""A column that cannot be NULL was to become NULL: how a guarded statement stops a transaction."""

DUPLICATE: Final = 1062
DEADLOCK: Final = 1213
LOCK_TIMEOUT: Final = 1205
NO_TABLE: Final = 1146
NOT_SENT: Final = frozenset({0, 2006})
"""What the driver says when it could not even send: the server has not seen it."""

WOULD_SHOW_PASSWORD: Final = 2061
"""What we say ourselves when logging in would show the password to whoever listens."""

LOST: Final = NOT_SENT | {2013}
"""What it says when the connection is gone."""

_BUSY: Final = "others hold the same rows; nothing was written"
_DENIED: Final = "the user may not do this; docs/how-to/run-on-mysql.md lists the privileges that are needed"
_LOGIN: Final = "the server does not accept this user and password from here"
_EXPOSED: Final = "it wants the password in the clear, and the connection has no TLS; add ?tls=true to the URL"
_READ_ONLY: Final = "the server takes no writes: it is a replica or was set read_only; connect to the primary"
_FULL: Final = "the server has no room left"
_LIMIT: Final = "the server takes no more connections for now (max_connections, max_user_connections)"
_AWAY: Final = "the connection was lost"

_KNOWN: Final[Mapping[int, tuple[type[StoreError], str]]] = {
    DEADLOCK: (StoreBusyError, _BUSY),
    LOCK_TIMEOUT: (StoreBusyError, _BUSY),
    DUPLICATE: (StoreBusyError, _BUSY),
    NULL_REFUSED: (StoreBusyError, _BUSY),
    **dict.fromkeys((1044, 1142, 1143, 1227, 1370), (UnsuitableStoreError, _DENIED)),
    **dict.fromkeys((1045, 1130, 1251, 1698, 1820, 1862, 2059, 3118), (UnsuitableStoreError, _LOGIN)),
    WOULD_SHOW_PASSWORD: (UnsuitableStoreError, _EXPOSED),
    1049: (UnsuitableStoreError, "there is no such database; create it first"),
    1665: (UnsuitableStoreError, "binlog_format=STATEMENT cannot record what is written here; set it to ROW"),
    **dict.fromkeys((1290, 1792, 1836, 3100), (StoreReadOnlyError, _READ_ONLY)),
    **dict.fromkeys((1021, 1041, 1114, 3675), (StoreFullError, _FULL)),
    NO_TABLE: (StoreGoneError, "a table is missing; open the store anew to have it made"),
    **dict.fromkeys((1040, 1203, 1226), (StoreUnavailableError, _LIMIT)),
    **dict.fromkeys((0, 1053, 1077, 1079, 1317, 1927, 2006, 2013, 2055, 3169), (StoreUnavailableError, _AWAY)),
    2003: (StoreUnavailableError, "cannot connect"),
}
"""Everything that means: it was not done. What is not here may come from a commit that was."""

_UNCERTAIN: Final = frozenset({1053, 1077, 1079, 1317, 1927, 2013, 2055, 3169})
"""What may be said although a transaction was just committed: the connection ended, or the statement was killed."""


def code_of(problem: BaseException) -> int:
    """Return the number that the server or the driver gave a problem; -1 if it has none."""
    code = problem.args[0] if isinstance(problem, driver.Error) and problem.args else -1
    return code if isinstance(code, int) else -1


def is_certain(problem: BaseException) -> bool:
    """Tell whether a transaction that ended with ``problem`` was certainly not committed."""
    code = code_of(problem)
    return code in _KNOWN and code not in _UNCERTAIN


def translated(problem: BaseException, name: str) -> StoreError:
    """Return what to raise for a problem of the driver."""
    code = code_of(problem)
    if trouble := tls_trouble(_shown(problem)):
        return StoreUnavailableError(name, f"{trouble} ({_shown(problem)})")
    if code in _KNOWN:
        kind, text = _KNOWN[code]
        return kind(name, f"{text} ({_shown(problem)})")
    if isinstance(problem, (OSError, TimeoutError, EOFError)):
        return StoreUnavailableError(name, f"{_AWAY} ({_shown(problem)})")
    return StoreError(name, _shown(problem))


def _shown(problem: BaseException) -> str:
    if isinstance(problem, TimeoutError) and not problem.args:
        return "no answer in time"
    if isinstance(problem, driver.Error):
        return " ".join(str(each) for each in problem.args)[:300]
    return f"{type(problem).__name__}: {problem}"[:300]
