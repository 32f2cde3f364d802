"""Connections to the Durable Objects of a store: options, errors, messages, and one WebSocket an object."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import aiohttp
import msgspec
from msgspec import Struct

from standfast.errors import (
    InvalidChangeError,
    OutcomeUnknownError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    StoreRewoundError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores.address import Address, is_this_machine, tls_error
from standfast.stores.remote.connection import ConnectBackoff

if TYPE_CHECKING:
    from socket import socket

# --- options: what a URL says --------------------------------------------------------------------------------------

SECURE_PORT: Final = 443
PLAIN_PORT: Final = 8787
"""Where ``wrangler dev`` listens."""

PROTOCOL: Final = 1
"""Which messages are spoken: as :file:`worker.js` says."""

LEAST_SECRET: Final = 16
OPTION_NAMES: Final = ("tls", "tls_ca", "timeout", "connect_timeout", "prefix", "liveness")


class CloudflareOptions(Struct, frozen=True):
    """Where the worker is, and how to talk to it. No secret is in it, only the way to one."""

    name: str
    """The URL as it may be shown."""
    url: str
    authorization: Callable[[], str]
    """Returns the header that opens the door, as it is now."""
    tls: ssl.SSLContext | None
    timeout: float = 5.0
    connect_timeout: float = 5.0
    prefix: str = "standfast"
    liveness: bool = True


def read_options(address: Address) -> CloudflareOptions:
    """Read a URL: ``cloudflare://:secret@host[:port][?prefix=...]``.

    Raises:
        InvalidUrlError: Something in it cannot be used.
    """
    tls = address.tls(default=True)
    host, port = address.host(PLAIN_PORT if tls is None else SECURE_PORT)
    if tls is None and not is_this_machine(host):
        raise address.refuse("tls=false is for a worker on this machine; Cloudflare's own names all have TLS")
    if address.path():
        raise address.refuse("leave out what follows the host; several stores on one worker differ by ?prefix=")
    if address.user:
        raise address.refuse("a worker has a secret and no users: write cloudflare://:secret@host")
    options = CloudflareOptions(
        name=address.name,
        url=f"{'ws' if tls is None else 'wss'}://{f'[{host}]' if ':' in host else host}:{port}",
        authorization=lambda: _authorization(address),
        tls=tls,
        timeout=address.take_limit("timeout"),
        connect_timeout=address.take_limit("connect_timeout"),
        prefix=address.take_identifier("prefix", "standfast"),
        liveness=address.take_flag("liveness", default=True),
    )
    address.finish(*OPTION_NAMES)
    options.authorization()
    return options


def _authorization(address: Address) -> str:
    secret = (address.password or "").strip()
    if not secret:
        raise address.refuse("the worker's secret is missing; pass it by sf.admin.Credentials, or as :secret@ here")
    if len(secret) < LEAST_SECRET or not (secret.isascii() and secret.isprintable()) or {" ", ","} & set(secret):
        raise address.refuse(f"a secret has at least {LEAST_SECRET} visible ASCII characters and no comma")
    return f"Bearer {secret}"


# --- errors: what a worker refuses, translated once, at the edge ---------------------------------------------------

_REFUSED: Final = {
    "wrong-secret": (
        StoreUnavailableError,
        "the worker refuses the secret; set it with `wrangler secret put SECRET`, or pass the one that it has",
    ),
    "no-secret": (
        StoreUnavailableError,
        f"the worker has no secret of {LEAST_SECRET} characters or more; set one: `wrangler secret put SECRET`",
    ),
    "newer-tables": (UnsuitableStoreError, "a newer worker has been there; deploy that one again, or a later one"),
    "no-websocket": (UnsuitableStoreError, "something on the way takes no WebSockets; turn them on for this name"),
    "no-such-path": (UnsuitableStoreError, "the worker refuses the path; deploy the worker of this version"),
}
_REWOUND: Final = (
    "its object was set back to an earlier point, and lacks commits that were acknowledged; to go on with what is"
    " there, run standfast accept-loss, and start the processes anew"
)
_NO_WORKER: Final = "there is no Standfast worker at this address; deploy one: `standfast cloudflare init`"
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500


def refusal(error: aiohttp.WSServerHandshakeError, name: str) -> StoreError:
    """Return the error for a worker, or something else, that did not open a WebSocket."""
    headers: Mapping[str, str] = error.headers or {}
    problem, worker = headers.get("Standfast-Problem", ""), headers.get("Standfast-Worker", "")
    if problem == "other-protocol":
        other = "deploy the worker of this version: `standfast cloudflare init`"
        if worker.isdigit() and int(worker) > PROTOCOL:
            other = "update Standfast here"
        return UnsuitableStoreError(
            name, f"the worker speaks protocol {worker[:6]}, and this program {PROTOCOL}; {other}"
        )
    if problem in _REFUSED:
        kind, text = _REFUSED[problem]
        return kind(name, f"{text} (HTTP {error.status})")
    if error.status == _TOO_MANY or error.status >= _SERVER_ERROR:
        return StoreUnavailableError(name, f"Cloudflare, or the object, cannot answer now (HTTP {error.status}); retry")
    return UnsuitableStoreError(name, f"{_NO_WORKER} (HTTP {error.status})")


def unreachable(error: BaseException, name: str) -> StoreUnavailableError:
    """Return the error for a connection that could not be made."""
    cause = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return StoreUnavailableError(name, tls_error(str(cause)) or f"its certificate is refused ({cause})")
    if isinstance(cause, ssl.SSLError) or isinstance(error, aiohttp.ClientSSLError):
        return StoreUnavailableError(name, "it does not speak TLS there; for a worker on this machine, add ?tls=false")
    if isinstance(error, TimeoutError):
        return StoreUnavailableError(name, "no connection could be made in time; is the worker deployed?")
    return StoreUnavailableError(name, f"no connection could be made ({type(cause).__name__}); is the worker deployed?")


def failure(said: str, name: str) -> StoreError | InvalidChangeError:
    """Return the error for a request that an object has undone."""
    text = said.upper()
    if "SQLITE_FULL" in text or "DISK IS FULL" in text:
        return StoreFullError(name, f"the object is full: it keeps 10 GB at most; purge what is not needed ({said})")
    if "SQLITE_TOOBIG" in text or "TOO BIG" in text:
        return InvalidChangeError(f"a record is larger than an object takes, 2 MB with its key ({said})")
    return StoreUnavailableError(name, f"the object could not do it ({said})")


# --- messages: a head in JSON, and bytes -----------------------------------------------------------------------------

Part: TypeAlias = bytes | bytearray | memoryview
OnPush: TypeAlias = Callable[[bytes | None], None]

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_LENGTH: Final = struct.Struct(">I")


def pack(head: Sequence[object], parts: Iterable[Part] = ()) -> bytes:
    """Return a message."""
    text = _encode(head)
    return b"".join([_LENGTH.pack(len(text)), text, *parts])


@final
class Reply:
    """A message of an object: what its head says, and bytes that are taken one after the other."""

    __slots__ = ("_bytes", "_position", "fields", "status")

    def __init__(self, status: str, fields: Sequence[Any], data: bytes, position: int) -> None:
        self.status, self.fields = status, fields
        self._bytes, self._position = data, position

    def take(self, length: int) -> bytes:
        """Take the next bytes."""
        start = self._position
        self._position = start + length
        return self._bytes[start : self._position]


def unpack(data: bytes) -> tuple[int, Reply]:
    """Return the number of the request that a message answers, 0 for none, and the message.

    Raises:
        ValueError: It is none.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
        end = _LENGTH.size + length
        number, status, *fields = _decode(data[_LENGTH.size : end])
    except (struct.error, ValueError, TypeError) as error:
        raise ValueError("not a message of a Standfast worker") from error
    return int(number), Reply(str(status), fields, data, end)


