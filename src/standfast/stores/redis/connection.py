"""Connections to Redis and Valkey: options, errors, and a bounded pool for one server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import re
import select
import socket as socket_options
import ssl
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, final

import hiredis
from msgspec import Struct
from redis import exceptions
from redis.asyncio.connection import DefaultParser

from standfast.errors import (
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores.address import tls_error
from standfast.stores.liveness import GRACE
from standfast.stores.redis.scripts import pack
from standfast.stores.remote.connection import ConnectionPool
from standfast.stores.remote.liveness import take_grace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextvars import Context
    from socket import socket

    from standfast.stores.address import Address

    Meaning = tuple[type[StoreError], str]


# --- the options of a Redis URL ------------------------------------------------------------------------------------

DEFAULT_PORT: Final = 6379
SENTINEL_PORT: Final = 26379
OPTION_NAMES: Final = (
    "prefix",
    "timeout",
    "connect_timeout",
    "pool",
    "replicas",
    "cluster",
    "durable",
    "unchecked",
    "liveness",
    "grace",
    "sentinel_auth",
    "sentinel_user",
    "sentinel_password",
    "tls",
    "tls_ca",
)


class RedisOptions(Struct, frozen=True):
    """What a URL asks for. It holds no secret."""

    hosts: tuple[tuple[str, int], ...]
    """The server, the nodes of a cluster, or the sentinels."""
    database: int = 0
    sentinel: str = ""
    """What sentinels call the primary; empty if ``hosts`` are servers."""
    sentinel_auth: bool = False
    """Whether sentinels are given the user and the password of the servers."""
    sentinel_login: Callable[[], tuple[str, str | None]] | None = None
    """Returns the user and the password of the sentinels' own, asked for every new connection; None: they have none."""
    prefix: str = "standfast"
    timeout: float = 5.0
    connect_timeout: float = 5.0
    pool: int = 8
    replicas: int = 0
    """How many replicas must have a commit before it is answered."""
    cluster: bool = False
    """Whether all keys of a namespace must lie in one slot; found out if the server is a cluster's node."""
    durable: str = "check"
    """Whether to look at the server's persistence, or what to believe of it: ``true``, ``false``."""
    unchecked: bool = False
    """Whether to go on where the server does not tell its eviction policy."""
    liveness: bool = True
    """Whether others see soon that this process has died."""
    grace: float = GRACE
    """For how many seconds this process may be without its liveness session before it is taken for dead."""
    tls: ssl.SSLContext | None = None


def read_options(address: Address) -> RedisOptions:
    """Read the options of ``address``; raises ``InvalidUrlError``."""
    scheme, _, sentinels = address.scheme.partition("+")
    sentinel, database = _primary_and_database(address) if sentinels else ("", _database(address, address.path()))
    options = RedisOptions(
        hosts=tuple(address.hosts(SENTINEL_PORT if sentinels else DEFAULT_PORT)),
        database=database,
        sentinel=sentinel,
        sentinel_auth=address.take_flag("sentinel_auth", default=False),
        sentinel_login=_sentinel_login(address),
        prefix=address.take_identifier("prefix", "standfast"),
        timeout=address.take_limit("timeout"),
        connect_timeout=address.take_limit("connect_timeout"),
        pool=address.take_count("pool", 8, most=1_000),
        replicas=address.take_count("replicas", 0, most=100),
        cluster=address.take_flag("cluster", default=False),
        durable=address.take_choice("durable", ("check", "true", "false"), "check"),
        unchecked=address.take_flag("unchecked", default=False),
        liveness=address.take_flag("liveness", default=True),
        grace=take_grace(address),
        tls=address.tls(default=scheme in {"rediss", "valkeys"}),
    )
    address.finish(*OPTION_NAMES)
    if options.database and options.cluster:
        raise address.refuse("a cluster has database 0 only")
    if sentinels and options.cluster:
        raise address.refuse("a cluster has no sentinels; name its nodes with redis://")
    if options.sentinel_login is not None and not sentinels:
        raise address.refuse("sentinel_user and sentinel_password are for redis+sentinel://")
    if options.sentinel_login is not None and options.sentinel_auth:
        raise address.refuse("sentinels have a password of their own, or with sentinel_auth=true that of the servers")
    return options


def _sentinel_login(address: Address) -> Callable[[], tuple[str, str | None]] | None:
    """Take what sentinels are told: from the options of the URL, the password from the credentials if it is there."""
    user, given = address.take_text("sentinel_user"), address.take_text("sentinel_password")
    if not user and not given and address.sentinel_password is None:
        return None
    return lambda: (user, address.sentinel_password or given or None)


