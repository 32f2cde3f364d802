"""The client of DynamoDB: options, the service's time, errors, and requests with time limits and pauses.

The driver's own retries are off. Whether a request may be sent again depends on what it was, and only the caller knows.
"""

from __future__ import annotations

import asyncio
import functools
import random
import re
import socket
import ssl
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, final

from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
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
from botocore.loaders import Loader
from msgspec import Struct

from standfast.clock import Instant, monotonic
from standfast.errors import (
    OutcomeUnknownError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreGoneError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores.address import tls_error
from standfast.stores.remote.service_time import ServiceTime, shared_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from botocore.awsrequest import AWSPreparedRequest
    from types_aiobotocore_dynamodb import DynamoDBClient

    from standfast.stores.address import Address

    Context = AbstractAsyncContextManager[DynamoDBClient]


# --- options: where the table is, read from a URL ------------------------------------------------------------------

SHORTEST_LEASE: Final = 10.0
"""Several times the second by which two processes may be apart in what they take for the time."""

_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}", re.ASCII)
_REGION: Final = re.compile(r"[a-z0-9-]{1,40}", re.ASCII)
_HTTPS: Final = 443
_HTTP: Final = 80


OPTION_NAMES: Final = ("region", "tls", "tls_ca", "timeout", "connect_timeout", "pool", "create", "shortest_lease")


class DynamoOptions(Struct, frozen=True):
    """How a table is opened. Its ``repr`` shows no secret.

    Attributes:
        table: The name of the table.
        name: The store as shown to people.
        region: The region; empty: as the environment says (``AWS_REGION``, the profile).
        endpoint: The URL of a server of one's own; empty: the service.
        access: The access key id; empty: the usual chain of credentials.
        secret: The secret access key.
        tls: How connections are encrypted; None: they are not.
        timeout: How many seconds a request may take.
        connect_timeout: How many seconds connecting may take.
        pool: How many connections there are at most.
        create: Whether the table is created if it is missing.
        shortest_lease: The shortest lease, in seconds, that locks accept on this store. If it is short, opening the
            first handle of a process takes a second longer: the time must be known better.
    """

    table: str
    name: str = "dynamodb://"
    region: str = ""
    endpoint: str = ""
    access: str = ""
    secret: str = ""
    tls: ssl.SSLContext | None = None
    timeout: float = 5.0
    connect_timeout: float = 5.0
    pool: int = 32
    create: bool = False
    shortest_lease: float = SHORTEST_LEASE

    def __repr__(self) -> str:
        return f"DynamoOptions({self.name})"


def options_of(address: Address) -> DynamoOptions:
    """Read the options out of a URL, and refuse what makes no sense."""
    tls = address.tls(default=True)
    table = address.path()
    if not _TABLE.fullmatch(table):
        raise address.refuse("name a table: 3 to 255 letters, digits, '_', '-' or '.', as in dynamodb:///standfast")
    region = address.take_text("region", "us-east-1" if address.has_host else "")
    if region and not _REGION.fullmatch(region):
        raise address.refuse("region is the name of a region, for example eu-central-1")
    endpoint = ""
    if address.has_host:
        host, port = address.host(_HTTPS if tls else _HTTP)
        endpoint = f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    options = DynamoOptions(
        table=table,
        name=address.name,
        region=region,
        endpoint=endpoint,
        access=address.user or "",
        secret=address.password or "",
        tls=tls,
        timeout=address.take_limit("timeout"),
        connect_timeout=address.take_limit("connect_timeout"),
        pool=address.take_count("pool", 32),
        create=address.take_flag("create", default=False),
        shortest_lease=address.take_seconds("shortest_lease", SHORTEST_LEASE),
    )
    address.finish(*OPTION_NAMES)
    if bool(options.access) != bool(options.secret):
        raise address.refuse("give both an access key and its secret, or neither: then the usual chain is asked")
    return options


# --- errors: one table for all that the driver raises --------------------------------------------------------------

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

    def __init__(self, error: StoreError) -> None:
        super().__init__(error)
        self.problem = error


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


def code_of(error: ClientError) -> str:
    """Return the code of an error of the service."""
    return str(error.response.get("Error", {}).get("Code", ""))


def answered(error: ClientError, store: str, *, writes: bool) -> Exception:
    """Return what to raise for an error that the service answered with."""
    response: Mapping[str, Any] = error.response
    code, said = code_of(error), str(response.get("Error", {}).get("Message", ""))
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
        failed = f"the service failed: {code} {said}"
        return OutcomeUnknownError(store, failed) if writes else TurnedAwayError(StoreUnavailableError(store, failed))
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


def unanswered(error: BotoCoreError | TimeoutError, store: str, *, writes: bool) -> Exception:
    """Return what to raise when there was no answer, or none that can be read."""
    said = f"{type(error).__name__}: {error}" if isinstance(error, BotoCoreError) else "no answer in time"
    if isinstance(error, _NO_CREDENTIALS):
        return UnsuitableStoreError(store, f"no credentials or region are configured for it: {error}")
    if isinstance(error, CredentialRetrievalError) or _is_unreachable(error):
        return TurnedAwayError(StoreUnavailableError(store, said))
    if isinstance(error, _NOT_SENT):
        return StoreUnavailableError(store, f"{tls_error(said)} ({said})" if tls_error(said) else said)
    if writes:
        return OutcomeUnknownError(store, said)
    unavailable = StoreUnavailableError(store, said)
    is_lost = isinstance(error, ConnectionClosedError | EndpointConnectionError)
    return TurnedAwayError(unavailable) if is_lost else unavailable