# --- one WebSocket -------------------------------------------------------------------------------------------------

HEARTBEAT: Final = 10.0
"""Seconds between two pings, which the runtime answers without waking an object; half of that later it is lost."""

CLOSED_WITHIN: Final = 1.0
TLS_CLOSES_WITHIN: Final = 0.1


@final
class ObjectSocket:
    """A WebSocket to one object, on one event loop.

    Attributes:
        topics: What the object was told that this socket listens to.
        seen: The last version of the object that is known.
    """

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, name: str, timeout: float, on_push: OnPush) -> None:
        self._ws, self._name, self._timeout, self._on_push = ws, name, timeout, on_push
        self._loop: Final = asyncio.get_running_loop()
        self._waiting: Final[dict[int, asyncio.Future[Reply]]] = {}
        self._pongs: Final[list[asyncio.Future[None]]] = []
        self._number = 0
        self._told: Callable[[], object] | None = None
        self.topics: frozenset[bytes] = frozenset()
        self.seen = 0
        self.is_lost = False
        self._reading: Final = self._loop.create_task(self._read())

    @property
    def is_idle(self) -> bool:
        """Whether it is not listened to, and no answer is waited for."""
        return not self.topics and not self._waiting

    @property
    def socket(self) -> socket | None:
        """The socket underneath."""
        found: socket | None = self._ws.get_extra_info("socket")
        return found

    def when_lost(self, tell: Callable[[], object]) -> None:
        """Call ``tell`` when it ends."""
        self._told = tell
        if self.is_lost:
            tell()

    async def ask(self, operation: str, *fields: object, parts: Iterable[Part] = ()) -> Reply:
        """Return the answer to a request.

        Raises:
            OutcomeUnknownError: It was sent, and no answer came.
            StoreRewoundError: The object was set back; nothing was done.
            StoreError: The object has undone it.
        """
        if self.is_lost:
            raise OutcomeUnknownError(self._name, "the connection broke")
        self._number += 1
        number, answer = self._number, self._loop.create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(self._timeout):
                await self._ws.send_bytes(pack((number, operation, self.seen, *fields), parts))
                reply: Reply = await answer
        except TimeoutError as error:
            self.lose()  # whatever comes later is too late; a new connection may fare better
            raise OutcomeUnknownError(self._name, "no answer came in time") from error
        except (aiohttp.ClientError, ConnectionError, RuntimeError) as error:
            self.lose()
            raise OutcomeUnknownError(self._name, "the connection broke") from error
        finally:
            del self._waiting[number]
        version, *reply.fields = reply.fields
        if reply.status == "failed":
            raise failure(str(reply.fields[0]), self._name)
        if reply.status == "rewound":
            raise StoreRewoundError(self._name, _REWOUND)
        if reply.status == "unknown-operation":
            raise UnsuitableStoreError(self._name, "the worker is older than this program; deploy the worker of it")
        self.seen = max(self.seen, int(version))
        return reply

    async def ping(self) -> None:
        """Return when the other end has answered, without waking the object.

        Raises:
            StoreUnavailableError: It has not; the WebSocket is given up.
        """
        pong = self._loop.create_future()
        self._pongs.append(pong)
        try:
            async with asyncio.timeout(self._timeout):
                await self._ws.send_str("ping")
                await pong
        except (TimeoutError, aiohttp.ClientError, ConnectionError, RuntimeError) as error:
            self.lose()
            raise StoreUnavailableError(self._name, "the connection broke, or fell silent") from error

    async def _read(self) -> None:
        try:
            async for message in self._ws:
                if message.type is not aiohttp.WSMsgType.BINARY:
                    pong = self._pongs.pop(0) if self._pongs else None
                    if pong is not None and not pong.done():
                        pong.set_result(None)
                    continue
                number, reply = unpack(message.data)
                if not number:
                    self._on_push(reply.take(int(reply.fields[0])) if reply.status == "message" else None)
                elif (answer := self._waiting.get(number)) is not None and not answer.done():
                    answer.set_result(reply)
        except (aiohttp.ClientError, ConnectionError, ValueError):
            pass
        finally:
            self.lose()

    def lose(self) -> None:
        """Give it up: what is waited for is not known."""
        if self.is_lost:
            return
        self.is_lost = True
        waiting: list[asyncio.Future[Any]] = [*self._waiting.values(), *self._pongs]
        for answer in waiting:
            if not answer.done():
                answer.set_exception(ConnectionError("the connection broke"))
                answer.exception()  # perhaps it is not waited for any more
        self._reading.cancel()
        if self._told is not None:
            self._told()

    async def aclose(self) -> None:
        """Close it, in good order if the other end answers soon."""
        self._told = None
        self.lose()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({self._reading})
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, ConnectionError, RuntimeError):
            async with asyncio.timeout(CLOSED_WITHIN):
                await self._ws.close()


