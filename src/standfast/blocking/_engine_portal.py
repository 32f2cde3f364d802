"""The portal from threads to an async engine, which is opened anew after a fork."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from msgspec import Struct

from standfast.blocking._portal import Background, BackgroundCall, call, refuse_running_loop
from standfast.errors import DeclarationError, EngineNotOpenError
from standfast.stores.liveness import run_in_forked_child
from standfast.workflows.engine import Engine as AsyncEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from standfast.blocking._portal import Link
    from standfast.durations import Duration
    from standfast.events import Hook
    from standfast.space import Space as AsyncSpace
    from standfast.workflows.debounce import Runnable

T = TypeVar("T")

INSTEAD: Final = "async with standfast.Engine(...)"
_opening = threading.Lock()


class Running(Struct, frozen=True):
    """An open async engine, and the loop that it lives on."""

    background: Background
    engine: AsyncEngine


@final
class EngineLink:
    """An async engine for all threads of a process, and another one for each process that is forked from it.

    Args:
        find: Returns the link to the store, and opens it if need be.
        make: Makes an engine that is not open yet.
        is_own: Whether the store is closed with the engine.
    """

    __slots__ = ("_drive", "_find", "_hooks", "_is_closed", "_is_own", "_link", "_make", "_registered", "_running")

    def __init__(self, find: Callable[[], Link], make: Callable[[AsyncSpace], AsyncEngine], *, is_own: bool) -> None:
        self._find, self._make, self._is_own = find, make, is_own
        self._registered: Final[list[Runnable]] = []
        self._drive: bool | None = None
        self._hooks: tuple[Hook, ...] = ()
        self._link: Link | None = None
        self._running: Running | None = None
        self._is_closed = False

    # --- using ---------------------------------------------------------------------------------------------------

    def running(self) -> Running:
        """Return the engine of this process; open it if it is used for the first time here."""
        refuse_running_loop(INSTEAD)
        found = self._running
        if found is None or self._is_closed or found.background.guard.crossed:
            with _opening:
                if self._is_closed:
                    raise _closed()
                found = self._running
                if found is None or not self._is_open:
                    found = self._running = self._open()
        return found

    def call(self, work: Callable[[AsyncEngine], Coroutine[Any, Any, T]]) -> T:
        """Let the loop do something with the engine, and wait for that."""
        here = self.running()
        try:
            return call(here.background, lambda: work(here.engine))
        except EngineNotOpenError:  # it was closed meanwhile
            raise _closed() from None

    def store(self) -> Link:
        """Return the link to the store."""
        self.running()
        return self._link or self._find()

    def register(self, *workflows: Runnable) -> None:
        """Add workflows, here and wherever the engine is opened later."""
        self._registered.extend(workflows)
        if self._is_open and not self._is_closed:

            async def add(engine: AsyncEngine) -> None:
                engine.register(*workflows)

            self.call(add)

    # --- opening -------------------------------------------------------------------------------------------------

    @property
    def _is_open(self) -> bool:
        return self._running is not None and not self._running.background.guard.crossed

    def open(self, drive: bool | None, hooks: Iterable[Hook]) -> None:  # noqa: FBT001 -- as it was asked for
        """Open it now."""
        refuse_running_loop(INSTEAD)
        told = tuple(hooks)
        with _opening:
            if self._is_open:
                raise DeclarationError("the engine", "it is open already")
            self._drive, self._hooks = self._drive if drive is None else drive, told
            self._running = self._open()
            self._is_closed = False

    def _open(self) -> Running:
        link = self._link = self._link or self._find()
        try:
            return self._open_over(link)
        except BaseException:
            self._leave_store()
            raise

    def _open_over(self, link: Link) -> Running:
        here = link.live()
        engine = self._make(here.space)
        engine.register(*self._registered)
        asked = BackgroundCall(here.background, lambda: self._begin(engine), _stop)
        try:
            running = Running(here.background, asked.result())
            here.background.engines.add(engine)
        except BaseException:
            asked.abandon()
            raise
        return running

    async def _begin(self, engine: AsyncEngine) -> AsyncEngine:
        await engine.open(drive=self._drive, hooks=self._hooks)
        return engine

    # --- closing -------------------------------------------------------------------------------------------------

    def close(self, grace: Duration) -> None:
        """Close the engine of this process, if it has one. Closing twice is fine."""
        refuse_running_loop(INSTEAD)
        with _opening:
            self._is_closed = True
        running = self._running
        try:
            if running is not None and self._is_open and running.background.is_alive:
                _close(running, grace)
        finally:
            self._leave_store()
        self._running = None

    def _leave_store(self) -> None:
        link, self._link = self._link, None
        if link is not None and self._is_own:
            link.close()


def _close(running: Running, grace: Duration) -> None:
    """Hand all runs back. A caller that is interrupted meanwhile waits no longer for steps to end."""
    here, engine = running.background, running.engine
    worker = engine.worker
    asked = BackgroundCall(here, lambda: engine.aclose(grace=grace), shielded=True)
    try:
        asked.result()
    except BaseException:
        if worker is not None:
            here.post(worker.hurry)
        asked.abandon()
        raise
    finally:
        here.engines.discard(engine)


def _closed() -> EngineNotOpenError:
    return EngineNotOpenError("the engine", "it was closed; call engine.open(), or make a new one")


async def _stop(engine: AsyncEngine) -> None:
    await engine.aclose(grace=0)


def _start_anew() -> None:
    global _opening  # noqa: PLW0603 -- it may have been held by a thread that a forked child does not have
    _opening = threading.Lock()


run_in_forked_child(_start_anew)
