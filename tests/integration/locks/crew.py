"""A crew of processes that want one mutex, and what is seen of them from outside: the line, and the ledger."""

from __future__ import annotations

import contextlib
import signal
from itertools import count
from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

from standfast.clock import monotonic
from standfast.errors import StoreBusyError
from standfast.scope import address_of
from standfast.stores import Put
from tests.integration.locks.programs.contend import MUTEX, RESOURCE
from tests.integration.sqlite.children import Child

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from standfast import Space
    from tests.integration.locks.ledger import Ledger

PROGRAM: Final = "tests.integration.locks.programs.contend"


class Held(Struct, frozen=True):
    """That a member came to hold the mutex: with which fence, and when by the clock that all processes share."""

    fence: int
    at: float


@final
class Member:
    """One process of the crew."""

    def __init__(self, name: str, child: Child) -> None:
        self.name: Final = name
        self.child: Final = child

    def tell(self, word: str) -> None:
        """Tell it what to do; see ``programs/contend.py``."""
        self.child.tell(word)

    def held(self) -> Held:
        """Wait until it holds the mutex."""
        said = self.child.hear()
        assert said[0] == "held", said
        return Held(int(said[1]), float(said[2]))

    def left(self) -> float:
        """Wait until it has let go by itself, and return when that was."""
        said = self.child.hear()
        assert said[0] == "left", said
        return float(said[1])

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.child.kill()

    def __repr__(self) -> str:
        return self.name


@final
class Crew:
    """Processes on one store, started once and used for many rounds. Whoever was killed is replaced."""

    def __init__(self, space: Space, url: str, ledger: Ledger, path: Path, lease: float) -> None:
        self.space, self.ledger, self.lease = space, ledger, lease
        self._url, self._path = url, path
        self._numbers: Final = count(1)
        self._checked = self._fence = 0
        self.members: list[Member] = []
        self._started: Final[list[Member]] = []

    def start(self, number: int, environment: Mapping[str, str] | None = None) -> list[Member]:
        """Start so many more processes, and return those when they are ready."""
        names = [f"p{next(self._numbers)}" for _ in range(number)]
        return self.start_as(*names, environment=environment)

    def start_as(self, *names: str, environment: Mapping[str, str] | None = None) -> list[Member]:
        """Start processes by these names."""
        given = (self._url, self._path)
        new = [Member(name, Child(PROGRAM, *given, name, self.lease, environment=environment)) for name in names]
        self._started.extend(new)
        for member in new:
            assert member.child.hear() == ["ready"]
        self.members += new
        return new

    def fill_up(self, size: int) -> None:
        """Replace those who are gone."""
        self.members = [member for member in self.members if member.child.process.returncode is None]
        self.start(size - len(self.members))

    def shuffled(self, chooser: random.Random) -> list[Member]:
        """Return the members in any order."""
        return chooser.sample(self.members, len(self.members))

    def named(self, names: Iterable[str]) -> list[Member]:
        """Return the members with these names, in that order."""
        by_name = {member.name: member for member in self.members}
        return [by_name[name] for name in names]

    async def line(self) -> list[str]:
        """Return who waits, by their tickets."""
        return [waiter.note for waiter in (await self.space.explain(MUTEX)).waiters]

    async def lined_up(self, *members: Member) -> list[Member]:
        """Wait until all of these and nobody else wait in line; return them in the order of their tickets."""
        names = {member.name for member in members}
        async with self.space.watch(self.space.key("queue", *address_of(MUTEX))) as watch:
            while set(line := await self.line()) != names:
                assert await watch.wait(20) is not None, f"{line} are in line instead of {names}"
        return self.named(line)

    async def stop_outside_a_transaction(self, member: Member) -> float:
        """Stop a process with SIGSTOP where it does not have the file's turn; return when that was."""
        while True:
            stopped_at = monotonic()
            member.child.stop()
            with contextlib.suppress(StoreBusyError):
                key = self.space.key("probe")
                await self.space.commit(Put(key, b"", (await self.space.read(key)).version(key)))
                return stopped_at
            member.child.send(signal.SIGCONT)

    async def resource(self) -> int:
        """Return the fence of whoever wrote last to the record that is written under the guard."""
        key = self.space.key(RESOURCE)
        return int((await self.space.read(key)).records[key].value)

    def check_ledger(self, gone: Collection[Member]) -> list[str]:
        """Check what was accepted since the last time; return who came in, in that order.

        Fences never went down, each was one process's, and nobody came in before the one before was out or gone.
        """
        excused = {member.name for member in gone}
        inside, came = "", list[str]()
        for entry in self.ledger.entries(self._checked):
            self._checked = entry.number
            if entry.what == "in":
                assert not inside or inside in excused, f"{entry} came in while {inside} was in"
                assert entry.fence > self._fence, f"{entry} came in with a fence that is not higher than {self._fence}"
                inside, self._fence = entry.name, entry.fence
                came.append(entry.name)
            assert (entry.name, entry.fence) == (inside, self._fence), f"{entry} was accepted while {inside} was in"
            inside = "" if entry.what == "out" else inside
        assert not inside or inside in excused
        return came

    def close(self) -> None:
        """End all processes that were ever started."""
        for member in self._started:
            member.kill()