# --- all WebSockets of one handle ----------------------------------------------------------------------------------

MOST_IDLE: Final = 32
"""How many WebSockets that nothing is listened to on are kept; the one that was used last is kept longest."""

STORE: Final = b""
"""The object that knows the whole store: it has no namespace."""


@final
class ObjectSockets:
    """The WebSockets of one handle, one an object, on one event loop.

    Args:
        options: Where the worker is.
        heard: Takes what is pushed; None if something may have been left out.
        lost: Called with a namespace when its WebSocket is lost, unless it was closed here.
    """

    def __init__(self, options: CloudflareOptions, on_push: OnPush, lost: Callable[[bytes], None]) -> None:
        self._options, self._on_push, self._lost = options, on_push, lost
        self._open: Final[OrderedDict[bytes, ObjectSocket]] = OrderedDict()
        self._dialing: Final[dict[bytes, asyncio.Lock]] = {}
        self._backoff: Final = ConnectBackoff()
        self._closing: Final[set[asyncio.Task[None]]] = set()
        self._seen: Final[dict[bytes, int]] = {}
        self._is_rewound = self._is_closed = False
        self._authorization = options.authorization()
        self._session: Final = new_session(options)

    async def write(self, namespace: bytes, operation: str, *fields: object, parts: Iterable[Part] = ()) -> Reply:
        """Ask for something that may not be done twice.

        Raises:
            OutcomeUnknownError: It was sent, and no answer came.
            StoreUnavailableError: It was certainly not done.
        """
        if self._is_rewound:
            raise StoreRewoundError(self._options.name, _REWOUND)
        socket = await self.socket(namespace)
        try:
            reply = await socket.ask(operation, *fields, parts=parts)
        except StoreRewoundError:
            self._is_rewound = True
            raise
        self._seen[namespace] = max(self._seen.get(namespace, 0), socket.seen)
        return reply

    async def read(self, namespace: bytes, operation: str, *fields: object, parts: Sequence[Part] = ()) -> Reply:
        """Ask for something that does no harm if it is done twice; it is asked again if the connection broke.

        Raises:
            StoreUnavailableError: No answer came.
        """
        for tries_left in (1, 0):
            try:
                return await self.write(namespace, operation, *fields, parts=parts)
            except OutcomeUnknownError as error:
                if not tries_left or isinstance(error.__cause__, TimeoutError):
                    raise StoreUnavailableError(self._options.name, error.problem) from error.__cause__
        raise AssertionError

    async def socket(self, namespace: bytes) -> ObjectSocket:
        """Return the WebSocket to an object; it is opened if it is not there."""
        socket = self._open.get(namespace)
        if socket is not None and not socket.is_lost:
            self._open.move_to_end(namespace)
            return socket
        async with self._dialing.setdefault(namespace, asyncio.Lock()):
            socket = self._open.get(namespace)
            if socket is not None and not socket.is_lost:
                return socket
            if self._is_closed:
                raise StoreClosedError(self._options.name, "it was closed; open a new one")
            await self._backoff.wait(self._options.timeout)
            try:
                ws = await self._connect(namespace)
            except StoreError:
                self._backoff.failed()
                raise
            self._backoff.succeeded()
            opened = self._open[namespace] = ObjectSocket(ws, self._options.name, self._options.timeout, self._on_push)
            opened.seen = self._seen.get(namespace, 0)
            opened.when_lost(lambda: self._note_loss(namespace, opened))
            idle = [(name, each) for name, each in self._open.items() if each.is_idle and each is not opened]
            for name, each in idle[: max(0, len(idle) - MOST_IDLE)]:
                del self._open[name]
                self._close_soon(each)
            return opened

    async def _connect(self, namespace: bytes) -> aiohttp.ClientWebSocketResponse:
        try:
            return await connect(self._session, self._options, self._authorization, namespace)
        except StoreUnavailableError:
            present, self._authorization = self._authorization, self._options.authorization()
            if present == self._authorization:
                raise
            return await connect(self._session, self._options, self._authorization, namespace)  # it was changed

    def _note_loss(self, namespace: bytes, socket: ObjectSocket) -> None:
        if self._open.get(namespace) is socket:
            del self._open[namespace]
            self._close_soon(socket)
            if not self._is_closed:
                self._lost(namespace)

    def _close_soon(self, socket: ObjectSocket) -> None:
        task = asyncio.get_running_loop().create_task(socket.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def namespaces(self) -> list[bytes]:
        """Return the namespaces that a WebSocket is open to."""
        return [namespace for namespace in self._open if namespace != STORE]

    async def aclose(self) -> None:
        """Close all of them."""
        self._is_closed = True
        while self._open:
            self._close_soon(self._open.popitem()[1])
        if self._closing:
            await asyncio.wait(set(self._closing))
        await close_session(self._session, self._options)


def new_session(options: CloudflareOptions) -> aiohttp.ClientSession:
    """Return what opens WebSockets, on the running loop."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=options.tls or False),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, connect=options.connect_timeout),
    )


async def close_session(session: aiohttp.ClientSession, options: CloudflareOptions) -> None:
    """Close it, and let the loop close its sockets, which takes TLS a moment: it may end right after this."""
    await session.close()
    for _ in range(3):
        await asyncio.sleep(0 if options.tls is None else TLS_CLOSES_WITHIN / 3)


async def connect(
    session: aiohttp.ClientSession, options: CloudflareOptions, authorization: str, namespace: bytes, alive: str = ""
) -> aiohttp.ClientWebSocketResponse:
    """Open a WebSocket to the object of a namespace, ``alive`` being the number that it shows to others.

    Raises:
        StoreUnavailableError: That was not possible.
        UnsuitableStoreError: Something else is there, or a worker of another version.
    """
    url = f"{options.url}/standfast/{PROTOCOL}/{options.prefix}/{namespace.hex()}"
    try:
        async with asyncio.timeout(options.connect_timeout):
            return await session.ws_connect(
                f"{url}?alive={alive}" if alive else url,
                headers={"Authorization": authorization},
                heartbeat=HEARTBEAT,
                max_msg_size=0,
                autoclose=True,
            )
    except aiohttp.WSServerHandshakeError as error:
        raise refusal(error, options.name) from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise unreachable(error, options.name) from None
