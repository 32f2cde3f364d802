"""What the tests of durable locks stand on: spaces on one store, the kinds of locks, and what can be seen of a line."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest
from msgspec import Struct

from standfast.clock import SYSTEM_CLOCK, monotonic
from standfast.events import Hooks
from standfast.keys import RecordKey
from standfast.locks import inspect
from standfast.locks import registry as lines
from standfast.locks.line_records import HEADS, LineKeys
from standfast.scope import address_of
from standfast.space import Space
from standfast.testing.conformance.ground import SharedStoreGround, shortest_lease

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Iterable

    from standfast.events import Event
    from standfast.locks.line import Holder, Waiter
    from standfast.locks.line_records import Head
    from standfast.locks.locks import Hold, Holding
    from standfast.stores import Store
    from standfast.testing.simulation import VirtualClock

SOON: Final = 15.0
"""How long anything may take at most that ought to happen at once, in seconds."""

SHORT: Final = 0.3
"""A lease that tests wait for, in seconds of real time: losing it is what they are about."""

KEY: Final = "account-42"

POLLS: Final = {"POLL_EVERY": lines.POLL_EVERY, "FIRST_POLL": lines.FIRST_POLL}
"""How often a process looks at a line by itself, where hints arrive."""


class OpenSpace(Protocol):
    """Opens a space of its own on the data of the test, as another process would."""

    async def __call__(
        self, *, through: Callable[[Store], Store] | None = None, told: list[Event] | None = None, **options: Any
    ) -> Space:
        """Open it: ``through`` wraps its store, ``told`` is filled with its events."""
        ...


class Kind(Struct, frozen=True):
    """A kind of lock, and two ways to hold it: a part of it, which several can have, or the whole of it.

    Attributes:
        name: As tests are named.
        width: How many parts can be held together; more than a test ever asks for if there is no limit.
        make: Makes the lock.
        part: What ``hold`` takes to hold a part.
        whole: What it takes to hold all of it.
    """

    name: str
    width: int
    make: Callable[[Space, str], Any]
    part: tuple[Any, ...] = ()
    whole: tuple[Any, ...] = ()

    def one(self, space: Space, key: str = KEY, **options: Any) -> Holding:
        """Hold a part."""
        holding: Holding = self.make(space, key).hold(*self.part, **options)
        return holding

    def alone(self, space: Space, key: str = KEY, **options: Any) -> Holding:
        """Hold the whole."""
        holding: Holding = self.make(space, key).hold(*self.whole, **options)
        return holding

    def try_one(self, space: Space, key: str = KEY, **options: Any) -> Holding:
        """Hold a part if it is available at once."""
        holding: Holding = self.make(space, key).try_hold(*self.part, **options)
        return holding


UNLIMITED: Final = 12


def read_write(space: Space, key: str = KEY) -> Any:
    """Return a mode lock that many read and one writes."""
    return space.mode_lock(key, modes=("read",), alone=("write",))


KINDS: Final = (
    Kind("mutex", 1, lambda space, key: space.mutex(key)),
    Kind("semaphore-of-1", 1, lambda space, key: space.semaphore(key, permits=1)),
    Kind("semaphore-of-3", 3, lambda space, key: space.semaphore(key, permits=3), (1,), (3,)),
    Kind("mode-lock-shared", UNLIMITED, read_write, ("read",), ("write",)),
    Kind("mode-lock-alone", 1, read_write, ("write",), ("write",)),
)
"""Every kind of lock, in every way that holders can share it."""


class LockGround(SharedStoreGround):
    """The fixtures of the suite. A subclass provides ``open_another``, and ``clock`` if it can."""

    @pytest.fixture(params=KINDS, ids=lambda kind: str(kind.name))
    def kind(self, request: pytest.FixtureRequest) -> Kind:
        """Each kind of lock."""
        found: Kind = request.param
        return found

    @pytest.fixture
    async def open_space(
        self,
        open_another: Callable[[], Awaitable[Store]],
        clock: VirtualClock | None,
        patience: float,
        monkeypatch: pytest.MonkeyPatch,
    ) -> AsyncGenerator[OpenSpace]:
        """Open spaces on one store, in a namespace that no other test uses, and close them in the end."""
        namespace = f"locks-{uuid.uuid4().hex}"
        async with contextlib.AsyncExitStack() as opened:

            async def open_it(
                *, through: Callable[[Store], Store] | None = None, told: list[Event] | None = None, **options: Any
            ) -> Space:
                store = await open_another()
                opened.push_async_callback(store.aclose)
                if store.capabilities.wakes == "poll":
                    look_often(monkeypatch)
                if "lease" in options:
                    options["lease"] = shortest_lease(store, options["lease"], patience)
                hooks = Hooks([] if told is None else [told.append])
                names: dict[str, Any] = {"namespace": namespace, "clock": clock or SYSTEM_CLOCK, "hooks": hooks}
                space = Space(store if through is None else through(store), **(names | options))
                opened.push_async_callback(space.aclose)
                return space

            yield open_it

    @pytest.fixture
    async def space(self, open_space: OpenSpace) -> Space:
        """One process."""
        return await open_space()

    @pytest.fixture
    async def other(self, open_space: OpenSpace) -> Space:
        """Another process on the same data."""
        return await open_space()


def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes look at their lines more often than usual, unless the test has said how often already."""
    for name, usual in POLLS.items():
        if getattr(lines, name) == usual:
            monkeypatch.setattr(lines, name, 0.02)


