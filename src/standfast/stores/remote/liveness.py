"""Liveness over a network: a session that falls with its process, so that others see soon that the process has died.

Each process that is asked for its token has one session of its own on the server, on a thread of its own, and attaches
a number to it that was drawn at random. The numbers of others are checked over the same session, while they are waited
for. How a number is attached to a session, each server says (:class:`LivenessServer`). What a lost session means, and
when, is in :mod:`standfast.stores.liveness`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final, Protocol, final

from msgspec import Struct

from standfast.stores.liveness import GRACE, ProcessLiveness, Suspicion, now, run_in_forked_child
from standfast.threads import start_loop

if TYPE_CHECKING:
    from collections.abc import Sequence
    from socket import socket

    from standfast.stores.address import Address


# --- what a server must offer ---------------------------------------------------------------------------------------

SILENT_FOR: Final = 20.0
"""After how many seconds without an answer a session counts as lost here."""

CONNECTED_WITHIN: Final = 1.0


class LivenessSession(Protocol):
    """A session of the server itself, for the length of a block.

    Attributes:
        tried_at: When it last answered.
    """

    tried_at: float

    @property
    def ends_at(self) -> float:
        """When it ends by itself unless it is tried before; infinity where it lasts until it is closed.

        Others have not seen it since then, however late this process notices.
        """
        ...

    @property
    def is_lost(self) -> bool:
        """Whether it has ended."""
        ...

    def when_lost(self, tell: Callable[[], object]) -> None:
        """Call ``tell`` when it ends."""
        ...

    async def attach(self, number: int) -> None:
        """Attach a number that only this process uses: if it is attached, then to an older session of ours."""
        ...

    async def unattached(self, numbers: Sequence[int]) -> set[int]:
        """Return the numbers that are attached to no session; with none, only try the session."""
        ...

    def abandon(self) -> None:
        """Let go of the socket in a forked child, without a word to the server."""
        ...


class LivenessServer(Struct, frozen=True):
    """Where sessions are opened, and how.

    Attributes:
        kind: The kind of server, for its tokens.
        store: What tells the store from all others, as the server says it. Tokens of another one are never judged.
        place: The address. Handles of one process share a session if kind, store and place are the same.
        open_session: Opens a session for the length of a block. It is refused if another store is at the other end.
        errors: What the driver raises.
        refuses_sessions: Returns True for an error that says that the server takes no sessions at all now.
        ping_every: After how many seconds without anything else to ask a session is tried.
        grace: For how many seconds a process may be without a session before it counts as dead. Its token says so.
    """

    kind: str
    store: str
    place: str
    open_session: Callable[[], AbstractAsyncContextManager[LivenessSession]]
    errors: tuple[type[Exception], ...]
    refuses_sessions: Callable[[Exception], bool]
    ping_every: float = 5.0
    grace: float = GRACE


def take_grace(address: Address, default: float = GRACE) -> float:
    """Take the option ``grace`` of a URL."""
    grace = address.take_seconds("grace", default)
    if grace != default and not GRACE <= grace <= LONGEST_GRACE:
        raise address.refuse(f"grace is a duration from {GRACE:g} s to an hour, for example 10s")
    return grace


def abandon_socket(shared: socket | None) -> None:
    """Let go of a socket that a forked child shares with its parent. Its number stays taken, since objects use it."""
    if shared is not None and shared.fileno() >= 0:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, shared.fileno(), inheritable=False)
        os.close(nothing)


# --- tokens: attached to a session, so that others see soon that a process has died ---------------------------------

LOOK_EVERY: Final = 0.2
"""Seconds between two looks at the tokens that are asked about, while all of them are attached."""

SUSPECT_EVERY: Final = 0.05
"""Seconds between two looks while one of them is not."""

LOOKS_AT: Final = 250
"""How many tokens are checked in a second, at the most; with very many of them the checks get rarer."""

ASKED_FOR: Final = 3.0
"""For how many seconds after it was asked about a token is checked."""

FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 3.0

_TOKEN: Final = re.compile(r"([a-z]1):([0-9a-f]{16}):([0-9a-f]{16}):([0-9]{1,10})(?::([0-9]{4,7}))?", re.ASCII)
"""Kind of server and format, store, the number that is attached, the process for people to read, and its grace.

