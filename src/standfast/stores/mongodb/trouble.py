"""What MongoDB and its driver complain of, translated once, at the edge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pymongo import errors

from standfast.errors import (
    OutcomeUnknownError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores.credentials import tls_trouble

if TYPE_CHECKING:
    from collections.abc import Mapping

TROUBLE: Final = (errors.PyMongoError, TimeoutError, OSError)
"""What a call of the driver raises."""

DUPLICATE_KEY: Final = 11_000
NAMESPACE_EXISTS: Final = 48
_SHOWN: Final = 300

_READ_ONLY: Final = (StoreReadOnlyError, "this member is no primary; name the whole replica set, with replicaSet=")
_PERMISSION: Final = (
    UnsuitableStoreError,
    "this user may not do all that is needed; see 'Permissions' in 'Run on MongoDB'",
)
_PASSWORD: Final = (
    UnsuitableStoreError,
    "the server refuses this user and password; check them, and authSource, the database that the user is kept in",
)
_STANDALONE: Final = (
    UnsuitableStoreError,
    "this server is no member of a replica set, and so has no transactions; start it with --replSet and initiate it",
)
_FULL: Final = (StoreFullError, "the server's disk is full; make room and retry")
_GOING: Final = (StoreUnavailableError, "the primary is stepping down or shutting down; retry")
_CODES: Final[Mapping[int, tuple[type[StoreError], str]]] = {
    11: _PASSWORD,
    18: _PASSWORD,
    334: _PASSWORD,
    8_000: _PASSWORD,
    13: _PERMISSION,
    31: _PERMISSION,
    20: _STANDALONE,
    40_573: _STANDALONE,  # change streams are for replica sets only
    14_031: _FULL,
    10_107: _READ_ONLY,
    13_435: _READ_ONLY,
    10_058: _READ_ONLY,
    189: _GOING,
    91: _GOING,
    11_600: _GOING,
    11_602: _GOING,
    13_436: _GOING,
    112: (StoreUnavailableError, "others kept changing the same records; retry"),
    24: (StoreUnavailableError, "somebody keeps a collection locked; retry"),
    50: (StoreUnavailableError, "the server took longer than the time limit; see ?timeout="),
    262: (StoreUnavailableError, "the server took longer than the time limit; see ?timeout="),
    388: (StoreUnavailableError, "the commit does not fit the server's cache; give it more, or write less at once"),
    26: (UnsuitableStoreError, "its collections are gone; open it anew with migrate=true"),
    121: (UnsuitableStoreError, "a validator on Standfast's collections refuses its documents; remove it"),
}


def code_of(problem: BaseException) -> int:
    """Return the number of what a server answered; 0 if it is not an answer of a server."""
    code = getattr(problem, "code", None)
    return code if isinstance(code, int) else 0


def is_transient(problem: BaseException) -> bool:
    """Tell whether a transaction was undone, and may be tried again at once."""
    return isinstance(problem, errors.PyMongoError) and problem.has_error_label("TransientTransactionError")


def commit_is_unknown(problem: BaseException) -> bool:
    """Tell whether a transaction may have been committed: unless the server says that it was undone."""
    if not isinstance(problem, errors.PyMongoError):
        return True
    return problem.has_error_label("UnknownTransactionCommitResult") or not is_transient(problem)


def translate(store: str, problem: BaseException) -> StoreError:
    """Return the error that says what a failed call means and what to do. Nothing was written."""
    said = str(problem)[:_SHOWN] or type(problem).__name__
    code = code_of(problem)
    if code in _CODES:
        kind, meaning = _CODES[code]
        return kind(store, f"{meaning} ({said})")
    if isinstance(problem, errors.ServerSelectionTimeoutError):
        why = f"no primary could be reached in time; is the server up? ({said})"
        return StoreUnavailableError(store, tls_trouble(str(problem)) or why)
    if isinstance(problem, errors.ConfigurationError):
        return UnsuitableStoreError(store, f"the driver refuses the address ({said})")
    if isinstance(problem, TimeoutError):
        return StoreUnavailableError(store, "the server took longer than the time limit; see ?timeout=")
    if isinstance(problem, (errors.ConnectionFailure, OSError)):
        return StoreUnavailableError(store, tls_trouble(str(problem)) or f"the connection failed ({said})")
    return StoreUnavailableError(store, f"the server refused: {said}")


def unknown(store: str, problem: BaseException) -> OutcomeUnknownError:
    """Return the error for a write that was sent, and may or may not have been done."""
    said = str(problem)[:_SHOWN] or type(problem).__name__
    return OutcomeUnknownError(store, f"the answer to a commit was lost ({said})")


def may_have_happened(problem: BaseException) -> bool:
    """Tell whether a single write may have been done although it failed."""
    if isinstance(problem, (errors.ServerSelectionTimeoutError, errors.WaitQueueTimeoutError)):
        return False
    if isinstance(problem, (errors.WTimeoutError, errors.WriteConcernError)):
        return True
    return code_of(problem) == 0