def _primary_and_database(address: Address) -> tuple[str, int]:
    """Return what the sentinels call the primary, and the number of the database."""
    name, _, database = address.path().partition("/")
    if not name or "/" in database:
        example = "redis+sentinel://one,two,three/main/0"
        raise address.refuse(f"after the sentinels comes what they call the primary, and its database: {example}")
    return name, _database(address, database)


def _database(address: Address, path: str) -> int:
    if not path:
        return 0
    if not (path.isascii() and path.isdigit()):
        raise address.refuse("the database is a number, for example redis://localhost:6379/0")
    return int(path)


# --- errors of the driver and of the server, translated once, at the edge ------------------------------------------


class NotSentError(Exception):
    """A command was certainly not sent."""


class ReplyLostError(Exception):
    """A command was sent, in part at least, and there is no reply."""


LOSSES: Final = (exceptions.ConnectionError, exceptions.TimeoutError, OSError, EOFError, exceptions.InvalidResponse)
"""What a driver raises when a connection broke."""

REFUSALS: Final = (
    exceptions.AuthenticationError,
    exceptions.AuthorizationError,
    exceptions.BusyLoadingError,
    exceptions.ResponseError,
)
"""What it raises when the server said no: the first ones are losses as well to the driver, and are asked first."""

_UNAVAILABLE: Final = StoreUnavailableError
_CODES: Final[Mapping[str, Meaning]] = {
    "OOM": (
        StoreFullError,
        "the server has used up its maxmemory; give it more, or remove data that is not Standfast's",
    ),
    "READONLY": (StoreReadOnlyError, "this server is a replica; the URL must name the primary"),
    "MISCONF": (StoreFullError, "the server cannot save to its disk and takes no writes; see its log, free some space"),
    "NOREPLICAS": (_UNAVAILABLE, "too few replicas are connected for what min-replicas-to-write demands"),
    "LOADING": (_UNAVAILABLE, "the server is starting and reads its data; retry"),
    "BUSY": (StoreBusyError, "a script keeps the server busy; see SCRIPT KILL"),
    "MASTERDOWN": (_UNAVAILABLE, "this server is a replica without its primary; the URL must name the primary"),
    "CLUSTERDOWN": (_UNAVAILABLE, "the cluster is down: some of its slots are not served"),
    "TRYAGAIN": (_UNAVAILABLE, "slots of the cluster are being moved; retry"),
    "UNKILLABLE": (StoreBusyError, "a script keeps the server busy"),
    "NOAUTH": (
        UnsuitableStoreError,
        "the server wants a password, and none was given; see 'The URL' in 'Run on Redis'",
    ),
    "WRONGPASS": (UnsuitableStoreError, "the server refuses this user and password"),
    "NOPERM": (UnsuitableStoreError, "this user may not do all that is needed; see 'Permissions' in 'Run on Redis'"),
    "WRONGTYPE": (StoreCorruptError, "a key of Standfast holds something else; choose another ?prefix="),
    "STANDFAST": (StoreCorruptError, "a key of Standfast holds something else; choose another ?prefix="),
    "CROSSSLOT": (UnsuitableStoreError, "this is a cluster behind a proxy; add ?cluster=true"),
}

_CLASSES: Final[Mapping[type[Exception], str]] = {
    exceptions.OutOfMemoryError: "OOM",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.NoPermissionError: "NOPERM",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.ClusterCrossSlotError: "CROSSSLOT",
    exceptions.AuthenticationError: "WRONGPASS",
}
"""What the driver calls some of them; it leaves the code out of their message."""

_CODE: Final = re.compile(rf"(?:^|[\s-])({'|'.join(_CODES)})(?:\s|$)")
_ACL: Final = re.compile(r"can't run this command|no permissions|can't access|ACL failure", re.IGNORECASE)


def code_of(error: BaseException) -> str:
    """Return the code of what a server answered, also if a script of ours stands between; empty if there is none."""
    if "Authentication required" in str(error):
        return "NOAUTH"
    for known, code in _CLASSES.items():
        if isinstance(error, known):
            return code
    found = _CODE.search(str(error)[:200])
    if found is not None:
        return found[1]
    return "NOPERM" if _ACL.search(str(error)) else ""


