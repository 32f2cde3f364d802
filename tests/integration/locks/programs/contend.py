"""Takes part in one line, as it is told: ``contend URL LEDGER NAME LEASE``.

``pass``: hold the mutex and let go at once. ``stay``: hold it until told anything. ``work``: write without a pause
until told anything. ``freeze``: block the event loop until told anything, then write late. ``fork``: let a child try
what it can, then stay. ``bear``: leave a child behind that lives as long as the test, then stay. ``try``: hold it if
that can be had at once.

It says ``held FENCE AT`` when it holds the mutex and has written under it, and how that ended: ``left AT``, ``lost``,
or the error's name. What it writes goes to the ledger, with its fence, and to the store, with its guard.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
from typing import TYPE_CHECKING, Final, final

import standfast as sf
from standfast.clock import monotonic
from standfast.errors import LeaseLostError, StandfastError, StoreClosedError
from standfast.stores import Commit, Decision, Put
from tests.integration.locks.ledger import Ledger
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, say

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.locks import Hold, Holding
    from standfast.stores import Conflict, Snapshot

MUTEX: Final = "the-ledger"
"""The key that everybody wants."""

RESOURCE: Final = "resource"
"""The kind of the record that is written under the guard: it has the fence of whoever wrote it last."""


async def commands() -> asyncio.StreamReader:
    """Listen to the test without blocking the loop."""
    reader, loop = asyncio.StreamReader(), asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb", 0))
    return reader


@final
class Contender:
    """What can be asked for."""

    def __init__(self, space: sf.Space, ledger: Ledger, name: str, told: asyncio.StreamReader) -> None:
        self._space, self._ledger, self._name, self._told = space, ledger, name, told

    async def obey(self, word: str) -> None:
        """Hold the mutex in one of the ways, and say how that went."""
        mutex = self._space.mutex(MUTEX)
        holding = mutex.try_hold(note=self._name) if word == "try" else mutex.hold(note=self._name)
        bodies: dict[str, Callable[[Hold], Awaitable[None]]] = {
            "stay": self._stay,
            "work": self._work,
            "freeze": self._freeze,
            "fork": self._fork,
            "bear": self._bear,
        }
        try:
            await self._hold(holding, bodies.get(word))
        except LeaseLostError as problem:
            print(self._name, problem, file=sys.stderr, flush=True)
            say("lost")
        except StandfastError as problem:
            say(type(problem).__name__)
        else:
            say("left", monotonic())

    async def _hold(self, holding: Holding, body: Callable[[Hold], Awaitable[None]] | None) -> None:
        async with holding as hold:
            held_at = monotonic()
            if not (self._ledger.write(self._name, "in", hold.fence) and isinstance(await self._write(hold), Commit)):
                say("refused")  # the store's clock was set: it was taken over before it could know
                return
            say("held", hold.fence, held_at)
            if body is not None:
                await body(hold)
            hold.check()
            if not self._ledger.write(self._name, "out", hold.fence):
                say("refused")  # as above

    async def _write(self, hold: Hold) -> Commit | Conflict:
        """Write this hold's fence to the record in the store, guarded."""
        key = self._space.key(RESOURCE)
        version = (await self._space.read(key)).version(key)
        return await self._space.commit(Put(key, str(hold.fence).encode(), version), hold.guard)

    async def _stay(self, _: Hold) -> None:
        await self._told.readline()

    async def _work(self, hold: Hold) -> None:
        done = asyncio.create_task(self._told.readline())
        while not done.done():
            assert self._ledger.write(self._name, "work", hold.fence)
            assert isinstance(await self._write(hold), Commit)

    async def _freeze(self, hold: Hold) -> None:
        """Block the loop, as careless code does; then write without a look at the clock, as careless code does."""
        say("frozen")
        select.select([0], [], [])
        say("ledger", "accepted" if self._ledger.write(self._name, "late", hold.fence) else "refused")
        late = asyncio.create_task(self._write(hold))  # it goes on when the body is cancelled
        try:
            await asyncio.shield(late)
        finally:
            say("store", type(await late).__name__)

    async def _fork(self, hold: Hold) -> None:
        pid = os.fork()
        if not pid:
            try:
                asyncio.run(self._in_child(hold))
                os.closerange(3, 256)  # as the end of a program does
            finally:
                os._exit(0)
        say("status", os.waitpid(pid, 0)[1])  # noqa: ASYNC222 -- the loop has nothing else to do
        hold.check()
        await self._told.readline()

    async def _bear(self, hold: Hold) -> None:
        if not os.fork():
            select.select([0], [], [])  # readable at the latest when the test has ended
            os._exit(0)
        say("born")
        await self._stay(hold)

    async def _in_child(self, hold: Hold) -> None:
        """Try what was inherited, and what one's own opening of the store can do."""
        attempts: dict[str, Callable[[], Awaitable[object]]] = {
            "check": lambda: asyncio.to_thread(hold.check),
            "guard": lambda: self._write(hold),
            "hold": lambda: self._space.mutex(MUTEX).hold().__aenter__(),
            "own": self._try_on_ones_own,
            "close": self._space.aclose,
        }
        for name, attempt in attempts.items():
            try:
                await attempt()
            except StandfastError as problem:
                is_forked = isinstance(problem, StoreClosedError) and "fork" in str(problem)
                say(name, "forked" if is_forked else type(problem).__name__)
            else:
                say(name, "worked")

    async def _try_on_ones_own(self) -> None:
        async with sf.open(ARGUMENTS[0]) as space, space.mutex(MUTEX).try_hold():
            pass


async def prepare(space: sf.Space) -> None:
    """Make the record that everybody writes to."""
    key = space.key(RESOURCE)

    def decide(seen: Snapshot) -> Decision[None]:
        return Decision(None, () if seen.get(key) else (Put(key, b"0"),))

    await space.update([key], decide)


async def main(url: str, ledger: str, name: str, lease: str) -> None:
    """Open the store, say so, and do as told."""
    told = await commands()
    async with sf.open(url, lease=float(lease)) as space:
        await prepare(space)
        contender = Contender(space, Ledger(ledger), name, told)
        say("ready")
        while words := (await told.readline()).split():
            if words != [b"go"]:  # what woke up a body that was not there to hear it any more
                await contender.obey(words[0].decode())


if __name__ == "__main__":
    asyncio.run(main(*ARGUMENTS))
