"""The link from blocking code to an async space, which is opened anew after a fork."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

from msgspec import Struct

from standfast.blocking._background import Background, BackgroundCall, background, call
from standfast.blocking._refusals import refuse_green_threads, refuse_running_loop
from standfast.errors import StoreClosedError
from standfast.space import Space as AsyncSpace
from standfast.stores.liveness import run_in_forked_child

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from standfast.space import Opening

A = TypeVar("A")
T = TypeVar("T")

_reopening = threading.Lock()


class Live(Struct, frozen=True):
    """An open async space, and the loop that it lives on."""

    background: Background
    space: AsyncSpace


@final
class Link:
    """An async space for all threads of a process, and another one for each process that is forked from it."""

    __slots__ = ("_is_closed", "_live", "_opening", "name")

    def __init__(self, name: str, opening: Callable[[], Opening]) -> None:
        self.name: Final = name
        self._opening: Final = opening
        self._is_closed = False
        self._live: Live | None = None
        self.live()

    def live(self) -> Live:
        """Return the space of this process; open it if this is a forked child that has not used it yet."""
        refuse_running_loop()
        live = self._live
        if live is None or live.background.guard.crossed:
            with _reopening:
                live = self._opened()
        if self._is_closed:
            raise StoreClosedError(self.name, "it was closed; open a new one")
        return live

    def _opened(self) -> Live:
        live = self._live
        if live is None or (live.background.guard.crossed and not self._is_closed):
            refuse_green_threads()
            live = self._live = self._open()
        return live

    def _open(self) -> Live:
        here = background()
        asked = BackgroundCall(here, self._open_async, _close)
        try:
            live = Live(here, asked.result())
            here.spaces.add(live.space)
        except BaseException:
            asked.abandon()
            raise
        return live

    async def _open_async(self) -> AsyncSpace:
        return await self._opening()

    def close(self) -> None:
        """Close the space of this process, if it has one. Closing twice is fine."""
        refuse_running_loop()
        if self._is_closed:
            return
        self._is_closed = True
        live = self._live
        if live is not None and not live.background.guard.crossed and live.background.is_alive:
            live.background.spaces.discard(live.space)
            call(live.background, live.space.aclose, shielded=True)


async def _close(space: AsyncSpace) -> None:
    await space.aclose()


@final
class Bound(Generic[A]):
    """Something of an async space, as blocking code has it: made anew where the space was opened anew."""

    __slots__ = ("_it", "_live", "_make", "link")

    def __init__(self, link: Link, make: Callable[[AsyncSpace], A]) -> None:
        self.link: Final = link
        self._make: Final = make
        self._live = link.live()
        self._it = make(self._live.space)

    def now(self) -> tuple[Background, A]:
        """Return it, and the loop that it lives on."""
        live = self.link.live()
        if live is not self._live:
            self._it, self._live = self._make(live.space), live
        return live.background, self._it

    def call(self, work: Callable[[A], Coroutine[Any, Any, T]]) -> T:
        """Let the loop do something with it, and wait for that."""
        here, it = self.now()
        return call(here, lambda: work(it))


def _start_anew() -> None:
    global _reopening  # noqa: PLW0603 -- it may have been held by a thread that a forked child does not have
    _reopening = threading.Lock()


run_in_forked_child(_start_anew)