The grace, in milliseconds, is left out if it is the usual one. An older version does not know a token with one: to it
that process dies with its lease.
"""

SHORTEST_GRACE: Final = 0.75
LONGEST_GRACE: Final = 3_600.0


@final
class SessionLiveness:
    """What this process shows of itself on one store, and what it sees of others. All its handles share one.

    Get it with :func:`join_liveness`, and :meth:`leave` when done. Its methods may be called on any thread.
    """

    def __init__(self, server: LivenessServer) -> None:
        self._server: Final = server
        self._mark: Final = hashlib.blake2b(server.store.encode(), digest_size=8).hexdigest()
        self._lock: Final = threading.Lock()
        self._proof: ProcessLiveness | None = None
        self._asked: Final[dict[str, float]] = {}
        self._suspicions: Final[dict[str, Suspicion]] = {}
        self._dead: Final[set[str]] = set()
        self._thread: threading.Thread | None = None
        self._ended: Future[None] = Future()
        self._wake: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: LivenessSession | None = None
        self._stopping = False
        self.users = 0

    # --- for the handles -------------------------------------------------------------------------------------

    def liveness_token(self) -> str:
        """Return this process's token; it is being attached if it is not."""
        with self._lock:
            self._begin()
            return self._current().token

    def is_dead(self, text: str) -> bool:
        """Return True if a process is known to have died; from now on that is checked for a while."""
        if text in self._dead:
            return True
        found = _TOKEN.fullmatch(text)
        if found is None or (found[1], found[2]) != (self._server.kind, self._mark):
            return False
        with self._lock:
            if self._proof is not None and text == self._proof.token:
                return False
            is_new = text not in self._asked
            self._asked[text] = now()
            self._begin()
            if is_new:
                self._wake_thread()
        return False

    def _current(self) -> ProcessLiveness:
        if self._proof is None or self._proof.left() <= 0:
            number, grace = secrets.token_hex(8), self._server.grace
            token = f"{self._server.kind}:{self._mark}:{number}:{os.getpid()}"
            self._proof = ProcessLiveness(token if grace == GRACE else f"{token}:{round(grace * 1000):04}", grace)
        return self._proof

    def _begin(self) -> None:
        if self._thread is None and not self._stopping:
            self._thread = start_loop(self._main, "liveness")

    def _wake_thread(self) -> None:
        if self._loop is not None and self._wake is not None:
            with contextlib.suppress(RuntimeError):  # it is just coming to its end
                self._loop.call_soon_threadsafe(self._wake.set)

    async def leave(self) -> None:
        """Let go of it; the last one ends the session, and thereby severs the token."""
        with _all_lock:
            self.users -= 1
            if self.users > 0:
                return
            for key in [key for key, lives in _all.items() if lives is self]:
                del _all[key]
        with self._lock:
            self._stopping = True
            thread = self._thread
            self._wake_thread()
        if thread is not None:
            await asyncio.wrap_future(self._ended)
            thread.join()

    def abandon(self) -> None:
        """Let go, in a forked child, of the session that the parent has: else it would live as long as the child."""
        if self._session is not None:
            self._session.abandon()

    # --- on the thread ---------------------------------------------------------------------------------------

    async def _main(self) -> None:
        with self._lock:
            self._wake = asyncio.Event()
            self._loop = asyncio.get_running_loop()
        try:
            pause = FIRST_PAUSE
            while not self._stopping:
                with self._lock:
                    proof = self._current()
                pause = FIRST_PAUSE if await self._live(proof) else min(LONGEST_PAUSE, pause * 2)
                await self._rest(pause if proof.left() <= 0 else min(pause, SUSPECT_EVERY))
        finally:
            with self._lock:
                self._loop = self._wake = None
            self._ended.set_result(None)

    async def _live(self, proof: ProcessLiveness) -> bool:
        """Keep a token attached for as long as a session lasts; False if it could not be attached."""
        was_attached = False
        try:
            async with self._server.open_session() as session:
                self._session = session
                try:
                    await session.attach(_number(proof.token))
                    was_attached = proof.attach()
                    while was_attached and not self._stopping and not session.is_lost:
                        await self._check(session)
                finally:
                    proof.lose(session.ends_at)
        except self._server.errors as error:
            if self._server.refuses_sessions(error):
                proof.excuse()
        finally:
            self._session = None
            for suspicion in self._suspicions.values():
                suspicion.forget()
        return was_attached

    async def _check(self, session: LivenessSession) -> None:
        """Rest for a while, or until something happens; then check the tokens asked about, or try the session."""
        await self._rest(self._seconds_to_rest(), session)
        asked = self._asked_about()
        if self._stopping or session.is_lost:
            return
        if not asked:
            if now() - session.tried_at >= self._server.ping_every:
                await session.unattached([])
            return
        asked_at = now()
        unattached = await session.unattached([_number(text) for text in asked])
        self._note(asked, unattached, asked_at, now())

    def _seconds_to_rest(self) -> float:
        if not self._asked:
            return self._server.ping_every
        is_suspicious = any(suspicion.is_there for suspicion in self._suspicions.values())
        return max(SUSPECT_EVERY if is_suspicious else LOOK_EVERY, len(self._asked) / LOOKS_AT)

    async def _rest(self, seconds: float, session: LivenessSession | None = None) -> None:
        wake = self._wake
        if wake is None or self._stopping:
            return
        wake.clear()
        if session is not None:
            session.when_lost(wake.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await wake.wait()

    def _asked_about(self) -> list[str]:
        """Return the tokens that are asked about, and forget the others."""
        latest = now() - ASKED_FOR
        with self._lock:
            for text in [text for text, at in self._asked.items() if at < latest]:
                del self._asked[text]
                self._suspicions.pop(text, None)
            return list(self._asked)

    def _note(self, asked: Sequence[str], unattached: set[int], asked_at: float, answered_at: float) -> None:
        for text in asked:
            suspicion = self._suspicions.get(text) or self._suspicions.setdefault(text, Suspicion(_grace(text)))
            is_attached = _number(text) not in unattached
            suspicion.look(is_attached=is_attached, asked_at=asked_at, answered_at=answered_at)
            if suspicion.is_certain:
                self._dead.add(text)
                with self._lock:
                    self._asked.pop(text, None)
                del self._suspicions[text]


def _number(token: str) -> int:
    """Return the number that a token attaches: of 64 bits, with a sign."""
    return int.from_bytes(bytes.fromhex(token.split(":")[2]), signed=True)


def _grace(token: str) -> float:
    """Return for how many seconds the process of a token may be without a session."""
    found = _TOKEN.fullmatch(token)
    return GRACE if found is None or found[5] is None else max(SHORTEST_GRACE, int(found[5]) / 1000)


_all: Final[dict[tuple[str, ...], SessionLiveness]] = {}
_all_lock = threading.Lock()


def join_liveness(server: LivenessServer) -> SessionLiveness:
    """Return what the handles of this process on a store share."""
    key = server.kind, server.store, server.place, str(server.grace)
    with _all_lock:
        lives = _all.get(key)
        if lives is None:
            lives = _all[key] = SessionLiveness(server)
        lives.users += 1
        return lives


def _in_child() -> None:
    global _all_lock  # noqa: PLW0603 -- another thread of the parent may have held it
    _all_lock = threading.Lock()
    for lives in _all.values():
        lives.abandon()
    _all.clear()


run_in_forked_child(_in_child)
