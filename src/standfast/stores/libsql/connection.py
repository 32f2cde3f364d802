"""The connection to a libSQL server: options, errors, streams that are left open, and requests over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from base64 import b64encode
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Final, final

import aiohttp
from msgspec import Struct

from standfast.errors import (
    OutcomeUnknownError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores.address import Address, tls_error
from standfast.stores.backend import moved_error
from standfast.stores.libsql.hrana import (
    BatchResults,
    Cell,
    HranaBatch,
    HranaFailure,
    closing,
    read_entry,
    read_failure,
    read_reply,
)
from standfast.stores.remote.connection import ConnectBackoff

# --- options: what a URL says --------------------------------------------------------------------------------------

SECURE_PORT: Final = 443
PLAIN_PORT: Final = 8080
OPTION_NAMES: Final = (
    "tls",
    "tls_ca",
    "timeout",
    "connect_timeout",
    "pool",
    "prefix",
    "migrate",
    "durable",
    "authToken",
)


class LibsqlOptions(Struct, frozen=True):
    """Where the server is, and how to talk to it. No secret is in it, only the way to one."""

    name: str
    """The URL as it may be shown."""
    url: str
    authorization: Callable[[], str | None]
    """Returns the header that opens the door, as it is now."""
    tls: ssl.SSLContext | None
    timeout: float = 5.0
    connect_timeout: float = 5.0
    pool: int = 8
    prefix: str = "standfast_"
    migrate: bool = True
    durable: str = "check"


def read_options(address: Address) -> LibsqlOptions:
    """Read a URL: ``libsql://[:token@]host[:port][?tls=false&...]``.

    Raises:
        InvalidUrlError: Something in it cannot be used.
    """
    tls = address.tls(default=True)
    host, port = address.host(PLAIN_PORT if tls is None else SECURE_PORT)
    if address.path():
        raise address.refuse("a libSQL server has one database a host name; leave out what follows the host")
    token = address.take_text("authToken")
    options = LibsqlOptions(
        name=address.name,
        url=f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}",
        authorization=lambda: _authorization(address, (address.password or token).strip()),
        tls=tls,
        timeout=address.take_limit("timeout"),
        connect_timeout=address.take_limit("connect_timeout"),
        pool=address.take_count("pool", 8, most=100),
        prefix=address.take_identifier("prefix", "standfast_"),
        migrate=address.take_flag("migrate", default=True),
        durable=address.take_choice("durable", ("check", "true", "false"), "check"),
    )
    address.finish(*OPTION_NAMES)
    return options


def _authorization(address: Address, secret: str) -> str | None:
    if not secret:
        return None
    if not (secret.isascii() and secret.isprintable()):
        raise address.refuse("the token has characters in it that no header may have; is it the whole file of a key?")
    return f"Basic {b64encode(f'{address.user}:{secret}'.encode()).decode()}" if address.user else f"Bearer {secret}"


# --- streams: each is a database connection on the server, and making one costs a third of a call ------------------
#
# A server has few of them, 128 by default. So a stream is left open only in a row of calls that follow close upon each
# other; a handle that calls now and then opens and closes one with every call.

CLOSE_UPON: Final = 0.02
"""Within how many seconds after the last call the next one belongs to the same row."""

ROW: Final = 5
"""The call of a row from which on streams are left open."""

MOST: Final = 2
"""How many streams are left open: one for commits, one for reads."""

USED_WITHIN: Final = 7.0
"""After how many idle seconds a stream is no longer used. Servers close it after ten."""


@final
class Streams:
    """The batons of idle streams, the last used one first."""

    __slots__ = ("_idle", "_last_at", "_loop", "_row", "_tied")

    def __init__(self) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._idle: Final[list[tuple[float, str]]] = []
        self._last_at = 0.0
        self._row = 0
        self._tied = False

    def is_left_open(self) -> bool:
        """Return True if the call that begins now is to leave its stream open."""
        self._row = self._row + 1 if self._loop.time() - self._last_at < CLOSE_UPON else 1
        return self._row >= ROW and not self._tied

    def take(self) -> str | None:
        """Take a stream for one call; None if there is none, and then the call opens one."""
        while self._idle:
            idle_since, baton = self._idle.pop()
            if self._loop.time() - idle_since < USED_WITHIN:
                return baton
            self._idle.clear()  # the others have been idle for longer
        return None

    def put(self, baton: str | None, base_url: str | None) -> None:
        """Take notice that a call has ended, and take back the stream that it left open, if it did.

        Where there are several servers behind one address, a stream is tied to one of them, at an address of its
        own. Then none is left open: every call goes to the address that was given.
        """
        self._last_at = now = self._loop.time()
        if base_url:
            self._tied = True
            self._idle.clear()
        elif baton is not None and len(self._idle) < MOST:
            self._idle.append((now, baton))

    def clear(self) -> None:
        """Forget all streams."""
        self._idle.clear()


# --- errors of a libSQL server, translated once, at the edge -------------------------------------------------------

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
    "BLOCKED": (StoreReadOnlyError, "the server blocks it; ask its operator"),
    "SQLITE_CORRUPT": (StoreCorruptError, "the database is damaged; restore it from a backup"),
    "SQLITE_NOTADB": (StoreCorruptError, "the file is not a database; restore it from a backup"),
}


_FROZEN: Final = re.compile(r"standfast frozen ([0-9]+)", re.ASCII)


def is_busy(failure: HranaFailure) -> bool:
    """Return True if another try may succeed at once."""
    return _SQL.get(_code(failure), (StoreError,))[0] is StoreBusyError


def is_rolled_back(failure: HranaFailure) -> bool:
    """Return True if the server has undone a transaction by itself, so that it cannot be undone any more."""
    return failure.code == "TRANSACTION_TIMEOUT"


def is_constraint(failure: HranaFailure | None) -> bool:
    """Return True if a constraint did not hold."""
    return failure is not None and _code(failure) == "SQLITE_CONSTRAINT"


def is_frozen(failure: HranaFailure | None) -> bool:
    """Return True if the store takes no writes, because it was moved."""
    return failure is not None and reason_of(failure.message) > 0


def reason_of(text: str) -> int:
    """Return why a store is frozen, from what its trigger says; 0 if it says nothing of the kind."""
    found = _FROZEN.search(text)
    return int(found[1]) if found else 0


def is_missing_table(failure: HranaFailure) -> bool:
    """Return True if a table is not there."""
    return "no such table" in failure.message


def is_too_large(failure: HranaFailure) -> bool:
    """Return True if an answer was larger than the server sends at once."""
    return failure.code == "RESPONSE_TOO_LARGE"


def is_expired_stream(status: int, failure: HranaFailure) -> bool:
    """Return True if a request named a stream that the server has closed meanwhile, or before it was restarted."""
    return status == BAD_REQUEST or failure.code in {"STREAM_EXPIRED", "BATON_INVALID", "BATON_REUSED"}


def translate(failure: HranaFailure, name: str) -> StoreError:
    """Return the Standfast error for what a server said of a statement that had no effect."""
    if is_frozen(failure):
        return moved_error(name, reason_of(failure.message))
    error, advice = _SQL.get(_code(failure), (StoreUnavailableError, "the server could not do it"))
    if is_missing_table(failure):
        error, advice = UnsuitableStoreError, "its tables are missing; open it again with migrate=true"
    return error(name, f"{advice} ({failure.message})")


def refusal(status: int, failure: HranaFailure, name: str) -> StoreError | None:
    """Return the error for an HTTP status that says that nothing was done; None if it does not say that."""
    if status == UNAUTHORIZED:
        return StoreUnavailableError(
            name, f"the server refuses the token; get a new one and pass it by sf.admin.Credentials (HTTP {status})"
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


def unreachable(error: BaseException, name: str) -> StoreUnavailableError:
    """Return the error for a connection that could not be made."""
    cause = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return StoreUnavailableError(name, tls_error(str(cause)) or f"its certificate is refused ({cause})")
    if isinstance(cause, ssl.SSLError) or isinstance(error, aiohttp.ClientSSLError):
        return StoreUnavailableError(name, "it does not speak TLS there; for a server without it, add ?tls=false")
    if isinstance(error, TimeoutError):
        return StoreUnavailableError(name, "no connection could be made in time; is the server up, and the pool large?")
    return StoreUnavailableError(name, f"no connection could be made ({type(cause).__name__}); is the server up?")


def _code(failure: HranaFailure) -> str:
    code = failure.code or ""
    if code.startswith("SQLITE_"):  # SQLITE_CONSTRAINT_NOTNULL is a kind of SQLITE_CONSTRAINT
        return "_".join(code.split("_")[:2])
    return code


# --- calling a libSQL server: HTTP connections that are kept, and streams that are used again ----------------------
#
# A request that may have been carried out though its answer is missing raises ``OutcomeUnknownError``; everything else
# that goes wrong before or instead of that says that nothing was done.

OK: Final = 200
CLOSED_WITHIN: Final = 1.0
FULL_TRIES: Final = 3
"""How often a server is asked again that had no database connection to spare. It waits a second itself each time."""

_VERSIONS: Final = ("v3", "v2")
_PIECE: Final = 1 << 18


@final
class LibsqlConnection:
    """One handle's connections to a server, on one event loop."""

    def __init__(self, options: LibsqlOptions) -> None:
        self._options: Final = options
        self._name: Final = options.name
        self._backoff: Final = ConnectBackoff()
        self._streams: Final = Streams()
        self._version = _VERSIONS[0]
        self._authorization = options.authorization()
        self._session: Final = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=options.pool, ssl=options.tls or False),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                total=options.timeout + options.connect_timeout, connect=options.connect_timeout
            ),
        )

    # --- batches ---------------------------------------------------------------------------------------------

    async def write(self, batch: HranaBatch) -> BatchResults | HranaFailure:
        """Run a batch that changes something. A failure ended it half-way, at an unknown step.

        Raises:
            OutcomeUnknownError: It was sent, and no answer came.
            StoreUnavailableError: It was certainly not run.
        """
        return await self._run(batch)

    async def read(self, batch: HranaBatch) -> BatchResults | HranaFailure:
        """Run a batch that does no harm if it is run twice; one whose connection was closed meanwhile is sent again.

        Raises:
            StoreUnavailableError: No answer came.
        """
        for tries_left in (1, 0):
            try:
                return await self._run(batch)
            except OutcomeUnknownError as error:
                if not tries_left or isinstance(error.__cause__, TimeoutError):
                    raise StoreUnavailableError(self._name, error.problem) from error.__cause__
        raise AssertionError

    async def _run(self, batch: HranaBatch) -> BatchResults | HranaFailure:
        baton, close = self._streams.take(), not self._streams.is_left_open()
        status, body = await self._post("pipeline", batch.encoded(baton, close=close))
        if status != OK and baton is not None and is_expired_stream(status, read_failure(body)):
            self._streams.clear()  # what closed one has closed the others too
            status, body = await self._post("pipeline", batch.encoded(None, close=close))
        for _ in range(FULL_TRIES):
            if status != TOO_MANY:
                break
            status, body = await self._post("pipeline", batch.encoded(None, close=True))
        reply = read_reply(body) if status == OK else None
        if reply is None:
            failure = read_failure(body)
            certain = refusal(status, failure, self._name)
            raise certain or OutcomeUnknownError(self._name, f"the server answered HTTP {status}: {failure.message}")
        answer = reply.batch()
        if isinstance(answer, BatchResults):
            self._streams.put(reply.baton, reply.base_url)
        elif reply.baton is not None:  # it ended half-way, perhaps in a transaction that would keep others waiting
            with contextlib.suppress(StoreError):
                await self._post("pipeline", closing(reply.baton))
        return answer

    # --- rows one by one -------------------------------------------------------------------------------------

    async def rows(self, batch: HranaBatch) -> list[list[Cell]]:
        """Return all rows of a batch that reads, however many bytes they are.

        Raises:
            StoreUnavailableError: They did not arrive.
        """
        found: list[list[Cell]] = []
        left = b""
        try:
            async with self._session.post(
                f"{self._options.url}/v3/cursor", data=batch.encoded_as_cursor(), headers=self._headers()
            ) as response:
                if response.status != OK:
                    body = await response.read()
                    raise refusal(response.status, read_failure(body), self._name) or StoreUnavailableError(
                        self._name, "the server gave no answer that can be read"
                    )
                async for chunk in response.content.iter_chunked(_PIECE):
                    *lines, left = (left + chunk).split(b"\n")
                    for line in lines:
                        self._take_entry(line, found)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise unreachable(error, self._name) from None
        return found

    def _take_entry(self, line: bytes, found: list[list[Cell]]) -> None:
        entry = read_entry(line)
        if entry is None or entry.error is not None:
            failure = HranaFailure("an unknown entry") if entry is None or entry.error is None else entry.error
            raise translate(failure, self._name)
        if entry.type == "row":
            found.append(entry.decoded())
        elif entry.baton is not None:
            self._streams.put(entry.baton, None)

    # --- HTTP ------------------------------------------------------------------------------------------------

    async def _post(self, endpoint: str, body: bytes) -> tuple[int, bytes]:
        status, answer = await self._send(endpoint, body)
        if status == NOT_FOUND and self._version == _VERSIONS[0]:
            older, answer_to_older = await self._send(endpoint, body, _VERSIONS[1])
            if older != NOT_FOUND:
                self._version = _VERSIONS[1]
                return older, answer_to_older
        if status == UNAUTHORIZED:
            present, self._authorization = self._authorization, self._options.authorization()
            if present != self._authorization:  # it had run out, and there is a newer one
                return await self._send(endpoint, body)
        return status, answer

    async def _send(self, endpoint: str, body: bytes, version: str | None = None) -> tuple[int, bytes]:
        await self._backoff.wait(self._options.timeout)
        url = f"{self._options.url}/{version or self._version}/{endpoint}"
        try:
            # A large body is sent piece by piece, so that others get their turn on the loop.
            data = BytesIO(body) if len(body) > _PIECE else body
            async with self._session.post(url, data=data, headers=self._headers(), allow_redirects=False) as response:
                answer = response.status, await response.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientSSLError) as error:
            self._backoff.failed()
            raise unreachable(error, self._name) from None
        except (aiohttp.ClientError, TimeoutError) as error:
            text = "no answer came in time" if isinstance(error, TimeoutError) else "the connection broke"
            raise OutcomeUnknownError(self._name, text) from error
        self._backoff.succeeded()
        return answer

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        return headers if self._authorization is None else headers | {"Authorization": self._authorization}

    # --- life ------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close the streams if the server answers soon, and the connections."""
        try:
            async with asyncio.timeout(CLOSED_WITHIN):
                with contextlib.suppress(StoreError):
                    while (baton := self._streams.take()) is not None:
                        await self._post("pipeline", closing(baton))
        except TimeoutError:  # they run out by themselves
            pass
        finally:
            await self._session.close()
