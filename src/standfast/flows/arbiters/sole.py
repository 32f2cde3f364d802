"""The sole server of an app: a lock in the store, held while serving, so that lines in memory are enough.

A second process is refused. A server that loses the lock, because the store takes it for dead, admits nobody until it
has it again, and what it had admitted commits nothing: every commit is guarded by the lock.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from standfast.errors import (
    ArbiterUnavailableError,
    HoldTimeoutError,
    NotTheSoleServerError,
    StandfastError,
    StoreClosedError,
    WouldWaitError,
)
from standfast.locks.algebra.line import Rules
from standfast.locks.driving.acquiring import Wish
from standfast.locks.driving.hold import Holding
from standfast.locks.driving.records import Site
from standfast.space import lines_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.locks.driving.hold import Hold
    from standfast.space import Space
    from standfast.stores.protocol import Check

SITE: Final = Site("server", Rules(1))
"""What kind of line it is."""

PAUSE: Final = 0.5
"""Seconds between two tries to get the lock back while the store does not answer."""


@final
class SoleServer:
    """The lock of the one process that serves an app.

    Args:
        space: Where the lock lies.
        app: The name of the app: apps with different names do not exclude each other.
        patience: How many seconds to wait for another process to end, on starting.
        lost: Called when it is no longer held.
        found: Called when it is held again after that.
    """

    def __init__(
        self, space: Space, app: str, patience: float, lost: Callable[[], None], found: Callable[[], None]
    ) -> None:
        self._space, self._app, self._patience, self._lost, self._found = space, app, patience, lost, found
        self._hold: Hold | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._has_begun: Final = asyncio.Event()
        self._is_closing = False

    async def take(self) -> None:
        """Take the lock, and keep it until :meth:`aclose`.

        Raises:
            NotTheSoleServerError: Another process has it.
            ArbiterUnavailableError: The store does not answer.
        """
        self._is_closing = False
        keeping = self._keeping = asyncio.get_running_loop().create_task(self._keep())
        begun = asyncio.ensure_future(self._has_begun.wait())
        try:
            await asyncio.wait({keeping, begun}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            await self.aclose()
            raise
        finally:
            begun.cancel()
        if keeping.done():
            self._keeping = None
            _raise(keeping, self._app)

    def check(self) -> Hold:
        """Return that it is held, or raise: then nobody may be admitted."""
        hold = self._hold
        if hold is None or hold.is_lost:
            problem = "this process is not serving" if self._keeping is None else "another server may have taken over"
            raise ArbiterUnavailableError(problem)
        return hold

    @property
    def guard(self) -> Check:
        """A change that lets a commit happen only while this process is the sole server; raises if it is not."""
        return self.check().guard

    async def aclose(self) -> None:
        """Give the lock back."""
        self._is_closing, keeping = True, self._keeping
        self._keeping = None
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)  # a store that does not answer is left to itself

    # --- keeping it ----------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Hold the lock; once it was held, try to get it back whenever it is lost."""
        while True:
            try:
                await self._hold_once()
            except StoreClosedError:
                if not self._has_begun.is_set():
                    raise
                return
            except StandfastError:
                if not self._has_begun.is_set():
                    raise
                await asyncio.sleep(PAUSE)

    async def _hold_once(self) -> None:
        async with Holding(lines_of(self._space), self._wish(), "tell") as hold:
            self._hold = hold
            if self._has_begun.is_set():
                self._found()
            self._has_begun.set()
            try:
                await hold.lost.wait()
            finally:
                self._hold = None
                if not self._is_closing:
                    self._lost()

    def _wish(self) -> Wish:
        is_first = not self._has_begun.is_set()
        return Wish(
            f"the server of {self._app}",
            ("server", self._app),
            SITE,
            self._space.lease,
            "the local arbiter",
            waits=not is_first or self._patience > 0,
            timeout=self._patience if is_first and self._patience > 0 else None,
        )


def _raise(keeping: asyncio.Task[None], app: str) -> None:
    problem = keeping.exception()
    if isinstance(problem, WouldWaitError | HoldTimeoutError):
        raise NotTheSoleServerError(app, ", ".join(problem.holders)) from None
    if isinstance(problem, StandfastError):
        raise ArbiterUnavailableError(str(problem)) from problem
    if problem is not None:
        raise problem
