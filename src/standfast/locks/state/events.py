"""What happens to a state, told to whoever uses the same handle.

These events stay in the process and carry values, so they are none of :mod:`standfast.events`, which go to logs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeAlias, TypeVar, final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
E = TypeVar("E")

LONGEST_BACKLOG: Final = 1_000
"""How many events wait for a reader, by default."""

_logger: Final = logging.getLogger("standfast")


class StateChanged(Struct, Generic[T], frozen=True):
    """A write through this handle is durable. Values are copies; None is what a deleted state reads as."""

    value: T | None
    previous: T | None
    version: int


class StateConflict(Struct, frozen=True):
    """Somebody else changed the state while an async updater ran, so it runs again."""

    key: str
    attempt: int


class StateExhausted(Struct, frozen=True):
    """An async updater lost its last try."""

    key: str
    attempts: int


class StateEventsDropped(Struct, frozen=True):
    """The reader was too slow: ``count`` events that came before the next one were dropped."""

    count: int


StateEvent: TypeAlias = StateChanged[Any] | StateConflict | StateExhausted | StateEventsDropped
"""What a reader of events meets."""


@final
class StateEvents:
    """A reader of a state's events: enter it to begin, iterate over it, leave it to end.

    It keeps up to ``limit`` events that were not read yet, then drops the oldest and says how many. Once it was left,
    also by another task, the iteration ends after what was kept.
    """

    __slots__ = ("_backlog", "_bell", "_dropped", "_has_left", "_limit", "_listeners")

    def __init__(self, listeners: Listeners, limit: int) -> None:
        self._listeners: Final = listeners
        self._limit: Final = limit
        self._backlog: Final[deque[StateEvent]] = deque()
        self._bell: Final = asyncio.Event()
        self._dropped = 0
        self._has_left = False

    async def __aenter__(self) -> Self:
        self._listeners.add(self._take)
        self._has_left = False
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._listeners.discard(self._take)
        self._has_left = True
        self._bell.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StateEvent:
        while not self._backlog:
            if self._has_left:
                raise StopAsyncIteration
            self._bell.clear()
            await self._bell.wait()
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            return StateEventsDropped(dropped)
        return self._backlog.popleft()

    def _take(self, event: StateEvent) -> None:
        if len(self._backlog) >= self._limit:
            self._backlog.popleft()
            self._dropped += 1
        self._backlog.append(event)
        self._bell.set()


@final
class Listeners:
    """Who is told. False when nobody is: then an event need not even be made."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: Final[list[Callable[[StateEvent], object]]] = []

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def add(self, listener: Callable[[StateEvent], object]) -> None:
        """Tell ``listener`` from now on."""
        self._listeners.append(listener)

    def discard(self, listener: Callable[[StateEvent], object]) -> None:
        """Tell it no more. Doing it twice is harmless."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def on(self, kind: type[E], listener: Callable[[E], object]) -> Callable[[], None]:
        """Call ``listener`` with each event of one kind; returns what ends that."""

        def take(event: StateEvent) -> None:
            if isinstance(event, kind):
                listener(event)

        self.add(take)
        return lambda: self.discard(take)

    def tell(self, event: StateEvent) -> None:
        """Tell everyone, in the order in which they came. What they raise is logged, and changes nothing else."""
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 -- the write is done, whatever a listener makes of it
                kind = type(error).__name__  # its message may hold the value
                _logger.error("a listener to %s raised %s", type(event).__name__, kind)  # noqa: TRY400 -- likewise