def translate(store: str, error: BaseException, place: str = "") -> StoreError:
    """Return the error that says what a refusal means and what to do, and which server it was. Nothing was written."""
    at = f"{place}: " if place else ""
    if code_of(error) in _CODES:
        kind, meaning = _CODES[code_of(error)]
        return kind(store, f"{at}{meaning} ({str(error)[:200]})")
    return StoreError(store, f"{at}the server refused: {str(error)[:300]}")


# --- connections ---------------------------------------------------------------------------------------------------

Reply: TypeAlias = Any
"""What a server answers: bytes, a number, None, a list of those, or an exception for a refusal."""


@final
class SentCall:
    """A call that was sent: a future whose callbacks run in the very read that brings the answer.

    A future of the loop runs them one turn later, and each turn asks the selector again.
    """

    __slots__ = ("_callbacks", "_error", "_is_done", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[Any], object] | None = None) -> None:
        self._loop = loop
        self._callbacks: list[tuple[Callable[[Any], object], Context | None]] = [(callback, None)] if callback else []
        self._error: Exception | None = None
        self._is_done = False

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop that it belongs to."""
        return self._loop

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context | None = None) -> None:
        """Call back when it is done, after those that were added before."""
        if self._is_done:
            self._loop.call_soon(callback, self, context=context)
        else:
            self._callbacks.append((callback, context))

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """Do not call back; return how often that was asked for."""
        kept = [each for each in self._callbacks if each[0] != callback]
        removed, self._callbacks = len(self._callbacks) - len(kept), kept
        return removed

    def set_result(self, result: None) -> None:
        """Call everything back, here and now: this is called from the event loop, not from a task."""
        del result
        self._is_done = True
        callbacks, self._callbacks = self._callbacks, []
        for number, (callback, context) in enumerate(callbacks, 1):
            try:
                if context is None:
                    callback(self)
                else:
                    context.run(callback, self)
            except BaseException:  # Ctrl-C, say
                self._call_soon(callbacks[number:])
                raise

    def set_exception(self, error: Exception) -> None:
        """Call everything back in the next turn of the loop: the connection is being closed."""
        self._is_done, self._error = True, error
        callbacks, self._callbacks = self._callbacks, []
        self._call_soon(callbacks)

    def _call_soon(self, callbacks: list[tuple[Callable[[Any], object], Context | None]]) -> None:
        for callback, context in callbacks:
            self._loop.call_soon(callback, self, context=context)

    def done(self) -> bool:
        """Return True if it is answered, or lost."""
        return self._is_done

    def exception(self) -> Exception | None:
        """Return why there is no answer."""
        return self._error


_CLOSED_WITHIN: Final = 1.0
_READ_SIZE: Final = 65_536
_NOTHING: Final = object()
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""After how many seconds of silence the other machine is asked if it is there, how often, and how many times."""

_refusal: Final = cast("Any", DefaultParser)(_READ_SIZE).parse_error
"""Makes the driver's exception of what a server refuses with."""


