"""Connections: a bounded pool of them for one server, opened anew with growing pauses when they break."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, final

from redis import exceptions
from redis.asyncio import Connection

from standfast.errors import (
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores.redis.scripts import pack
from standfast.stores.url import tls_error

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Mapping

    from standfast.stores.redis import RedisOptions
    from standfast.stores.redis.cluster import Routes
    from standfast.stores.remote.server import Listener
    from standfast.stores.url import Address

    Meaning = tuple[type[StoreError], str]


# --- from what the driver and the server say to the errors of this library -----------------------------------------


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
    "BUSY": (StoreBusyError, "a script of somebody keeps the server busy; see SCRIPT KILL"),
    "MASTERDOWN": (_UNAVAILABLE, "this server is a replica without its primary; the URL must name the primary"),
    "CLUSTERDOWN": (_UNAVAILABLE, "the cluster is down: some of its slots are served by nobody"),
    "TRYAGAIN": (_UNAVAILABLE, "slots of the cluster are being moved; retry"),
    "UNKILLABLE": (StoreBusyError, "a script of somebody keeps the server busy"),
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


def code_of(problem: BaseException) -> str:
    """Return the code of what a server answered, also if a script of ours stands between; empty if there is none."""
    if "Authentication required" in str(problem):
        return "NOAUTH"
    for known, code in _CLASSES.items():
        if isinstance(problem, known):
            return code
    found = _CODE.search(str(problem)[:200])
    if found is not None:
        return found[1]
    return "NOPERM" if _ACL.search(str(problem)) else ""


def translate(store: str, problem: BaseException) -> StoreError:
    """Return the error that says what a refusal means and what to do. Nothing was written."""
    if code_of(problem) in _CODES:
        kind, meaning = _CODES[code_of(problem)]
        return kind(store, f"{meaning} ({str(problem)[:200]})")
    return StoreError(store, f"the server refused: {str(problem)[:300]}")


# --- connections: a bounded pool of them for one server, opened anew with growing pauses when they break -----------

Reply: TypeAlias = Any
"""What a server answers: bytes, a number, None, a list of those, or an exception for a refusal."""

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
_CLOSED_WITHIN: Final = 1.0


@final
class RedisConnection(Connection):
    """A connection of the driver with the caller's own TLS context, and without its retries."""

    def __init__(self, tls: ssl.SSLContext | None, settings: dict[str, Any]) -> None:
        self._tls: Final = tls
        cast("Any", super()).__init__(**settings)
        self.driver_info = self.lib_name = self.lib_version = None  # two commands less for each connection

    def _connection_arguments(self) -> Mapping[str, Any]:
        arguments = {"host": self.host, "port": self.port}
        return arguments if self._tls is None else {**arguments, "ssl": self._tls}

    async def open(self) -> None:
        """Connect and log in."""
        await cast("Any", self).connect()

    async def send(self, command: bytes) -> None:
        """Send a command, or several packed together."""
        await self.send_packed_command(command, check_health=False)

    async def receive(self) -> Reply:
        """Return the next reply; a refusal is raised."""
        return await cast("Any", self).read_response(disable_decoding=True, disconnect_on_error=False)

    async def exchange(self, command: bytes, replies: int, deadline: float) -> list[Reply]:
        """Send a command and return what is answered, refusals as exceptions; cut the connection at the deadline.

        As :meth:`send` and :meth:`receive` do, without what the driver does around each of them.
        """
        driver, loop = cast("Any", self), asyncio.get_running_loop()
        timer = loop.call_at(deadline, self.abort)
        try:
            driver._writer.write(command)  # noqa: SLF001 -- its own; only its type is not known
            await driver._writer.drain()  # noqa: SLF001 -- see above
            return [await _reply(driver._parser) for _ in range(replies)]  # noqa: SLF001 -- see above
        except LOSSES as problem:
            if loop.time() >= deadline:
                raise TimeoutError from problem
            raise
        finally:
            timer.cancel()

    @property
    def is_alive(self) -> bool:
        """Whether nobody has been seen to close it: a server that stopped since the last call is met here."""
        return self._reader is not None and not self._reader.at_eof()

    def abort(self) -> None:
        """Close it without sending what is left to send."""
        if self._writer is not None:
            self._writer.transport.abort()


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
        line = self._line(host, port)
        within = min(self._options.connect_timeout, 0.9 * self._options.timeout)  # so that its caller is told why
        try:
            async with asyncio.timeout(within):
                await line.open()
        except REFUSALS as problem:
            raise await self._failed(line, problem) from None
        except (*LOSSES, TimeoutError) as problem:
            raise await self._failed(line, problem) from problem
        except BaseException:
            await hang_up(line)
            raise
        return line

    def _line(self, host: str, port: int) -> RedisConnection:
        settings = {
            "host": host,
            "port": port,
            "db": self._options.database,
            "username": self._address.user or None,
            "password": self._address.password,
            "protocol": 2,
            "socket_timeout": None,
            "socket_connect_timeout": None,
        }
        return RedisConnection(self._options.tls, settings)

    async def _failed(self, line: RedisConnection, problem: BaseException) -> StoreError:
        await hang_up(line)
        if isinstance(problem, REFUSALS):
            return translate(self.name, problem)
        said = self._slowness if isinstance(problem, TimeoutError) else str(problem)[:300]
        return StoreUnavailableError(self.name, f"cannot connect: {tls_error(said) or said}")

    @property
    def _slowness(self) -> str:
        """A server that does not speak TLS waits for the end of a line, and says nothing."""
        return "it took too long" if self._options.tls is None else "it took too long; does it speak TLS there?"


