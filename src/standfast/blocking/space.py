"""A space for code without an event loop, and its subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, final

from standfast.blocking._portal import BackgroundCall, Counterpart, Link, call, refuse_green_threads
from standfast.blocking.locks import ModeLock, Mutex, RateLimiter, Semaphore
from standfast.blocking.run_locks import RunLocks
from standfast.blocking.state import Slots
from standfast.locks.locks import DEFAULT_LEASE
from standfast.redaction import mask_url
from standfast.space import Space as AsyncSpace
from standfast.space import open as open_async

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence

    from standfast.audit import Actor, AuditPage
    from standfast.blocking._portal import Background
    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.events import Hook
    from standfast.keys import Key, RecordKey
    from standfast.locks import Explanation, LineSummary
    from standfast.locks.line_history import PastHold
    from standfast.locks.survey import RatePage
    from standfast.stores.address import Credentials
    from standfast.stores.encryption import Keyring
    from standfast.stores.protocol import (
        Alternative,
        Change,
        Choice,
        Commit,
        Conflict,
        Decided,
        Decision,
        Notification,
        Snapshot,
        Wake,
        Worked,
    )
    from standfast.stores.protocol import Watch as AsyncWatch

T = TypeVar("T")


@final
class Space:
    """A store as seen by one namespace and tenant, with the locks in it. Get one from :func:`standfast.blocking.open`.

    Any thread may use it. A forked child that uses the space of its parent opens it anew, by itself; what the parent
    holds stays the parent's.
    """

    __slots__ = ("_link", "_space")

    def __init__(self, link: Link) -> None:
        self._link: Final = link
        self._space: Final[Counterpart[AsyncSpace]] = Counterpart(link, lambda space: space)

    def __repr__(self) -> str:
        return f"<blocking Space {self._link.name}>"

    # --- locks ---------------------------------------------------------------------------------------------------

    def mutex(self, key: Key | str) -> Mutex:
        """Return the mutex of ``key``: one holder at a time, in all processes on the store."""
        return Mutex(Counterpart(self._link, lambda space: space.mutex(key)))

    def semaphore(self, key: Key | str, *, permits: int) -> Semaphore:
        """Return the semaphore of ``key``: at most ``permits`` in use at a time."""
        return Semaphore(Counterpart(self._link, lambda space: space.semaphore(key, permits=permits)))

    def mode_lock(self, key: Key | str, *, modes: Iterable[str] = (), alone: Iterable[str] = ()) -> ModeLock:
        """Return the mode lock of ``key``: holders of one mode share it, unless it is one of ``alone``."""
        shared, single = _kept(modes), _kept(alone)
        return ModeLock(Counterpart(self._link, lambda space: space.mode_lock(key, modes=shared, alone=single)))

    def rate_limiter(
        self,
        key: Key | str,
        *,
        interval: Duration,
        capacity: int = 1,
        waiter_ttl: Duration | None = None,
        follow: bool = False,
    ) -> RateLimiter:
        """Return the rate limiter of ``key``: one token each ``interval``, at most ``capacity`` saved up."""
        return RateLimiter(
            Counterpart(
                self._link,
                lambda space: space.rate_limiter(
                    key, interval=interval, capacity=capacity, waiter_ttl=waiter_ttl, follow=follow
                ),
            )
        )

    @property
    def state(self) -> Slots:
        """The states that are kept in this space: ``space.state.shared("visits", type=int, initial=0)``."""
        return Slots(self._link)

    @property
    def run_locks(self) -> RunLocks:
        """Leases on runs of workflows: ``space.run_locks.try_acquire("checkout", "run-1", lease="30s")``."""
        return RunLocks(Counterpart(self._link, lambda space: space.run_locks))

    def explain(self, key: Key | str, *, limit: int = 100) -> Explanation:
        """Say who holds ``key`` and who waits for it, whatever kind of lock it is. Nothing is changed by looking.

        Args:
            key: The key of a lock.
            limit: How many waiters to list; the others are counted.
        """
        return self._space.call(lambda space: space.explain(key, limit=limit))

    def history(self, key: Key | str) -> tuple[PastHold, ...]:
        """Return who held ``key`` before, newest first, for how long, and how each hold ended."""
        return self._space.call(lambda space: space.history(key))

    def lines(self) -> Iterator[LineSummary]:
        """Return all keys that are held or waited for, in the order of the keys: ``for line in space.lines()``.

        They are read in pages: what comes or goes meanwhile may or may not be among them.
        """
        background, space = self._space.now()
        found = space.lines()

        async def one_more() -> LineSummary | None:
            return await anext(found, None)

        while (line := call(background, one_more)) is not None:
            yield line

    # --- operators -----------------------------------------------------------------------------------------------

    @property
    def actor(self) -> Actor | None:
        """The operator who acts through this space; None: it is used by a program for its own ends."""
        return self._space.now()[1].actor

    def audit(
        self,
        *,
        action: str | None = None,
        subject: str | None = None,
        actor: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> AuditPage:
        """Return a page of what operators did in this namespace and tenant, newest first; see :meth:`Space.audit`."""
        return self._space.call(
            lambda space: space.audit(action=action, subject=subject, actor=actor, limit=limit, after=after)
        )

    def keep_audit(self, length: Duration) -> None:
        """Keep what operators do from now on for this long, by any process; a year, if nothing was said."""
        self._space.call(lambda space: space.keep_audit(length))

    # --- records -------------------------------------------------------------------------------------------------

    @property
    def namespace(self) -> str:
        """Bounds every commit and scan; on distributed stores, what one shard holds."""
        return self._space.now()[1].namespace

    @property
    def tenant(self) -> str:
        """Whose records these are."""
        return self._space.now()[1].tenant

    @property
    def lease(self) -> float:
        """How many seconds others wait for this process, if it is not heard of any more, before they take over."""
        return self._space.now()[1].lease

    @property
    def presence(self) -> RecordKey:
        """The address of this opening of the space, unlike any other: where wakes for it are sent."""
        return self._space.now()[1].presence

    @property
    def presence_name(self) -> str:
        """The last part of it."""
        return self._space.now()[1].presence_name

    def key(self, kind: str, *parts: str) -> RecordKey:
        """Return the record key of ``parts`` among the records of one ``kind``, in this space."""
        return self._space.now()[1].key(kind, *parts)

    def key_for(self, kind: str, key: Key | str) -> RecordKey:
        """Return the record key for a user's key: a :class:`~standfast.keys.Key`, or text in a family of its own."""
        return self._space.now()[1].key_for(kind, key)

    def read(self, *keys: RecordKey) -> Snapshot:
        """Read records of this space in one snapshot."""
        return self._space.call(lambda space: space.read(*keys))

    def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool = False) -> Snapshot:
        """Read a page of a range of this space, see :meth:`~standfast.stores.Store.scan`."""
        return self._space.call(lambda space: space.scan(start, end, limit=limit, reverse=reverse))

    def commit(
        self,
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
    ) -> Commit | Conflict:
        """Do all of ``changes`` or none in this space, see :meth:`~standfast.stores.Store.commit`."""
        return self._space.call(lambda space: space.commit(*changes, after=after, before=before, wake=wake))

    def update(self, keys: Sequence[RecordKey], decide: Callable[[Snapshot], Decision[T]]) -> Decided[T]:
        """Decide and commit on records of this space, see :meth:`~standfast.stores.Store.update`.

        ``decide`` runs on Standfast's own thread: it computes, and calls nothing that blocks.
        """
        return self._space.call(lambda space: space.update(keys, decide))

    def choose(self, *alternatives: Alternative) -> Choice | Conflict:
        """Do the first of ``alternatives`` that holds in this space, see :meth:`~standfast.stores.Store.choose`."""
        return self._space.call(lambda space: space.choose(*alternatives))

    def commit_with(
        self,
        work: Callable[[Any], T],
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
        timeout: Duration = 5.0,
        extra_changes: Callable[[T], Sequence[Change]] | None = None,
    ) -> Worked[T] | Conflict:
        """Do ``changes`` in this space and your own SQL in one transaction: both happen, or neither.

        See :meth:`standfast.stores.GroupedStore.commit_with`. ``work`` runs on a thread of Standfast's own.
        """
        return self._space.call(
            lambda space: space.commit_with(
                work, *changes, after=after, before=before, wake=wake, timeout=timeout, extra_changes=extra_changes
            )
        )

    def rates(self, *, limit: int = 1_000) -> RatePage:
        """Return the rate limiters that are in use, with their tokens and how many wait; not those at rest."""
        return self._space.call(lambda space: space.rates(limit=limit))

    def watch(self, *prefixes: RecordKey) -> Watch:
        """Subscribe to hints of this space, see :meth:`~standfast.stores.Store.watch`."""
        background, space = self._space.now()

        async def make() -> Watch:
            return Watch(background, space.watch(*prefixes))

        return call(background, make)

    # --- the rest ------------------------------------------------------------------------------------------------

    def run(self, work: Callable[[AsyncSpace], Coroutine[Any, Any, T]]) -> T:
        """Run async code with the async space, on Standfast's own event loop, and return what it returns.

        For what has no blocking name: ``space.run(lambda space: space.store.settle(attempt))``. The code shares the
        loop with everything else here, so it must not block.
        """
        return self._space.call(work)

    def close(self) -> None:
        """Give up everything that is held, then close the store. Closing twice is fine."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open(  # noqa: A001, PLR0913 -- used as blocking.open; keyword options
    url: str,
    *,
    namespace: str = "default",
    tenant: str = "default",
    lease: Duration = DEFAULT_LEASE,
    heartbeat: Duration | None = None,
    hooks: Iterable[Hook] = (),
    encryption: Keyring | None = None,
    credentials: Credentials | None = None,
    actor: Actor | None = None,
) -> Space:
    """Open a store and look at one namespace and tenant of it, from code without an event loop.

    >>> with sf.blocking.open("memory://", namespace="prod") as space:
    ...     with space.mutex("account-42").hold(timeout="10s"):
    ...         print("mine")
    mine

    All spaces of a process share one event loop in a thread of its own, which is started here if it does not run yet.

    Args:
        url: Which store: ``sqlite:///standfast.db``, ``memory://``. See :func:`standfast.stores.url.open_store`.
        namespace: Keeps deployments on one store apart; commits and scans stay inside one.
        tenant: Keeps the users of one deployment apart.
        lease: How long others wait for this process, if it is not heard of any more, before they take over what it
            held. It is renewed by itself.
        heartbeat: How often it is renewed; by default three times in a lease, at most every half lease.
        hooks: Called on Standfast's own thread with what happens in the store and to locks.
        encryption: Keys with which every value is sealed before it leaves the process.
        credentials: The password and TLS context of a server, where they are not to stand in the URL.
        actor: The operator who acts through the space: what is done to others is recorded.

    Raises:
        UsageError: An event loop runs in this thread: use :func:`standfast.open`.
        UsageError: gevent or eventlet has replaced threads, and nothing could run beside this code.
    """
    told = tuple(hooks)
    refuse_green_threads()
    return Space(
        Link(
            f"{namespace}/{tenant} on {mask_url(url)}",
            lambda: open_async(
                url,
                namespace=namespace,
                tenant=tenant,
                lease=lease,
                heartbeat=heartbeat,
                hooks=told,
                encryption=encryption,
                credentials=credentials,
                actor=actor,
            ),
        )
    )


def _kept(modes: Iterable[str]) -> Iterable[str]:
    """Return modes that can be read more than once; a mistake is left for the lock to find."""
    return modes if isinstance(modes, str) else tuple(modes)


def link_of(space: Space) -> Link:
    """Return the link that a space goes by, for what is built on it."""
    return space._link  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- of this module


@final
class Watch:
    """A subscription to hints. Use it as a context manager; outside of it, it hears nothing."""

    __slots__ = ("_background", "_watch")

    def __init__(self, background: Background, watch: AsyncWatch) -> None:
        self._background: Final = background
        self._watch: Final = watch

    def wait(self, timeout: Duration | None = None) -> Notification | None:
        """Return the hints since the last call, waiting for one if there is none; None after ``timeout``.

        Raises:
            StoreClosedError: This is a forked child: the parent listens. Watch anew.
        """
        self._background.guard.check()
        return call(self._background, lambda: self._watch.wait(timeout))

    def __enter__(self) -> Self:
        self._background.guard.check()
        entering = BackgroundCall(self._background, self._watch.__aenter__, lambda watch: watch.__aexit__())
        try:
            entering.result()
        except BaseException:
            entering.abandon()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._background.guard.crossed:
            call(self._background, self._watch.__aexit__, shielded=True)