@final
class RedisConnection(asyncio.BufferedProtocol):
    """A connection without streams: what is sent is written to the socket at once, and read where it arrives.

    After :meth:`open` it either answers commands, one :meth:`exchange` at a time, or hears what is published: from the
    first :meth:`send` on, everything that comes is for :meth:`receive`, or for the function given to :meth:`listen`.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.known_primary_at = -math.inf
        self._loop: Final = asyncio.get_running_loop()
        self._buffer: Final = bytearray(_READ_SIZE)
        reader: Any = hiredis.Reader
        self._reader: Final = reader(
            protocolError=exceptions.InvalidResponse, replyError=_refusal, notEnoughData=_NOTHING
        )
        self._transport: asyncio.Transport | None = None
        self._arrivals: select.poll | None = None
        self._replies: list[Reply] = []
        self._wanted = 1
        self._waiter: asyncio.Future[None] | SentCall | None = None
        self._listens = False
        self._taken_by: Callable[[Reply], object] | None = None
        self._loss: Exception | None = None
        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._closed: Final = asyncio.Event()

    async def open(self, tls: ssl.SSLContext | None, login: Sequence[bytes]) -> None:
        """Connect, and send the commands of a login; a refusal is raised."""
        await self._loop.create_connection(lambda: self, self.host, self.port, ssl=tls)
        for answer in await self.exchange(b"".join(login), len(login), math.inf) if login else ():
            if isinstance(answer, Exception):
                raise answer

    # --- sending and receiving -------------------------------------------------------------------------------

    async def exchange(self, command: bytes, replies: int, deadline: float) -> list[Reply]:
        """Send a command and return what is answered, refusals as exceptions; cut the connection at the deadline.

        If anything goes wrong, or its caller is cancelled, the connection is cut: an answer may be on its way.
        """
        waiter = self._loop.create_future()
        self.begin(command, replies, deadline, waiter)
        try:
            await waiter
        except BaseException as error:
            self.abort()
            if self._loop.time() >= deadline and isinstance(error, LOSSES):
                raise TimeoutError from error
            raise
        finally:
            answers = self.end()
        return answers

    def begin(self, command: bytes, replies: int, deadline: float, waiter: asyncio.Future[None] | SentCall) -> None:
        """Send a command; ``waiter`` is done when all answers are there, or fails. Then call :meth:`end`."""
        transport = self._transport
        if transport is None or self._loss is not None or transport.is_closing():
            raise _closed_error() from self._loss
        self._waiter, self._wanted = waiter, replies
        self._set_deadline(deadline)
        transport.write(command)

    def end(self) -> list[Reply]:
        """Return the answers to the command that :meth:`begin` has sent."""
        self._waiter, self._deadline = None, math.inf
        answers, self._replies = self._replies, []
        return answers

    def _set_deadline(self, deadline: float) -> None:
        """Cut it then. One timer stands for many commands: it looks for the deadline of the one that waits then."""
        self._deadline = deadline
        if deadline == math.inf:
            return
        if self._timer is None or deadline < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(deadline, self._meet_deadline)

    def _meet_deadline(self) -> None:
        self._timer = None
        if self._deadline <= self._loop.time():
            self._lose(TimeoutError())
        elif self._deadline < math.inf:
            self._timer = self._loop.call_at(self._deadline, self._meet_deadline)

    def send(self, command: bytes) -> None:
        """Send commands whose answers are heard; raises if the connection is lost."""
        if self._transport is None or not self.is_alive:
            raise _closed_error() from self._loss
        self._listens = True
        self._transport.write(command)

    async def receive(self) -> Reply:
        """Return what came next; a refusal is raised."""
        if not self._replies:
            if self._loss is not None:
                raise self._loss
            waiter = self._waiter = self._loop.create_future()
            self._wanted = 1
            try:
                await waiter
            finally:
                self._waiter = None
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def listen(self, take: Callable[[Reply], object]) -> None:
        """Hand everything that comes to ``take`` where it arrives, until it is lost or refused; raises that."""
        self._listens = True
        while self._replies:
            take(await self.receive())
        self._taken_by = take
        await self._closed.wait()
        raise self._loss or _closed_error()

    # --- what the transport says -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and ask now and then if the other machine is there."""
        self._transport = cast("asyncio.Transport", transport)
        opened: socket = transport.get_extra_info("socket")
        self._arrivals = select.poll()
        self._arrivals.register(opened.fileno(), select.POLLIN)
        opened.setsockopt(socket_options.SOL_SOCKET, socket_options.SO_KEEPALIVE, 1)
        for name, seconds in _KEEPALIVE:
            if hasattr(socket_options, name):
                opened.setsockopt(socket_options.IPPROTO_TCP, getattr(socket_options, name), seconds)

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return where to read to."""
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what has arrived."""
        reader, replies = self._reader, self._replies
        try:
            reader.feed(self._buffer, 0, nbytes)
            while (reply := reader.gets()) is not _NOTHING:
                if isinstance(reply, Exception) and (self._taken_by is not None or not isinstance(reply, REFUSALS)):
                    self._lose(reply)  # no answer: too many clients, say; or refused to listen
                    return
                if self._taken_by is not None:
                    self._taken_by(reply)
                else:
                    replies.append(reply)
        except exceptions.InvalidResponse as error:
            self._lose(error)
            return
        if not self._listens and len(replies) > (self._wanted if self._waiter is not None else 0):
            self._lose(exceptions.InvalidResponse("the server answered what was not asked"))
        elif self._waiter is not None and len(replies) >= self._wanted and not self._waiter.done():
            self._waiter.set_result(None)

    def eof_received(self) -> None:
        """Take notice that the server has closed it; the transport closes its side."""
        self._lose(_closed_error())

    def connection_lost(self, exc: Exception | None) -> None:
        """Let a caller that waits know."""
        self._lose(exc or _closed_error())
        self._closed.set()

    def _lose(self, loss: Exception) -> None:
        """Take the connection for lost, for the first reason that is told."""
        if self._loss is None:
            self._loss = loss
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(self._loss)
        self.abort()

    # --- its end ---------------------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Whether neither side has been seen to close it: a server that stopped since the last call is met here."""
        return self._loss is None and self._transport is not None and not self._transport.is_closing()

    @property
    def socket(self) -> socket | None:
        """The socket, while it is open."""
        found: socket | None = None if self._transport is None else self._transport.get_extra_info("socket")
        return found

    @property
    def is_silent(self) -> bool:
        """Whether nothing has arrived that the event loop has not seen: the end of the connection, say."""
        return self._arrivals is not None and not self._arrivals.poll(0)

    def abort(self) -> None:
        """Close it without sending what is left to send."""
        if self._transport is not None:
            self._transport.abort()

    async def aclose(self) -> None:
        """Close it, whatever state it is in."""
        self.abort()
        if self._transport is not None and not self._closed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSED_WITHIN):
                    await self._closed.wait()

    async def discard(self) -> None:
        """Close it: what is in its pipe is not known."""
        await self.aclose()