async def hang_up(line: RedisConnection) -> None:
    """Close a connection, whatever state it is in."""
    line.abort()
    with contextlib.suppress(*LOSSES, TimeoutError):
        async with asyncio.timeout(_CLOSED_WITHIN):
            await line.disconnect()


@final
class Pauses:
    """How long to wait before connecting again: longer each time, and not everybody at once."""

    __slots__ = ("_failures", "_not_before", "_random")

    def __init__(self) -> None:
        self._random: Final = random.Random()  # noqa: S311 -- spreads out who connects when
        self._failures = 0
        self._not_before = 0.0

    async def wait(self) -> None:
        """Wait until it is time to try again."""
        left = self._not_before - asyncio.get_running_loop().time()
        if left > 0:
            await asyncio.sleep(left)

    def note(self, *, connected: bool) -> None:
        """Take notice of how it went."""
        self._failures = 0 if connected else self._failures + 1
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._failures, 10))
        pause = 0.0 if connected else self._random.uniform(longest / 2, longest)
        self._not_before = asyncio.get_running_loop().time() + pause


@final
class RedisPool:
    """The connections of one handle to one server."""

    def __init__(self, dialer: Dialer, host: str, port: int, size: int) -> None:
        self._dialer, self._host, self._port = dialer, host, port
        self._idle: Final[list[RedisConnection]] = []
        self._room: Final = asyncio.Semaphore(size)
        self._pauses: Final = Pauses()
        self._is_closed = False

    async def call(self, command: bytes, replies: int = 1) -> list[Reply]:
        """Send a command, or several packed together; return what was answered, refusals as exceptions.

        Raises ``NotSentError`` or ``ReplyLostError`` if there is no answer in time, ``StoreUnavailableError`` or
        ``UnsuitableStoreError`` if there is no connection to be had.
        """
        line: RedisConnection | None = None
        is_sent = False
        async with self._room:
            deadline = asyncio.get_running_loop().time() + self._dialer.timeout
            try:
                line = self._at_hand() or await self._take(deadline)
                is_sent = True
                answers = await line.exchange(command, replies, deadline)
            except (*LOSSES, TimeoutError) as problem:
                await self._break(line)
                raise _lost(problem, is_sent=is_sent) from problem
            except BaseException:
                if line is not None:
                    await hang_up(line)
                raise
            if line.is_alive and not self._is_closed:
                self._idle.append(line)
            else:
                await hang_up(line)
            return answers

    def _at_hand(self) -> RedisConnection | None:
        return self._idle.pop() if self._idle and self._idle[-1].is_alive else None

    async def _take(self, deadline: float) -> RedisConnection:
        async with asyncio.timeout_at(deadline):
            while self._idle:
                line = self._idle.pop()
                if line.is_alive:
                    return line
                await hang_up(line)
            return await self._dial()

    async def _dial(self) -> RedisConnection:
        await self._pauses.wait()
        try:
            line = await self._dialer.dial(self._host, self._port)
        except Exception:
            self._pauses.note(connected=False)
            raise
        self._pauses.note(connected=True)
        return line

    async def _break(self, line: RedisConnection | None) -> None:
        if line is not None:
            await hang_up(line)
        await self.drop_idle()  # where one broke the others most likely have, too

    async def drop_idle(self) -> None:
        """Close the connections that nobody uses, so that new ones are opened: perhaps to another server."""
        while self._idle:
            await hang_up(self._idle.pop())

    async def aclose(self) -> None:
        """Close everything."""
        self._is_closed = True
        await self.drop_idle()


