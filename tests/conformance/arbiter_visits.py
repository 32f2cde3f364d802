"""Requests for the tests of arbiters: each in a task of its own, with a turn that ends when the test says so."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from msgspec import structs

from standfast.errors import (
    RequestRejectedError,
    RequestSupersededError,
)
from standfast.flows.arbiter.in_memory import SERVER_SPEC
from standfast.flows.arbiter.protocol import Ask, QueueRules, queue_rules_of
from standfast.locks.entry import ExtraChanges
from standfast.locks.inspect import holders_in
from standfast.policies import Join, Latest, Queue, Reject, Restart
from standfast.space import lines_of
from standfast.stores.protocol import Put

if TYPE_CHECKING:
    from standfast.flows.arbiter.protocol import Arbiter, RequestTurn
    from standfast.keys import RecordKey
    from standfast.space import Space
    from standfast.stores.protocol import Change, Snapshot

    Pair: TypeAlias = tuple[Arbiter, Arbiter]

SOON: Final = 15.0
"""How long anything may take at most that ought to happen at once, in seconds."""

QUEUE, REJECT, JOIN, LATEST = (queue_rules_of(policy()) for policy in (Queue, Reject, Join, Latest))
RESTART: Final = queue_rules_of(Restart(grace="60s"))
HASTY: Final = queue_rules_of(Restart(grace="20ms"))


def ask(name: str, rules: QueueRules = QUEUE, *, key: str = "s-1", action: str = "chat.respond", **more: Any) -> Ask:
    """Return a request of the tenant that all tests have."""
    address = ("request", "acme", "session", key)
    return Ask(id=name, address=address, action=action, rules=rules, **more)


def putting(key: RecordKey, value: bytes) -> ExtraChanges[int]:
    """Return what puts a record, whatever is there."""

    def decide(position: int, seen: Snapshot) -> tuple[Change, ...]:
        return (Put(key, value or str(position).encode(), seen.version(key)),)

    return ExtraChanges((key,), decide)


def failing(key: RecordKey) -> ExtraChanges[int]:
    """Return what cannot be committed."""

    def decide(position: int, _: Snapshot) -> tuple[Change, ...]:
        raise KeyError(position)

    return ExtraChanges((key,), decide)


@final
class Visit:
    """A request in a task of its own, which has its turn until :meth:`end`."""

    def __init__(
        self, arbiter: Arbiter, asked: Ask, *, stubborn: bool = False, last: ExtraChanges[int] | None = None
    ) -> None:
        self._arbiter, self._stubborn, self._last = arbiter, stubborn, last
        self.inside, self.waiting = asyncio.Event(), asyncio.Event()
        self.stopped, self._over = asyncio.Event(), asyncio.Event()
        self._asked: Final = structs.replace(asked, on_waiting=self._waits, on_stop=lambda _: self.stopped.set())
        self.turn: RequestTurn | None = None
        self.position = 0
        self.task: Final = asyncio.get_running_loop().create_task(self._run())

    def _waits(self, position: int) -> None:
        self.position = position
        self.waiting.set()

    async def _run(self) -> str:
        async with self._arbiter.hold(self._asked) as self.turn:
            self.inside.set()
            while not self._over.is_set():
                with contextlib.suppress(*([asyncio.CancelledError] if self._stubborn else [])):
                    await self._over.wait()
            if self._last is not None:
                await self.turn.finish(self._last)
        return self._asked.id

    async def runs(self) -> Visit:
        """Wait until it has its turn."""
        await self._until(self.inside)
        return self

    async def waits(self) -> Visit:
        """Wait until it stands in line."""
        await self._until(self.waiting)
        return self

    async def asked(self) -> None:
        """Wait until it was asked to stop, or has ended because of that."""
        with contextlib.suppress(RequestSupersededError):
            await self._until(self.stopped)

    async def gets_in(self) -> bool:
        """Tell whether it has its turn, or was refused."""
        try:
            await self.runs()
        except RequestRejectedError:
            return False
        return True

    async def _until(self, event: asyncio.Event) -> None:
        reached = asyncio.ensure_future(event.wait())
        async with asyncio.timeout(SOON):
            await asyncio.wait({reached, self.task}, return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        if not event.is_set():
            await self.task

    async def end(self) -> str:
        """Let it end, and return its id or raise what it ended with."""
        self._over.set()
        return await self.ended()

    async def ended(self) -> str:
        """Wait until it has ended by itself."""
        async with asyncio.timeout(SOON):
            return await self.task


async def leaves(arbiter: Arbiter, name: str) -> None:
    """Wait until a request is not in the line any more."""
    async with asyncio.timeout(SOON):
        while True:
            if (await arbiter.look(ask("").address)).position(name) is None:
                return
            await asyncio.sleep(0.001)


def fresh_name() -> str:
    """Return a namespace that no other test has."""
    return f"n{uuid.uuid4().hex[:12]}"


async def force_out(space: Space, app: str = "app") -> None:
    """Take the lock of the sole server away, as an operator does."""
    address = ("server", app)
    [holder] = await holders_in(space, address)
    assert await lines_of(space).evict(address, SERVER_SPEC, holder.entry.id)