def _closed_error() -> Exception:
    return exceptions.ConnectionError("Connection closed by server.")


@final
class Dialer:
    """Opens connections, each with the password of the moment."""

    __slots__ = ("_address", "_options")

    def __init__(self, address: Address, options: RedisOptions) -> None:
        self._address, self._options = address, options

    @property
    def name(self) -> str:
        """The server as shown to people."""
        return self._address.name

    @property
    def timeout(self) -> float:
        """How many seconds a call may take."""
        return self._options.timeout

    async def dial(self, host: str, port: int) -> RedisConnection:
        """Open a connection; raises ``StoreUnavailableError``, or ``UnsuitableStoreError`` if it is not let in."""
        within = min(self._options.connect_timeout, 0.9 * self._options.timeout)  # so that its caller is told why
        database = self._options.database
        login = [*self._login(), *([pack("SELECT", database)] if database else [])]
        return await self._open(host, port, login, within)

    async def dial_sentinel(self, host: str, port: int, within: float) -> RedisConnection:
        """Open a connection to a sentinel; raises as :meth:`dial`."""
        login = self._login() if self._options.sentinel_auth else []
        if self._options.sentinel_login is not None:
            login = _auth(*self._options.sentinel_login())
        return await self._open(host, port, login, within)

    def _login(self) -> list[bytes]:
        return _auth(self._address.user, self._address.password)

    async def _open(self, host: str, port: int, login: Sequence[bytes], within: float) -> RedisConnection:
        line = RedisConnection(host, port)
        try:
            async with asyncio.timeout(within):
                await line.open(self._options.tls, login)
        except REFUSALS as error:
            raise await self._failed(line, error) from None
        except (*LOSSES, TimeoutError) as error:
            raise await self._failed(line, error) from error
        except BaseException:
            await line.aclose()
            raise
        return line

    async def _failed(self, line: RedisConnection, error: BaseException) -> StoreError:
        await line.aclose()
        if isinstance(error, REFUSALS):
            return translate(self.name, error, f"{line.host}:{line.port}")
        said = str(error)[:300]
        if isinstance(error, TimeoutError):  # a server that does not speak TLS waits for the end of a line
            said = "it took too long" if self._options.tls is None else "it took too long; does it speak TLS there?"
        place = f"{line.host}:{line.port}"
        return StoreUnavailableError(self.name, f"cannot connect to {place}: {tls_error(said) or said}")


def _auth(user: str | None, password: str | None) -> list[bytes]:
    """Return the command of a login; none without a user and a password."""
    if user:
        return [pack("AUTH", user, password or "")]
    return [pack("AUTH", password)] if password else []


ROLE_EVERY: Final = 1.0
"""Seconds after which a connection is asked again if its server is still the primary, along with a command."""

_ROLE: Final = b"*1\r\n$4\r\nROLE\r\n"


