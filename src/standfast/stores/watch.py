"""Watches, and the subscriptions of one process that they stand on.

:class:`LocalSubscriptions` carries notifications between the handles of one process, on any event loop or thread. A
:class:`BackendWatch` collects what its subscription is notified of until its user asks.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol, Self, final, runtime_checkable

from standfast.durations import seconds
from standfast.stores.backend import SubscribesElsewhere
from standfast.stores.protocol import Notification

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from standfast.durations import Duration
    from standfast.keys import RecordKey
    from standfast.stores.backend import Backend, Subscriber
    from standfast.stores.protocol import Record, Wake


# --- subscriptions of one process ----------------------------------------------------------------------------------


@final
class _Subscription:
    """A subscriber and the loop that it must be called on."""

    __slots__ = ("loop", "subscriber")

    def __init__(self, subscriber: Subscriber, loop: asyncio.AbstractEventLoop) -> None:
        self.subscriber, self.loop = subscriber, loop

    def notify(
        self, about: RecordKey | None, here: asyncio.AbstractEventLoop | None, moved: Record | None = None
    ) -> None:
        if here is self.loop:
            self.subscriber.notify(about, moved)
            return
        try:
            self.loop.call_soon_threadsafe(self.subscriber.notify, about, moved)
        except RuntimeError:  # its loop was closed without closing the watch
            return


A_FEW: Final = 16
"""Up to this many prefixes are compared with a key by one call."""


@final
class LocalSubscriptions:
    """Subscribers by prefix, for all handles of this process on the same data.

    Finding the subscribers of a key looks at the prefixes of the lengths that are in use, not at every subscription.
    """

    __slots__ = ("_few", "_in_use", "_lengths", "_lock", "by_prefix")

    def __init__(self) -> None:
        self.by_prefix: dict[bytes, tuple[_Subscription, ...]] = {}
        self._lengths: tuple[int, ...] = ()
        self._few: tuple[bytes, ...] | None = ()  # all prefixes; None: they are many
        self._in_use: Final[Counter[int]] = Counter()  # how many prefixes have each length
        self._lock = threading.Lock()

    def subscribe(self, prefixes: Iterable[RecordKey], subscriber: Subscriber) -> Callable[[], None]:
        """Notify ``subscriber`` of keys at or below ``prefixes``, until the returned function is called."""
        subscription = _Subscription(subscriber, asyncio.get_running_loop())
        wanted = tuple({bytes(prefix) for prefix in prefixes})
        self._change(wanted, lambda present: (*present, subscription))
        return lambda: self._change(wanted, lambda present: tuple(each for each in present if each is not subscription))

    def _change(
        self, prefixes: Iterable[bytes], edit: Callable[[tuple[_Subscription, ...]], tuple[_Subscription, ...]]
    ) -> None:
        with self._lock:  # notifying needs none: each prefix has a tuple, which is replaced and never changed
            for prefix in prefixes:
                present, length = self.by_prefix.get(prefix, ()), len(prefix)
                if edited := edit(present):
                    self.by_prefix[prefix] = edited
                else:
                    self.by_prefix.pop(prefix, None)
                self._in_use[length] += bool(edited) - bool(present)
                if not self._in_use[length]:
                    del self._in_use[length]
            if len(self._in_use) != len(self._lengths) or self._in_use.keys() != set(self._lengths):
                self._lengths = tuple(sorted(self._in_use))
            self._few = tuple(self.by_prefix) if len(self.by_prefix) <= A_FEW else None

    def notify(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:
        """Notify the subscribers of each changed key, and of each wake."""
        table, lengths, few = self.by_prefix, self._lengths, self._few
        for key in changed:  # as notify_at does, without a call for each key: hardly any has subscribers
            if few is not None:
                if key.startswith(few):
                    self.notify_at(key, key)
                continue
            for length in lengths:
                if key[:length] in table:
                    self.notify_at(key, key)
                    break
        for wake in wakes:
            self.notify_at(wake.to, wake.about or wake.to, wake.moved)

    def notify_at(self, to: bytes, about: RecordKey | None, moved: Record | None = None) -> None:
        """Notify the subscribers of ``to`` and of its prefixes that ``about`` changed."""
        table = self.by_prefix
        for length in self._lengths:
            if length > len(to):
                return
            for subscription in table.get(to[:length], ()):
                subscription.notify(about, _running_loop(), moved)

    def notify_all(self) -> None:
        """Notify every subscriber that notifications were lost."""
        with self._lock:
            by_prefix = tuple(self.by_prefix.values())
        for subscriptions in by_prefix:
            for subscription in subscriptions:
                subscription.notify(None, _running_loop())


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


# --- watches -------------------------------------------------------------------------------------------------------

MAX_REMEMBERED: Final = 1_000
"""Beyond this many keys a watch answers "anything may have changed" instead of remembering more."""


@runtime_checkable
class TakesAtOnce(Protocol):
    """A watch that hands over a record where a notification shows it, see :class:`BackendWatch`."""

    take_at_once: Callable[[Record], bool] | None


@runtime_checkable
class SkipsKeys(Protocol):
    """A watch that leaves out keys of which its user knows more, see :class:`BackendWatch`."""

    skips: Callable[[RecordKey], bool] | None


@final
class BackendWatch:
    """A subscription to a backend. Notifications are folded: one answer may stand for many.

    Attributes:
        take_at_once: Called with a record that a notification shows, where that arrives. One that it takes, by
            returning True, is not told by :meth:`wait`: no task is woken for it. It must not raise.
        skips: Called with a key that a notification names, where that arrives. One that it skips, by returning True,
            is not told by :meth:`wait` either. It must not raise.
    """

    __slots__ = (
        "__weakref__",
        "_about",
        "_backend",
        "_check_usable",
        "_complete",
        "_forget",
        "_moved",
        "_notified",
        "_prefixes",
        "skips",
        "take_at_once",
    )

    def __init__(self, backend: Backend, prefixes: tuple[RecordKey, ...], check_usable: Callable[[], None]) -> None:
        self._backend, self._prefixes = backend, prefixes
        self._check_usable: Final = check_usable
        self._about: set[RecordKey] = set()
        self._complete = True
        self._moved: list[Record] = []
        self._notified: Final = asyncio.Event()
        self._forget: Callable[[], None] | None = None
        self.take_at_once: Callable[[Record], bool] | None = None
        self.skips: Callable[[RecordKey], bool] | None = None

    async def __aenter__(self) -> Self:
        self._check_usable()
        if self._forget is None:
            self._forget = self._backend.subscribe(self._prefixes, self)
            if isinstance(self._backend, SubscribesElsewhere):
                try:
                    await self._backend.until_subscribed()
                except BaseException:  # cancelled: the caller does not close what was not opened
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
        """End the subscription because its store is closed; a waiting caller is woken, and sees that when it reads."""
        self._unsubscribe()
        self.notify(None)

    def notify(self, about: RecordKey | None, moved: Record | None = None) -> None:
        """Take a notification from the backend."""
        if moved is not None:
            if self.take_at_once is not None and self.take_at_once(moved):
                return
            self._moved.append(moved)
        elif about is not None and self.skips is not None and self.skips(about):
            return
        if len(self._moved) > MAX_REMEMBERED:
            self._moved.clear()
            about = None
        if about is None or len(self._about) >= MAX_REMEMBERED:
            self._about.clear()
            self._complete = False
        elif self._complete:
            self._about.add(about)
        self._notified.set()

    async def wait(self, timeout: Duration | None = None) -> Notification | None:
        """Return what was notified since the last call; wait at most ``timeout`` for something."""
        if timeout is None:
            await self._notified.wait()
        else:
            try:
                async with asyncio.timeout(seconds(timeout, what="timeout")):
                    await self._notified.wait()
            except TimeoutError:
                return None
        notification = Notification(frozenset(self._about), self._complete, tuple(self._moved))
        self._about.clear()
        self._moved.clear()
        self._complete = True
        self._notified.clear()
        return notification