async def _reply(parser: Any) -> Reply:  # noqa: ANN401 -- the driver's parser, which has no public type
    try:
        return await parser.read_response(disable_decoding=True)
    except REFUSALS as refusal:
        return refusal


def _lost(problem: BaseException, *, is_sent: bool) -> Exception:
    said = "no answer in time" if isinstance(problem, TimeoutError) else str(problem)[:300]
    return ReplyLostError(said) if is_sent else NotSentError(said)


# --- listening: one connection for what the server publishes, watched by pings and opened again when it breaks -----

PING_EVERY: Final = 10.0
_PARTS: Final = 3  # of what is published: the kind, the channel, the data


@final
class RedisSubscriber:
    """Hears what is published to some channels, for as long as the handle is open."""

    def __init__(self, dialer: Dialer, routes: Routes) -> None:
        self._dialer, self._routes = dialer, routes
        self._listener: Listener | None = None
        self._channels: Final[set[bytes]] = set()
        self._confirmed: Final[set[bytes]] = set()
        self._line: RedisConnection | None = None
        self._moved: Final = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._pauses: Final = Pauses()
        self._heard_at = 0.0
        self._was_cut = False

    def listen(self, listener: Listener) -> None:
        """Hand everything to ``listener``. The connection is opened now: the first who waits shall not wait for it."""
        self._listener = listener
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def change(self, added: Iterable[bytes], removed: Iterable[bytes]) -> None:
        """Hear more channels and fewer; returns when the server has confirmed it."""
        added, removed = list(added), list(removed)
        self._channels.update(added)
        self._channels.difference_update(removed)
        if self._line is not None:
            await self._send(self._line, added, removed)
        await self._until_confirmed()

    async def _send(self, line: RedisConnection, added: list[bytes], removed: list[bytes]) -> None:
        parts = [pack(b"SUBSCRIBE", *added)] if added else []
        parts += [pack(b"UNSUBSCRIBE", *removed)] if removed else []
        if parts:
            with contextlib.suppress(*LOSSES):  # then it is opened again, with all channels
                await line.send(b"".join(parts))

    async def _until_confirmed(self) -> None:
        try:
            async with asyncio.timeout(self._dialer.timeout), self._moved:
                await self._moved.wait_for(lambda: self._channels <= self._confirmed)
        except TimeoutError:
            raise StoreUnavailableError(self._dialer.name, "it does not confirm what is listened to") from None

    # --- the connection ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._pauses.wait()
            try:
                self._line = await self._dialer.dial(*await self._routes.place())
                await self._send(self._line, list(self._channels), [])
                await self._hear(self._line)
            except (*REFUSALS, *LOSSES, StoreError, TimeoutError):
                self._pauses.note(connected=False)
                self._was_cut = True
                await self._routes.look_again()
            finally:
                line, self._line = self._line, None
                self._confirmed.clear()
                if line is not None:
                    await hang_up(line)

    async def _hear(self, line: RedisConnection) -> None:
        """Hear messages until the connection breaks, or is silent although it was pinged."""
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        pinging = loop.create_task(self._ping(line))
        try:
            while True:
                message = await line.receive()
                self._heard_at = loop.time()
                self._pauses.note(connected=True)
                await self._take(message)
        finally:
            pinging.cancel()

    async def _ping(self, line: RedisConnection) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(*LOSSES):
            while True:
                await asyncio.sleep(PING_EVERY)
                asked_at = loop.time()
                await line.send(pack(b"PING"))
                await asyncio.sleep(self._dialer.timeout)
                if self._heard_at < asked_at:
                    break
        await hang_up(line)  # whoever reads from it notices

    async def _take(self, message: Reply) -> None:
        kind = message[0] if len(message) == _PARTS else b""
        if kind == b"message" and self._listener is not None:
            self._listener.take(message[2])
        elif kind in {b"subscribe", b"unsubscribe"}:
            async with self._moved:
                (self._confirmed.add if kind == b"subscribe" else self._confirmed.discard)(message[1])
                self._moved.notify_all()
            self._tell_loss()

    def _tell_loss(self) -> None:
        """After a cut, once everything is listened to again: messages may have been missed meanwhile."""
        if self._was_cut and self._channels <= self._confirmed and self._listener is not None:
            self._was_cut = False
            self._listener.take_loss()

    async def aclose(self) -> None:
        """Hear nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