def _is_unreachable(error: BotoCoreError | TimeoutError) -> bool:
    """Return True if there was no connection. The driver says so also of one that was cut after the sending."""
    if not isinstance(error, EndpointConnectionError):
        return False
    cause: object = error.kwargs.get("error")
    # By its name: the HTTP client is the driver's own affair, and not a dependency of this package.
    is_connecting = any(kind.__name__ == "ClientConnectorError" for kind in type(cause).__mro__)
    return is_connecting or isinstance(cause, socket.gaierror)


# --- the client: time limits, pauses, and the time of every answer -------------------------------------------------

FIRST_PAUSE: Final = 0.025
LONGEST_PAUSE: Final = 1.0
"""Seconds between two tries of a request that was turned away: at first, and at most; each is a random part of it."""

CLOSED_WITHIN: Final = 5.0

PIECE: Final = 1 << 18
"""Bodies up to this many bytes are sent in one go."""

USER_AGENT: Final = "standfast"
"""The driver puts a long one together for every request, which takes a seventh of its time."""


@functools.cache
def _loader() -> Loader:
    """Return what reads the driver's description of the service: a tenth of a second once, not for every handle."""
    return Loader(include_default_search_paths=True)


@final
class RetryBudget:
    """How long one call tries again: for about as long as a request may take."""

    __slots__ = ("_deadline", "_pause", "_random")

    def __init__(self, seconds: float) -> None:
        self._deadline, self._pause = monotonic() + seconds, FIRST_PAUSE
        self._random: Final = random.Random()  # noqa: S311 -- spreads out the retries of several handles

    async def pause(self, turned_away: TurnedAwayError) -> None:
        """Wait before the next try; raise the error if there is to be none."""
        seconds = self._random.uniform(0, self._pause)
        if monotonic() + seconds >= self._deadline:
            raise turned_away.problem from turned_away
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        await asyncio.sleep(seconds)


@final
class DynamoClient:
    """A client of the service, on one event loop."""

    def __init__(self, options: DynamoOptions, client: DynamoDBClient, context: Context) -> None:
        self._options, self._context = options, context
        self.client: Final = client
        self.time: Final[ServiceTime] = shared_time(str(client.meta.endpoint_url))
        self._idle: Final = asyncio.Event()
        self._idle.set()
        self._under_way = 0
        self._is_closed = False

    @classmethod
    async def open(cls, options: DynamoOptions) -> DynamoClient:
        """Make a client; nothing is sent yet."""
        session = AioSession()
        session.register_component("data_loader", _loader())
        config = AioConfig(
            connect_timeout=options.connect_timeout,
            read_timeout=options.timeout,
            max_pool_connections=options.pool,
            retries={"total_max_attempts": 1, "mode": "standard"},
            parameter_validation=False,
            tcp_keepalive=True,
            user_agent=USER_AGENT,
            http_session_cls=AIOHTTPSession if options.tls is None else _encrypting(options.tls),
        )
        try:
            context = session.create_client(
                "dynamodb",
                config=config,
                region_name=options.region or None,
                endpoint_url=options.endpoint or None,
                use_ssl=options.tls is not None,
                aws_access_key_id=options.access or None,
                aws_secret_access_key=options.secret or None,
            )
            client = await context.__aenter__()
            client.meta.events.register("before-send.dynamodb", _in_pieces)
            return cls(options, client, context)
        except (BotoCoreError, ValueError) as error:  # a region or an endpoint that is none
            if isinstance(error, BotoCoreError):
                raise unanswered(error, options.name, writes=False) from error
            raise StoreUnavailableError(options.name, str(error)) from error

    def patience(self) -> RetryBudget:
        """Return how long a call is tried again."""
        return RetryBudget(self._options.timeout)

    async def ask(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request that changes nothing, or nothing that sending it twice changes; try again if turned away."""
        patience = self.patience()
        while True:
            try:
                return await self.send(operation, request, writes=False)
            except TurnedAwayError as turned_away:
                await patience.pause(turned_away)

    async def send(self, operation: str, request: Mapping[str, Any], *, writes: bool) -> Mapping[str, Any]:
        """Send a request once."""
        if self._is_closed:
            raise StoreClosedError(self._options.name, "it was closed")
        store, sent = self._options.name, self.time.elapsed()
        self._under_way += 1
        self._idle.clear()
        try:
            async with asyncio.timeout(self._options.timeout + self._options.connect_timeout):
                answer: Mapping[str, Any] = await getattr(self.client, operation)(**request)
        except ClientError as error:
            self._learn_time(error.response, sent)
            raise answered(error, store, writes=writes) from error
        except (BotoCoreError, TimeoutError) as error:
            raise unanswered(error, store, writes=writes) from error
        else:
            self._learn_time(answer, sent)
            return answer
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    def _learn_time(self, answer: Mapping[str, Any], sent: Instant) -> None:
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if date is not None:
            self.time.learn(date, sent)

    async def aclose(self) -> None:
        """Close all connections, when what is under way has been answered."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            async with asyncio.timeout(CLOSED_WITHIN):
                await self._idle.wait()
        except TimeoutError:
            pass
        finally:
            await self._context.__aexit__(None, None, None)


def _in_pieces(request: AWSPreparedRequest, **_: object) -> None:
    """Have a large body sent piece by piece, so that others get their turn on the loop."""
    if isinstance(request.body, bytes) and len(request.body) > PIECE:
        request.body = BytesIO(request.body)


def _encrypting(tls: ssl.SSLContext) -> type[AIOHTTPSession]:
    """Return the driver's kind of session with a TLS context of ours: by itself it takes none beside its own.

    If it no longer asks for it in this way, it goes by its own context, which checks certificates and names too.
    """

    class Encrypting(AIOHTTPSession):
        def _build_verify_context(self) -> ssl.SSLContext:
            return tls

    return Encrypting
