"""What goes wrong with a request, in the words of this library: one table for all that the driver raises."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
    SSLError,
)

from standfast.errors import (
    OutcomeUnknownError,
    StoreBusyError,
    StoreError,
    StoreGoneError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores.credentials import tls_trouble

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_THROTTLED: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ProvisionedThroughputExceeded",
        "ThrottlingException",
        "ThrottlingError",
        "RequestLimitExceeded",
        "LimitExceededException",
    }
)
_CONTENDED: Final = frozenset({"TransactionConflictException", "TransactionConflict"})
_STRANGERS: Final = frozenset(
    {
        "UnrecognizedClientException",
        "InvalidSignatureException",
        "IncompleteSignatureException",
        "MissingAuthenticationTokenException",
        "InvalidClientTokenId",
        "AuthFailure",
    }
)
_UNDER_WAY: Final = "TransactionInProgressException"
"""The same request was sent before, by something on the way, and may yet be done."""

_STALE: Final = frozenset({"ExpiredTokenException", "ExpiredToken", "RequestExpired", "RequestTimeTooSkewed"})

_NOT_SENT: Final = (ConnectTimeoutError, ProxyConnectionError, SSLError)
_NO_CREDENTIALS: Final = (NoCredentialsError, PartialCredentialsError, ProfileNotFound, NoRegionError)

SERVER_FAULT: Final = 500


class TurnedAwayError(Exception):
    """The service did certainly nothing, for now: try again after a pause. ``problem`` is what to raise in the end."""

    def __init__(self, problem: StoreError) -> None:
        super().__init__(problem)
        self.problem = problem


class ConditionError(Exception):
    """The condition of a single write did not hold; ``item`` is what is there, None if there is nothing."""

    def __init__(self, item: Mapping[str, Any] | None) -> None:
        super().__init__(item is not None)
        self.item = item


class CancelledTransactionError(Exception):
    """A transaction was cancelled, with a reason for each of its items."""

    def __init__(self, reasons: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(len(reasons))
        self.reasons = reasons


def code_of(problem: ClientError) -> str:
    """Return the code of an error of the service."""
    return str(problem.response.get("Error", {}).get("Code", ""))


def answered(problem: ClientError, store: str, *, writes: bool) -> Exception:
    """Return what to raise for an error that the service answered with."""
    response: Mapping[str, Any] = problem.response
    code, said = code_of(problem), str(response.get("Error", {}).get("Message", ""))
    if code == "TransactionCanceledException":
        return _cancelled(response.get("CancellationReasons") or (), store, said)
    if code == "ConditionalCheckFailedException":
        return ConditionError(response.get("Item"))
    if code in _CONTENDED:
        return _contended(store)
    if code in _THROTTLED:
        return _throttled(store, said)
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if status >= SERVER_FAULT or code == _UNDER_WAY:
        return _faulty(store, f"the service failed: {code} {said}", writes=writes)
    return _refused(code, said, store, writes=writes)


def _cancelled(reasons: Sequence[Mapping[str, Any]], store: str, said: str) -> Exception:
    codes = {str(reason.get("Code", "None")) for reason in reasons}
    if codes & _CONTENDED:
        return _contended(store)
    if codes & _THROTTLED:
        return _throttled(store, said)
    if codes <= {"None", "ConditionalCheckFailed"} and "ConditionalCheckFailed" in codes:
        return CancelledTransactionError(reasons)
    return StoreError(store, f"the transaction was refused: {said}")


def _contended(store: str) -> TurnedAwayError:
    return TurnedAwayError(StoreBusyError(store, "other transactions kept the same records busy; nothing was written"))


def _throttled(store: str, said: str) -> TurnedAwayError:
    advice = "raise the capacity of the table, or spread the work over several namespaces"
    return TurnedAwayError(StoreUnavailableError(store, f"the service throttles requests ({said}); {advice}"))


def _faulty(store: str, said: str, *, writes: bool) -> Exception:
    return OutcomeUnknownError(store, said) if writes else TurnedAwayError(StoreUnavailableError(store, said))


def _refused(code: str, said: str, store: str, *, writes: bool) -> StoreError:
    if code == "AccessDeniedException":
        error = StoreReadOnlyError if writes else UnsuitableStoreError
        return error(store, f"a permission is missing: {said}. The how-to has the policy that is needed")
    if code in _STRANGERS:
        return UnsuitableStoreError(
            store, f"the service does not accept the credentials ({code}); check the access key"
        )
    if code in _STALE:
        return StoreUnavailableError(store, f"the credentials have expired, or this machine's clock is wrong: {said}")
    if code == "ResourceNotFoundException":
        return StoreGoneError(store, "the table is not there (any more)")
    return StoreError(store, f"{code}: {said}")


def unanswered(problem: BotoCoreError | TimeoutError, store: str, *, writes: bool) -> Exception:
    """Return what to raise when there was no answer, or none that can be read."""
    said = f"{type(problem).__name__}: {problem}" if isinstance(problem, BotoCoreError) else "no answer in time"
    if isinstance(problem, _NO_CREDENTIALS):
        return UnsuitableStoreError(store, f"no credentials or region are configured for it: {problem}")
    if isinstance(problem, CredentialRetrievalError) or _is_unreachable(problem):
        return TurnedAwayError(StoreUnavailableError(store, said))
    if isinstance(problem, _NOT_SENT):
        return StoreUnavailableError(store, f"{tls_trouble(said)} ({said})" if tls_trouble(said) else said)
    if writes:
        return OutcomeUnknownError(store, said)
    unavailable = StoreUnavailableError(store, said)
    is_lost = isinstance(problem, ConnectionClosedError | EndpointConnectionError)
    return TurnedAwayError(unavailable) if is_lost else unavailable


def _is_unreachable(problem: BotoCoreError | TimeoutError) -> bool:
    """Tell whether there was no connection. The driver says so also of one that was cut after the request was sent."""
    if not isinstance(problem, EndpointConnectionError):
        return False
    cause: object = problem.kwargs.get("error")
    # By its name: the HTTP client is the driver's own affair, and not a dependency of this package.
    is_connecting = any(kind.__name__ == "ClientConnectorError" for kind in type(cause).__mro__)
    return is_connecting or isinstance(cause, socket.gaierror)
