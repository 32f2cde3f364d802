"""A space: everything that Standfast does with keys, in one namespace and tenant of a store."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

from standfast.audit import Audit
from standfast.clock import SYSTEM_CLOCK
from standfast.durations import DAY, seconds
from standfast.events import NO_HOOKS
from standfast.locks.inspect import LISTED, explain, lines
from standfast.locks.line_history import read_history
from standfast.locks.locks import DEFAULT_LEASE, ModeLock, Mutex, Semaphore, check_heartbeat, check_lease
from standfast.locks.rate_limiter import RateLimiter
from standfast.locks.registry import Lines
from standfast.locks.run_locks import RunLocks
from standfast.locks.state import Slots
from standfast.locks.survey import read_rates
from standfast.log_hook import with_log
from standfast.redaction import mask_url
from standfast.scope import Scope, address_of, checked_name
from standfast.stores.url import encrypted, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterable

    from standfast.audit import Actor, AuditPage
    from standfast.clock import Clock
    from standfast.durations import Duration
    from standfast.events import Hook, Hooks
    from standfast.keys import Key
    from standfast.locks.inspect import Explanation, LineSummary
    from standfast.locks.line_history import PastHold
    from standfast.locks.survey import RatePage
    from standfast.stores.address import Credentials
    from standfast.stores.encryption import Keyring
    from standfast.stores.protocol import Store


@final
class Space(Scope):
    """A store as seen by one namespace and tenant, with the locks in it. Get one from :func:`standfast.open`.

    Args:
        store: Where everything is kept.
        namespace: Bounds every commit and scan.
        tenant: Whose records these are.
        lease: How long others wait for this process, if it is not heard of any more, before they take over.
        heartbeat: How often it makes itself heard; by default three times in a lease.
        hooks: Told what happens to locks.
        clock: This process's own clock; for tests.
        actor: The operator who acts through it; then what it does to others is recorded, see :meth:`audit`.
    """

    def __init__(
        self,
        store: Store,
        *,
        namespace: str = "default",
        tenant: str = "default",
        lease: Duration = DEFAULT_LEASE,
        heartbeat: Duration | None = None,
        hooks: Hooks = NO_HOOKS,
        clock: Clock = SYSTEM_CLOCK,
        actor: Actor | None = None,
    ) -> None:
        super().__init__(store, namespace=namespace, tenant=tenant)
        self.hooks = hooks
        self._audit = Audit(self, actor)
        self.lease: Final = check_lease(lease, store.capabilities)
        self._lines: Final = Lines(self, clock, hooks, check_heartbeat(heartbeat, self.lease))

    def mutex(self, key: Key | str) -> Mutex:
        """Return the mutex of ``key``: one holder at a time, in all processes on the store."""
        return Mutex(self._lines, key, self.lease, self._audit)

    def semaphore(self, key: Key | str, *, permits: int) -> Semaphore:
        """Return the semaphore of ``key``: at most ``permits`` in use at a time."""
        return Semaphore(self._lines, key, permits, self.lease, self._audit)

    def mode_lock(self, key: Key | str, *, modes: Iterable[str] = (), alone: Iterable[str] = ()) -> ModeLock:
        """Return the mode lock of ``key``: holders of one mode share it, unless it is one of ``alone``.

        A key whose family declares modes brings them along.
        """
        return ModeLock(self._lines, key, modes, alone, self.lease, self._audit)

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
            self,
            key,
            capacity=capacity,
            interval=interval,
            waiter_ttl=waiter_ttl,
            follow=follow,
            audit=self._audit,
        )

    @property
    def state(self) -> Slots:
        """The states that are kept in this space: ``space.state.shared("visits", type=int, initial=0)``."""
        return Slots(self)

    @property
    def run_locks(self) -> RunLocks:
        """Leases on runs of workflows: ``await space.run_locks.try_acquire("checkout", "run-1", lease="30s")``."""
        return RunLocks(self._lines, self.lease)

    async def explain(self, key: Key | str, *, limit: int = LISTED) -> Explanation:
        """Say who holds ``key`` and who waits for it, whatever kind of lock it is. Nothing is changed by looking.

        Args:
            key: The key of a lock.
            limit: How many waiters to list; the others are counted.
        """
        return await explain(self, address_of(key), limit=limit)

    async def history(self, key: Key | str) -> tuple[PastHold, ...]:
        """Return who held ``key`` before, newest first, for how long, and how each hold ended.

        Holds that ended by death, eviction or expiry are kept for every key, the latest 20 of 30 days. Those that were
        released are kept for keys whose family asks for it: ``sf.KeyFamily("account", history=20)``.
        """
        return await read_history(self, address_of(key))

    def lines(self) -> AsyncIterator[LineSummary]:
        """Return all keys that are held or waited for, in the order of the keys: ``async for line in space.lines()``.

        They are read in pages: what comes or goes meanwhile may or may not be among them.
        """
        return lines(self)

    # --- operators -----------------------------------------------------------------------------------------------

    @property
    def actor(self) -> Actor | None:
        """The operator who acts through this space; None: it is used by a program for its own ends."""
        return self._audit.actor

    def acting_as(self, actor: Actor) -> Space:
        """Return this space in the hands of an operator: what is done to others through it is recorded.

            space.acting_as(sf.admin.Actor("ann")).mutex("account-42").force_release(entry)

        It is the same space, for a program that acts for many operators: closing one closes both.
        """
        taken = copy(self)
        taken._audit = Audit(self, actor)  # noqa: SLF001 -- of this class
        return taken

    async def audit(
        self,
        *,
        action: str | None = None,
        subject: str | None = None,
        actor: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> AuditPage:
        """Return a page of what operators did in this namespace and tenant, newest first.

        It costs what is shown, however much is stored.

        Args:
            action: Only this, one of :data:`standfast.audit.ACTIONS`: ``run.cancel``.
            subject: Only to this: the id of a run or a schedule, a key as shown to people, the name of a workflow.
            actor: Only by the actor of this name.
            limit: How many, from 1 to 1,000.
            after: Where the page before ended: its ``next``.
        """
        return await self._audit.page(action=action, subject=subject, actor=actor, limit=limit, after=after)

    async def keep_audit(self, length: Duration) -> None:
        """Keep records of what operators do for ``length`` from now on, in all processes; a year by default."""
        await self._audit.keep(length)

    async def rates(self, *, limit: int = 1_000) -> RatePage:
        """Return the rate limiters that are in use, with their tokens and how many wait; one at rest is not among them.

        Args:
            limit: How many at most.
        """
        return await read_rates(self, limit=limit)

    async def aclose(self) -> None:
        """Give up everything that is held, then close the store."""
        await self._lines.aclose()
        await super().aclose()


def lines_of(space: Space) -> Lines:
    """Return this process's part of the lines of a space, for what is built on them."""
    return space._lines  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- of this module


