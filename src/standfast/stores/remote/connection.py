"""What the connections to all servers share: back-off, a bounded pool, the warning of a server that may lose data."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import warnings
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar, final

from standfast.clock import SYSTEM_CLOCK
from standfast.errors import StoreClosedError, StoreError
from standfast.events import StoreNotDurable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from standfast.events import Hooks

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 3.0
"""Seconds before connecting again: after the first failure, and at most."""


class NotDurableWarning(UserWarning):
    """The server may lose commits that it has acknowledged, when it or its machine fails.

    Locks stay safe as long as it runs. For workflows, change the settings that the message names.
    """


def warn_not_durable(name: str, problem: str, hooks: Hooks) -> None:
    """Warn of a server that answers before a commit is on its disk."""
    if hooks:
        hooks.emit(StoreNotDurable(at=SYSTEM_CLOCK.wall(), store=name, problem=problem))
    warnings.warn(NotDurableWarning(f"{name} may lose acknowledged commits: {problem}"), stacklevel=2)


def tell_failover_loss(name: str, problem: str, hooks: Hooks) -> None:
    """Tell of replicas that may take over without the last commits. A set-up like that may be meant, so no warning."""
    if problem and hooks:
        hooks.emit(StoreNotDurable(at=SYSTEM_CLOCK.wall(), store=name, problem=problem))


_AT: Final = "asked of "


def note_place(error: BaseException, place: str) -> None:
    """Note on a driver's error which of several servers it came from; drivers do not say it."""
    if place and not place_of(error):
        error.add_note(f"{_AT}{place}")


def place_of(error: BaseException) -> str:
    """Return the address that was noted on an error, with a colon after it to begin a message; empty if none was."""
    notes = (note for note in getattr(error, "__notes__", ()) if note.startswith(_AT))
    return next((f"{note.removeprefix(_AT)}: " for note in notes), "")


@final
class ConnectBackoff:
    """The pause before the next attempt to connect: twice as long after each failure, and random in part.

    Of many clients that lost the same server, not all come back at the same moment.
    """

    __slots__ = ("_loop", "_not_before", "_pause", "_random")

    def __init__(self) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._random: Final = random.Random()  # noqa: S311 -- spreads the attempts of many clients
        self._pause = self._not_before = 0.0

    async def wait(self, longest: float = math.inf) -> None:
        """Wait until the next attempt is due, but no longer than ``longest`` seconds."""
        seconds = self._not_before - self._loop.time()
        if seconds > 0:
            await asyncio.sleep(min(seconds, longest))

    def failed(self) -> None:
        """Put the next attempt off."""
        self._pause = min(LONGEST_PAUSE, self._pause * 2 or FIRST_PAUSE)
        self._not_before = self._loop.time() + self._random.uniform(self._pause / 2, self._pause)

    def succeeded(self) -> None:
        """Let the next attempt be made at once."""
        self._pause = self._not_before = 0.0


class PooledConnection(Protocol):
    """A connection as :class:`ConnectionPool` needs it."""

    @property
    def is_alive(self) -> bool:
        """Whether neither side has been seen to close it."""
        ...

    async def discard(self) -> None:
        """Cut it: what is in its pipe is not known."""
        ...

    async def aclose(self) -> None:
        """Close it in good order."""
        ...


C = TypeVar("C", bound=PooledConnection)


class _Room(asyncio.Semaphore):
    """A semaphore that is also taken without waiting."""

    def take(self) -> bool:
        """Take one if none waits for it."""
        if self._value == 0 or (self._waiters and self.locked()):
            return False
        self._value -= 1
        return True

    def give(self) -> None:
        """Release one, as ``release`` does, which looks for one that waits by a call of its own."""
        if self._waiters:
            self.release()
        else:
            self._value += 1


@final
class ConnectionPool(Generic[C]):
    """At most ``size`` connections of one handle to one server. Those that are not in use are kept.

    Args:
        name: The store as shown to people.
        size: How many there may be at a time.
        dial: Opens a connection, or raises a ``StoreError``.

    Attributes:
        room: To be held by the user of a connection.
    """

    def __init__(self, name: str, size: int, dial: Callable[[], Awaitable[C]]) -> None:
        self._name, self._dial = name, dial
        self.room: Final = _Room(size)
        self._idle: Final[list[C]] = []
        self._backoff: Final = ConnectBackoff()
        self._is_closed = False

    @contextlib.asynccontextmanager
    async def borrow(self) -> AsyncGenerator[C]:
        """Lend a connection for the length of a block; it is discarded if the block raises."""
        async with self.room:
            connection = self.at_hand() or await self.take()
            try:
                yield connection
            except BaseException:
                await connection.discard()
                raise
            await self.give(connection)

    def at_hand(self) -> C | None:
        """Take the connection that was used last, if it is alive."""
        return self._idle.pop() if self._idle and self._idle[-1].is_alive else None

    def take_at_once(self) -> C | None:
        """Take the connection that was used last, and room for it; None if either would have to be waited for."""
        idle = self._idle
        if not idle or not idle[-1].is_alive or not self.room.take():
            return None
        return idle.pop()

    async def take(self) -> C:
        """Take an idle connection, or open one when the back-off allows it."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_alive:
                return connection
            await connection.discard()
        if self._is_closed:
            raise StoreClosedError(self._name, "it was closed; open a new one")
        await self._backoff.wait()
        try:
            connection = await self._dial()
        except StoreError:
            self._backoff.failed()
            raise
        self._backoff.succeeded()
        return connection

    async def give(self, connection: C) -> None:
        """Take a connection back that nothing went wrong on."""
        if not self.keep(connection):
            await connection.discard()

    def keep(self, connection: C) -> bool:
        """Keep a connection that nothing went wrong on for the next caller; False: it is to be discarded."""
        if is_kept := connection.is_alive and not self._is_closed:
            self._idle.append(connection)
        return is_kept

    def give_at_once(self, connection: C) -> bool:
        """Do as :meth:`keep` does, and release the room that :meth:`take_at_once` has taken."""
        if is_kept := connection.is_alive and not self._is_closed:
            self._idle.append(connection)
        self.room.give()
        return is_kept

    async def drop_idle(self) -> None:
        """Discard the connections that are not in use: where one broke, the others most likely have, too."""
        while self._idle:
            await self._idle.pop().discard()

    async def aclose(self) -> None:
        """Close the connections that are not in use; the others are discarded when they come back."""
        self._is_closed = True
        while self._idle:
            await self._idle.pop().aclose()
