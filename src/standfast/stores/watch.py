"""Bells: hints between the handles of one process, whichever event loop or thread each lives in."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Final, Self, final

from standfast.durations import optional_seconds
from standfast.stores.backend import SubscribesElsewhere
from standfast.stores.protocol import Hint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from standfast.durations import Duration
    from standfast.keys import RecordKey
    from standfast.stores.backend import Backend, Ear
    from standfast.stores.protocol import Wake


# --- bells: hints between the handles of one process, whichever event loop or thread each lives in -----------------


@final
class _Listener:
    """An ear and the loop that it must be called on."""

    __slots__ = ("ear", "loop")

    def __init__(self, ear: Ear, loop: asyncio.AbstractEventLoop) -> None:
        self.ear, self.loop = ear, loop

    def tell(self, about: RecordKey | None, here: asyncio.AbstractEventLoop | None) -> None:
        if here is self.loop:
            self.ear.hear(about)
            return
        try:
            self.loop.call_soon_threadsafe(self.ear.hear, about)
        except RuntimeError:  # its loop has been closed without closing the watch: nobody is left to tell
            return


@final
class Bells:
    """Who listens to which prefix, for all handles of this process on the same data.

    Finding the listeners of a key looks at the prefixes of the lengths that are in use, not at every listener.
    """

    __slots__ = ("_lengths", "_lock", "by_prefix")

    def __init__(self) -> None:
        self.by_prefix: dict[bytes, tuple[_Listener, ...]] = {}
        self._lengths: tuple[int, ...] = ()
        self._lock = threading.Lock()

    def listen(self, prefixes: Iterable[RecordKey], ear: Ear) -> Callable[[], None]:
        """Tell ``ear`` of hints at or below ``prefixes``, until the returned function is called."""
        listener = _Listener(ear, asyncio.get_running_loop())
        wanted = tuple({bytes(prefix) for prefix in prefixes})
        self._change(wanted, lambda present: (*present, listener))
        return lambda: self._change(wanted, lambda present: tuple(each for each in present if each is not listener))

    def _change(
        self, prefixes: Iterable[bytes], edit: Callable[[tuple[_Listener, ...]], tuple[_Listener, ...]]
    ) -> None:
        with self._lock:
            table = dict(self.by_prefix)  # copied, so that ringing needs no lock
            for prefix in prefixes:
                table[prefix] = edit(table.get(prefix, ()))
            self.by_prefix = {prefix: listeners for prefix, listeners in table.items() if listeners}
            self._lengths = tuple(sorted({len(prefix) for prefix in self.by_prefix}))

    def ring(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:
        """Tell the listeners of each changed key, and of each wake."""
        for key in changed:
            self.tell(key, key)
        for wake in wakes:
            self.tell(wake.to, wake.about or wake.to)

    def tell(self, to: bytes, about: RecordKey | None) -> None:
        """Tell the listeners of ``to`` and of its prefixes to look at ``about``."""
        table = self.by_prefix
        for length in self._lengths:
            if length > len(to):
                return
            for listener in table.get(to[:length], ()):
                listener.tell(about, _running_loop())

    def tell_everyone(self) -> None:
        """Tell every listener that hints were lost."""
        for listeners in self.by_prefix.values():
            for listener in listeners:
                listener.tell(None, _running_loop())


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


# --- A watch: collects the hints of a subscription until somebody asks for them ------------------------------------

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
