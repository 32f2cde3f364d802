"""A watch: collects the hints of a subscription until somebody asks for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self, final

from standfast.durations import optional_seconds
from standfast.stores.backend import SubscribesElsewhere
from standfast.stores.protocol import Hint

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.durations import Duration
    from standfast.keys import RecordKey
    from standfast.stores.backend import Backend

MAX_REMEMBERED: Final = 1_000
"""Beyond this many keys a watch says "look at everything" instead of remembering more."""


@final
class BackendWatch:
    """A subscription to a backend's hints. Hints are folded: one answer may stand for many."""

    __slots__ = ("__weakref__", "_about", "_backend", "_check_usable", "_complete", "_forget", "_heard", "_prefixes")

    def __init__(self, backend: Backend, prefixes: tuple[RecordKey, ...], check_usable: Callable[[], None]) -> None:
        self._backend, self._prefixes = backend, prefixes
        self._check_usable: Final = check_usable
        self._about: set[RecordKey] = set()
        self._complete = True
        self._heard: Final = asyncio.Event()
        self._forget: Callable[[], None] | None = None

    async def __aenter__(self) -> Self:
        self._check_usable()
        if self._forget is None:
            self._forget = self._backend.listen(self._prefixes, self)
            if isinstance(self._backend, SubscribesElsewhere):
                try:
                    await self._backend.until_subscribed()
                except BaseException:  # cancelled: nobody will close what was not opened
                    self._unsubscribe()
                    raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._unsubscribe()

    def _unsubscribe(self) -> None:
        if self._forget is not None:
            self._forget()
            self._forget = None

    def stop(self) -> None:
        """End the subscription because its store is closed; whoever waits is woken, and finds out when it reads."""
        self._unsubscribe()
        self.hear(None)

    def hear(self, about: RecordKey | None) -> None:
        """Take a hint from the backend."""
        if about is None or len(self._about) >= MAX_REMEMBERED:
            self._about.clear()
            self._complete = False
        elif self._complete:
            self._about.add(about)
        self._heard.set()

    async def wait(self, timeout: Duration | None = None) -> Hint | None:
        """Return the hints since the last call; wait for one at most for ``timeout``."""
        limit = optional_seconds(timeout, what="timeout")
        try:
            async with asyncio.timeout(limit):
                await self._heard.wait()
        except TimeoutError:
            return None
        hint = Hint(frozenset(self._about), self._complete)
        self._about.clear()
        self._complete = True
        self._heard.clear()
        return hint