@final
class Opening:
    """A space that is about to be opened: ``async with`` it, or ``await`` it and call ``aclose`` yourself."""

    __slots__ = (
        "_credentials",
        "_encryption",
        "_heartbeat",
        "_hooks",
        "_lease",
        "_names",
        "_space",
        "_url",
        "actor",
    )

    def __init__(  # noqa: PLR0913 -- what open was given
        self,
        url: str,
        namespace: str,
        tenant: str,
        hooks: Iterable[Hook],
        lease: Duration,
        heartbeat: Duration | None,
        encryption: Keyring | None,
        credentials: Credentials | None,
        *,
        actor: Actor | None,
    ) -> None:
        self._url, self._hooks, self._encryption, self._credentials = url, tuple(hooks), encryption, credentials
        self.actor: Final = actor
        self._names = (checked_name("namespace", namespace), checked_name("tenant", tenant))
        self._lease: Final = seconds(lease, what="lease", maximum_bare=DAY)
        self._heartbeat: Final = check_heartbeat(heartbeat, self._lease)
        self._space: Space | None = None

    @property
    def address(self) -> str:
        """Which store, without secrets."""
        return mask_url(self._url)

    if not TYPE_CHECKING:  # a type checker knows that there is no such attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Say what was forgotten, to code that uses it as the space."""
            how = "write `async with sf.open(...) as space`, or `space = await sf.open(...)`"
            raise AttributeError(f"the store is not open yet, so it has no {name!r:.60}: {how}", name=name, obj=self)

    def __await__(self) -> Generator[Any, Any, Space]:
        return self._open().__await__()

    async def __aenter__(self) -> Space:
        self._space = await self._open()
        return self._space

    async def __aexit__(self, *exc: object) -> None:
        if self._space is not None:
            await self._space.aclose()

    async def _open(self) -> Space:
        return await self.open_with(())

    async def open_with(self, hooks: Iterable[Hook]) -> Space:
        """Open it, and tell some more hooks what happens in it."""
        namespace, tenant = self._names
        told = (*self._hooks, *hooks)
        store: Store = await open_store(self._url, hooks=told, credentials=self._credentials)
        try:
            return Space(
                store if self._encryption is None else encrypted(store, self._encryption),
                namespace=namespace,
                tenant=tenant,
                lease=self._lease,
                heartbeat=self._heartbeat,
                hooks=with_log(told),
                actor=self.actor,
            )
        except BaseException:
            await store.aclose()
            raise


def open(  # noqa: A001, PLR0913 -- used as sf.open; keyword options
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
) -> Opening:
    """Open a store and look at one namespace and tenant of it.

    >>> async with sf.open("sqlite:///standfast.db", namespace="prod") as space:
    ...     print(space.namespace, space.tenant)
    prod default

    ``await sf.open(...)`` works too; then call ``await space.aclose()`` when done.

    Args:
        url: Which store: ``sqlite:///standfast.db``, ``memory://``, ``postgresql://user@host/database``. See
            :func:`standfast.stores.url.open_store`.
        namespace: Keeps deployments on one store apart; commits and scans stay inside one.
        tenant: Keeps the users of one deployment apart.
        lease: How long others wait for this process, if it is not heard of any more, before they take over what it
            held. It is renewed by itself.
        heartbeat: How often it is renewed; by default three times in a lease, at most every half lease.
        hooks: Called with what happens in the store and to locks, for logs and metrics; see
            :class:`~standfast.log_hook.LogHook`.
        encryption: Keys with which every value is sealed before it leaves the process, bound to its namespace, tenant
            and place. Keys of records, times and sizes are not hidden.
        credentials: The password and TLS context of a server, where they are not to stand in the URL.
        actor: The operator who acts through the space, ``sf.admin.Actor("ann")``: what is done to others is recorded.
            A program that uses locks for its own ends names none.
    """
    return Opening(url, namespace, tenant, hooks, lease, heartbeat, encryption, credentials, actor=actor)