@final
class RedisPool:
    """The connections of one handle to one server.

    A server that becomes a replica goes on to answer reads, with what it had then. So, where the server is not the node
    of a cluster, which redirects by itself, it is asked for its role along with a command now and then.

    Attributes:
        place: Host and port, for people.
    """

    def __init__(self, dialer: Dialer, host: str, port: int, size: int, *, asks_role: bool = False) -> None:
        self._timeout: Final = dialer.timeout
        self.place: Final = f"{host}:{port}"
        self._asks_role, self._loop = asks_role, asyncio.get_running_loop()
        self._dialed: Final = weakref.WeakSet[RedisConnection]()
        self._pool: Final = ConnectionPool(dialer.name, size, functools.partial(self._dial, dialer, host, port))

    async def _dial(self, dialer: Dialer, host: str, port: int) -> RedisConnection:
        connection = await dialer.dial(host, port)
        self._dialed.add(connection)
        return connection

    async def call(self, command: bytes, replies: int = 1) -> list[Reply]:
        """Send a command, or several packed together; return what was answered, refusals as exceptions.

        Raises ``NotSentError`` or ``ReplyLostError`` if there is no answer in time, ``StoreUnavailableError`` or
        ``UnsuitableStoreError`` if no connection can be made.
        """
        pool = self._pool
        connection: RedisConnection | None = None
        async with pool.room:  # as borrow() does, without a generator around every call
            deadline = asyncio.get_running_loop().time() + self._timeout
            try:
                connection = pool.at_hand()
                if connection is None:
                    async with asyncio.timeout_at(deadline):
                        connection = await pool.take()
                if self._asks_role and deadline - self._timeout - connection.known_primary_at >= ROLE_EVERY:
                    answers = await self._with_role(connection, command, replies, deadline)
                else:
                    answers = await connection.exchange(command, replies, deadline)
            except (*LOSSES, TimeoutError) as error:
                said = "no answer in time" if isinstance(error, TimeoutError) else str(error)[:300]
                said = said if self.place in said else f"{self.place}: {said}"
                if connection is None:
                    await pool.drop_idle()
                    raise NotSentError(said) from error
                await connection.aclose()
                await pool.drop_idle()
                raise ReplyLostError(said) from error
            except BaseException:
                if connection is not None:
                    await connection.aclose()
                raise
            await pool.give(connection)
            return answers

    def call_soon(
        self, command: bytes, take: Callable[[list[Reply] | ReplyLostError], object]
    ) -> asyncio.Future[None] | None:
        """Send a command with one answer, as :meth:`call` does, without a task that waits for it.

        Returns None if nothing was sent: no connection is at hand, or it is to be asked for its role. Otherwise
        ``take`` is called by the first callback of what is returned.
        """
        pool, now = self._pool, self._loop.time()
        connection = pool.take_at_once()
        if connection is None:
            return None
        is_to_be_asked = self._asks_role and now - connection.known_primary_at >= ROLE_EVERY
        if is_to_be_asked or not connection.is_silent:  # what was sent to a server that has gone is in doubt
            self._put_back(connection)
            return None
        sent = SentCall(self._loop, functools.partial(self._answered, connection, take))
        connection.begin(command, 1, now + self._timeout, sent)
        return cast("asyncio.Future[None]", sent)  # to those that add callbacks it is one

    def _put_back(self, connection: RedisConnection) -> None:
        if not self._pool.give_at_once(connection):
            connection.abort()

    def _answered(
        self,
        connection: RedisConnection,
        take: Callable[[list[Reply] | ReplyLostError], object],
        sent: SentCall,
    ) -> None:
        answers, error = connection.end(), sent.exception()
        self._put_back(connection)
        if error is None:
            take(answers)
            return
        said = "no answer in time" if isinstance(error, TimeoutError) else str(error)[:300]
        lost = ReplyLostError(said if self.place in said else f"{self.place}: {said}")
        lost.__cause__ = error
        take(lost)

    async def _with_role(
        self, connection: RedisConnection, command: bytes, replies: int, deadline: float
    ) -> list[Reply]:
        role, *answers = await connection.exchange(_ROLE + command, replies + 1, deadline)
        if isinstance(role, Exception):  # this user may not ask
            self._asks_role = code_of(role) != "NOPERM"
        elif role[0] == b"master":
            connection.known_primary_at = deadline - self._timeout
        elif not isinstance(answers[0], Exception):  # a write was refused, and says so
            raise ConnectionError(f"{self.place} is a replica; the address must lead to the primary")
        return answers

    def cut(self) -> None:
        """Cut all connections, also those that a call waits on: another server has taken over."""
        for connection in tuple(self._dialed):
            connection.abort()

    async def drop_idle(self) -> None:
        """Close the connections that are not in use, so that new ones are opened: perhaps to another server."""
        await self._pool.drop_idle()

    async def aclose(self) -> None:
        """Close everything."""
        await self._pool.aclose()
