"""What a libSQL server complains of, translated once, at the edge."""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING, Final

import aiohttp

from standfast.errors import (
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores.credentials import tls_trouble
from standfast.stores.moving.protocol import moved

if TYPE_CHECKING:
    from collections.abc import Mapping

    from standfast.stores.libsql.hrana import Failure

UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
BAD_REQUEST: Final = 400
TOO_MANY: Final = 429

_SQL: Final[Mapping[str, tuple[type[StoreError], str]]] = {
    "SQLITE_BUSY": (StoreBusyError, "others kept writing; retry"),
    "SQLITE_LOCKED": (StoreBusyError, "it is locked; retry"),
    "TRANSACTION_BUSY": (StoreBusyError, "the server takes no more transactions for now; retry"),
    "TRANSACTION_TIMEOUT": (StoreBusyError, "the server ended a transaction that took too long; retry"),
    "SQLITE_FULL": (StoreFullError, "the server's disk, or the size it allows, is used up; make room and retry"),
    "SQLITE_READONLY": (StoreReadOnlyError, "the database cannot be written to; name the primary, or fix permissions"),
    "SQLITE_AUTH": (StoreReadOnlyError, "the server does not allow that; give the token write access"),
    "SQLITE_PERM": (StoreReadOnlyError, "the server does not allow that; give the token write access"),
    "BLOCKED": (StoreReadOnlyError, "the server blocks it; ask whoever runs the server"),
    "SQLITE_CORRUPT": (StoreCorruptError, "the database is damaged; restore it from a backup"),
    "SQLITE_NOTADB": (StoreCorruptError, "the file is not a database; restore it from a backup"),
}


_FROZEN: Final = re.compile(r"standfast frozen ([0-9]+)", re.ASCII)


def is_busy(failure: Failure) -> bool:
    """Tell whether another try may succeed at once."""
    return _SQL.get(_code(failure), (StoreError,))[0] is StoreBusyError


def is_rolled_back(failure: Failure) -> bool:
    """Tell whether the server has undone a transaction by itself, so that it cannot be undone any more."""
    return failure.code == "TRANSACTION_TIMEOUT"


def is_constraint(failure: Failure | None) -> bool:
    """Tell whether a constraint did not hold."""
    return failure is not None and _code(failure) == "SQLITE_CONSTRAINT"


def is_frozen(failure: Failure | None) -> bool:
    """Tell whether the store takes no writes, because it was moved."""
    return failure is not None and reason_of(failure.message) > 0


def reason_of(text: str) -> int:
    """Return why a store is frozen, from what its trigger says; 0 if it says nothing of the kind."""
    found = _FROZEN.search(text)
    return int(found[1]) if found else 0


def is_missing_table(failure: Failure) -> bool:
    """Tell whether a table is not there."""
    return "no such table" in failure.message


def is_too_large(failure: Failure) -> bool:
    """Tell whether an answer was larger than the server sends at once."""
    return failure.code == "RESPONSE_TOO_LARGE"


def is_expired_stream(status: int, failure: Failure) -> bool:
    """Tell whether a request named a stream that the server has closed meanwhile, or before it was restarted."""
    return status == BAD_REQUEST or failure.code in {"STREAM_EXPIRED", "BATON_INVALID", "BATON_REUSED"}


def translate(failure: Failure, name: str) -> StoreError:
    """Return the Standfast error for what a server said of a statement that had no effect."""
    if is_frozen(failure):
        return moved(name, reason_of(failure.message))
    error, advice = _SQL.get(_code(failure), (StoreUnavailableError, "the server could not do it"))
    if is_missing_table(failure):
        error, advice = UnsuitableStoreError, "its tables are gone; open it anew with migrate=true"
    return error(name, f"{advice} ({failure.message})")


def refusal(status: int, failure: Failure, name: str) -> StoreError | None:
    """Return the error for an HTTP status that says that nothing was done; None if it does not say that."""
    if status == UNAUTHORIZED:
        return StoreUnavailableError(
            name, f"the server does not accept the token; get a new one, and pass it by sf.Credentials (HTTP {status})"
        )
    if status == FORBIDDEN:
        return StoreReadOnlyError(name, f"the token does not allow that; give it write access (HTTP {status})")
    if status == NOT_FOUND:
        return StoreUnavailableError(name, f"there is no libSQL database at this address (HTTP {status})")
    if status == TOO_MANY:
        return StoreBusyError(name, f"the server has no database connection to spare; let it have more (HTTP {status})")
    if BAD_REQUEST <= status < 500:  # noqa: PLR2004 -- the class of refused requests
        return StoreUnavailableError(name, f"the server refused the request: {failure.message} (HTTP {status})")
    return None


def unreachable(problem: BaseException, name: str) -> StoreUnavailableError:
    """Return the error for a connection that could not be made."""
    cause = getattr(problem, "os_error", None) or getattr(problem, "certificate_error", None) or problem
    if isinstance(problem, aiohttp.ClientConnectorCertificateError):
        return StoreUnavailableError(name, tls_trouble(str(cause)) or f"its certificate is refused ({cause})")
    if isinstance(cause, ssl.SSLError) or isinstance(problem, aiohttp.ClientSSLError):
        return StoreUnavailableError(name, "it does not speak TLS there; for a server without it, add ?tls=false")
    if isinstance(problem, TimeoutError):
        return StoreUnavailableError(name, "no connection could be had in time; is the server up, and the pool large?")
    return StoreUnavailableError(name, f"no connection could be made ({type(cause).__name__}); is the server up?")


def _code(failure: Failure) -> str:
    code = failure.code or ""
    if code.startswith("SQLITE_"):  # SQLITE_CONSTRAINT_NOTNULL is a kind of SQLITE_CONSTRAINT
        return "_".join(code.split("_")[:2])
    return code
