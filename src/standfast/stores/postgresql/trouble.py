"""Errors of the driver and of the server, translated once, at the edge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import asyncpg

from standfast.errors import (
    OutcomeUnknownError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores.credentials import tls_trouble
from standfast.stores.moving.protocol import EXPORTED, moved

if TYPE_CHECKING:
    from collections.abc import Mapping

DRIVER_ERRORS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""Whatever the driver raises when a connection is opened or used; a ``TimeoutError`` is an ``OSError``."""

ATTEMPT_CLOSED: Final = "SF001"
CREATED_MEANWHILE: Final = "SF002"
STALE: Final = "SF003"
FROZEN: Final = "SF004"
TRY_AGAIN: Final = frozenset({CREATED_MEANWHILE, "40001", "40P01", "55P03"})
"""Nothing was written, and the same might succeed at once: lost races, deadlocks, locks that were not to be had."""

_BY_CODE: Final[Mapping[str, tuple[type[StoreError], str]]] = {
    "28P01": (UnsuitableStoreError, "it refused the user or the password; correct them"),
    "28000": (UnsuitableStoreError, "it refuses this user; see its pg_hba.conf"),
    "3D000": (UnsuitableStoreError, "it has no such database; create it, or name another one"),
    "3F000": (UnsuitableStoreError, "it has no such schema; let its owner open the store once, or allow migrate=true"),
    "42P01": (UnsuitableStoreError, "its tables are missing; let their owner open the store once"),
    "42883": (UnsuitableStoreError, "its functions are missing; let their owner open the store once"),
    "42501": (UnsuitableStoreError, "this user lacks a privilege; let the owner of the schema call its grant_to(user)"),
    "25006": (StoreReadOnlyError, "it is read-only, perhaps a replica; name the primary"),
    "53100": (StoreFullError, "its disk is full; free some space and retry"),
    "53300": (StoreUnavailableError, "it has too many connections; raise max_connections, or put a pooler in front"),
    "57P03": (StoreUnavailableError, "it is starting or stopping; retry"),
    "57014": (StoreUnavailableError, "it cancelled the statement, perhaps after its statement_timeout; retry"),
    "40001": (StoreUnavailableError, "others changed the same rows at the same time; nothing was written; retry"),
    "40P01": (StoreUnavailableError, "it ended a deadlock by undoing this transaction; nothing was written; retry"),
    "55P03": (StoreUnavailableError, "a lock was not to be had in time, see its lock_timeout; retry"),
    "SF002": (StoreUnavailableError, "a key was created at the same time; nothing was written; retry"),
    "57P01": (StoreUnavailableError, "an administrator ended the session; retry"),
    "25P03": (
        StoreUnavailableError,
        "its idle_in_transaction_session_timeout ended the transaction; raise it for this user",
    ),
    "25P04": (StoreUnavailableError, "its transaction_timeout ended the transaction; raise it"),
    "25P02": (StoreError, "an error in an earlier statement had ended the transaction; nothing was written"),
    "2200H": (StoreError, "its versions are used up"),
    "XX001": (StoreCorruptError, "its data is damaged; restore it from a backup"),
    "XX002": (StoreCorruptError, "an index is damaged; rebuild it with REINDEX"),
}

_SURE_AT_LOGIN: Final = frozenset({"28P01", "28000", "3D000", "53300", "57P03"})
_OVER: Final = frozenset({"FATAL", "PANIC"})


def code_of(problem: BaseException) -> str:
    """Return the SQLSTATE of an error; empty if it has none."""
    return getattr(problem, "sqlstate", None) or ""


def translate(problem: BaseException, name: str) -> StoreError:
    """Return the error for something that was certainly not written."""
    if isinstance(problem, StoreError):
        return problem
    code = code_of(problem)
    if code == FROZEN:
        return moved(name, int(getattr(problem, "detail", None) or EXPORTED))
    if code in _BY_CODE:
        kind, advice = _BY_CODE[code]
        return kind(name, advice)
    if isinstance(problem, TimeoutError):
        return StoreUnavailableError(name, "it did not answer in time; retry")
    if isinstance(problem, OSError | asyncpg.PostgresConnectionError | asyncpg.InterfaceError):
        why = tls_trouble(str(problem)) or "it cannot be reached"
        return StoreUnavailableError(name, f"{why} ({_words(problem)}); retry")
    return StoreUnavailableError(name, f"PostgreSQL failed: {_words(problem)} ({code or type(problem).__name__})")


def translate_write(problem: BaseException, name: str) -> StoreError:
    """Return the error for a write that was sent: unknown, unless the server itself said that it failed.

    An error that ends the session does not say it: it may come after the transaction was committed.
    """
    code = code_of(problem)
    if code in _SURE_AT_LOGIN or (is_answer(problem) and code != "40003"):
        return translate(problem, name)
    return OutcomeUnknownError(name, f"no answer came: {_words(problem)}")


def is_answer(problem: BaseException) -> bool:
    """Tell whether the server itself said that a statement failed, and goes on with the session."""
    if not isinstance(problem, asyncpg.PostgresError) or isinstance(problem, asyncpg.PostgresConnectionError):
        return False
    severity = getattr(problem, "severity_en", None) or getattr(problem, "severity", None) or ""
    return severity not in _OVER


def _words(problem: BaseException) -> str:
    if isinstance(problem, TimeoutError):
        return "it took too long"
    return next(iter(str(problem).splitlines()), "") or type(problem).__name__