# --- what can be seen of a line -------------------------------------------------------------------------------------


async def head_of(space: Space, key: str = KEY) -> Head | None:
    """Return the head of a line; None: it has neither holders nor waiters."""
    keys = LineKeys(space, address_of(key))
    record = (await space.read(keys.head)).get(keys.head)
    return None if record is None else HEADS.decode(record.value)


async def waiters_of(space: Space, key: str = KEY) -> list[Waiter]:
    """Return who waits in a line, in order."""
    return [each async for each in inspect.waiters_of(space, LineKeys(space, address_of(key)), None)]


async def holders_of(space: Space, key: str = KEY) -> tuple[Holder, ...]:
    """Return who holds."""
    return await inspect.holders_in(space, address_of(key))


async def leftovers(space: Space) -> list[str]:
    """Return every record of the space, but for presences, which expire."""
    root = RecordKey(space.namespace, space.tenant)
    page = await space.scan(*root.within(), limit=1_000)
    return [str(key) for key in page.records if key.parts[2] not in ("presence", "past")]


async def look_after(space: Space, key: str = KEY) -> None:
    """Let a space look at a line now, as it does by itself while the line has a waiter."""
    lines = space._lines  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- it has no reason to look on request
    await lines.reap(lines.line(address_of(key)))


async def eventually(holds: Callable[[], Awaitable[bool]], within: float = SOON) -> None:
    """Return when ``holds`` does, for what is done in the background and not reported."""
    deadline = monotonic() + within
    while not await holds():
        if monotonic() > deadline:
            pytest.fail("it did not come about in time")
        await asyncio.sleep(0.001)


async def at_rest(space: Space) -> None:
    """Return when nothing is left in the space but presences and what is told of past holds."""

    async def is_empty() -> bool:
        return await leftovers(space) == []

    await eventually(is_empty)


async def queued(space: Space, count: int, key: str = KEY) -> None:
    """Return when ``count`` wait."""

    async def are_there() -> bool:
        return len(await waiters_of(space, key)) == count

    await eventually(are_there)


async def queued_or_done(space: Space, task: asyncio.Task[Any]) -> None:
    """Return when a waiter stands in line, or the task has ended before it came to that."""

    async def is_so() -> bool:
        return task.done() or bool(await waiters_of(space))

    await eventually(is_so)


# --- holding --------------------------------------------------------------------------------------------------------


class LockClient:
    """A task that holds a lock until it is told to leave.

    client = await entered(kind.one(space))
    await client.leave()
    """

    def __init__(self, holding: Holding) -> None:
        self._may_leave: Final = asyncio.Event()
        self._inside: Final[asyncio.Future[Hold]] = asyncio.get_running_loop().create_future()
        self.task: Final = asyncio.create_task(self._run(holding))

    async def _run(self, holding: Holding) -> int:
        async with holding as hold:
            self._inside.set_result(hold)
            await self._may_leave.wait()
        return hold.fence

    @property
    def is_inside(self) -> bool:
        """Whether it got in."""
        return self._inside.done()

    async def hold(self) -> Hold:
        """Wait until it is inside, and return what it holds; raise what kept it out."""
        waited_for: set[asyncio.Future[Any]] = {self.task, self._inside}
        async with asyncio.timeout(SOON):
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
        if not self._inside.done():
            await self.task
        return self._inside.result()

    async def leave(self) -> int:
        """Let it leave, and return its fence; raise what the hold raised."""
        self._may_leave.set()
        async with asyncio.timeout(SOON):
            return await self.task

    async def end(self) -> None:
        """End it, whatever becomes of it."""
        self.task.cancel()
        await asyncio.wait({self.task}, timeout=SOON)
        if self.task.done() and not self.task.cancelled():
            self.task.exception()


async def entered(holding: Holding) -> LockClient:
    """Hold in a task of its own."""
    client = LockClient(holding)
    await client.hold()
    return client


async def waiting(space: Space, holding: Holding, key: str = KEY) -> LockClient:
    """Wait in a task of its own; return when it stands in line."""
    before = len(await waiters_of(space, key))
    client = LockClient(holding)
    await queued(space, before + 1, key)
    return client


async def passes(holding: Holding, within: float = SOON) -> int:
    """Enter and leave, and return the fence."""
    async with asyncio.timeout(within), holding as hold:
        return hold.fence


async def a_while(space: Space, moment: float) -> float:
    """Return ``moment``, in seconds; more where a space is so slow that it could not get into a line in it."""
    started = monotonic()
    await passes(space.mutex("how quick").hold())
    return max(moment, 10 * (monotonic() - started))


async def all_of(clients: Iterable[LockClient]) -> None:
    """Let all of them leave, in order."""
    for client in clients:
        await client.hold()
        await client.leave()
