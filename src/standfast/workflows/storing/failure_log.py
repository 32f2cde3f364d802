"""Failures in the log: one ERROR entry for each run or request that failed, with the lines of the user's own code.

They are written through the standard ``logging``, to loggers below ``standfast``, whether or not there are hooks. If
nothing is configured, Python prints them to stderr. An entry has the message of the exception with secrets masked, and
no value besides.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from standfast.locks.explaining.explanation import one_line
from standfast.workflows.storing.failures import KnownErrors, describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from standfast.workflows.storing.failures import Failure

_LOGGED: Final = "__standfast_logged__"
_PLAIN: Final = KnownErrors()


def log_failure(logger: logging.Logger, what: str, failure: Failure | BaseException, **facts: str) -> None:
    """Write that something failed, as one entry.

    Args:
        logger: Where to.
        what: What failed, as the subject of a sentence.
        failure: What was raised.
        facts: More for handlers that take structure: they find it in ``record.standfast``.
    """
    if not logger.isEnabledFor(logging.ERROR):
        return
    told = describe(failure, _PLAIN) if isinstance(failure, BaseException) else failure
    first, *rest = failure_lines(told)
    message = "\n".join([f"{what} failed: {first}", *(f"  {line}" for line in rest)])
    structured = {"event": "failure", **facts, "error": told.type, "message": told.message, "trace": told.trace}
    logger.error("%s", message, extra={"standfast": structured})


def failure_lines(failure: Failure) -> Iterator[str]:
    """Yield what was raised, from where, and what caused it, unless that ends in the same lines."""
    name = one_line(failure.type.removeprefix("builtins."))
    yield f"{name}: {one_line(failure.message)}" if failure.message else name
    yield from map(one_line, failure.trace.splitlines())
    if failure.cause is not None and not (failure.cause.trace and failure.trace.endswith(failure.cause.trace)):
        first, *rest = failure_lines(failure.cause)
        yield f"caused by {first}"
        yield from rest


def set_logged(error: BaseException) -> None:
    """Note that what an exception tells of is in the log already, so that whoever passes it on does not repeat it."""
    error.__dict__[_LOGGED] = True


def is_logged(error: BaseException | None) -> bool:
    """Return True if what an exception tells of is in the log already."""
    return error is not None and _LOGGED in error.__dict__
