"""The processes of the fifth scene as they are seen from outside, and the picture of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from demonstration.fenced import MUTEX, FencedLedger
from demonstration.processes import PATIENCE, end, start
from demonstration.timeline import Timeline, Track
from standfast.stores import Put

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from demonstration.screen import Screen
    from standfast import Space

FRAMES_A_SECOND: Final = 20
SHOWN: Final = 10**8  # so much of a fence is shown


async def until(seen: Callable[[], Awaitable[bool]]) -> None:
    """Look again and again until something can be seen."""
    async with asyncio.timeout(PATIENCE):
        while not await seen():  # noqa: ASYNC110 -- a ledger outside the store rings for nobody
            await asyncio.sleep(0.01)


@dataclass
class Contender:
    """One of the processes, as far as it has told."""

    name: str
    process: asyncio.subprocess.Process
    track: Track
    began: float
    facts: dict[str, float] = field(default_factory=dict)
    told: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def fence(self) -> int:
        """The fence it holds or held the mutex with; 0 before that."""
        return int(self.facts.get("fence", 0))

    async def listen(self) -> None:
        """Take in what the process says until it ends."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            async with self.told:
                self.facts |= json.loads(line)
                self.told.notify_all()
            if self.track.entered is None and "entered" in self.facts:
                self.track.entered = self.facts["entered"] - self.began
            if self.track.left is None and "left" in self.facts:
                self.track.left = self.facts["left"] - self.began

    async def says(self, fact: str) -> None:
        """Wait until the process has said something."""
        async with asyncio.timeout(PATIENCE), self.told:
            await self.told.wait_for(lambda: fact in self.facts)


@dataclass
class Contest:
    """Processes that want one mutex, and the ledger that it protects."""

    space: Space
    probe: Space
    url: str
    path: str
    ledger: FencedLedger
    screen: Screen
    pace: float
    lease: float
    contenders: list[Contender] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.timeline = Timeline(3.6 * self.pace + self.lease + 0.4, [])
        self._listening: list[asyncio.Task[None]] = []

    async def join(self, name: str, seconds: float) -> Contender:
        """Start a process that will hold the mutex for a while, and wait until it is ready."""
        orders = {"url": self.url, "name": name, "ledger": self.path, "lease": self.lease, "seconds": seconds}
        process = await start("contend", **orders)
        contender = Contender(name, process, Track(f"{name}  {process.pid}"), 0.0)
        self.contenders.append(contender)
        self._listening.append(asyncio.create_task(contender.listen()))
        await contender.says("ready")
        return contender

    def begin(self) -> None:
        """Start the clock."""
        self.contenders.sort(key=lambda each: each.name)
        self.timeline = Timeline(self.timeline.seconds, [each.track for each in self.contenders])
        for contender in self.contenders:
            contender.began = self.timeline.began

    async def ask(self, contender: Contender) -> None:
        """Let a process ask for the mutex, and wait until it is in the line."""
        await self.space.commit(Put(self.space.key("cue", contender.name), b"ask"))
        contender.track.asked = self.timeline.now()

        async def is_in_line() -> bool:
            return bool(contender.fence) or contender.name in await self.line()

        await until(is_in_line)
        await asyncio.sleep(0.12 * self.pace)

    async def line(self) -> list[str]:
        """Return who waits, as anybody may ask."""
        return [waiter.note for waiter in (await self.space.explain(MUTEX)).waiters]

    def refuse(self, contender: Contender) -> None:
        """Write down that the ledger has refused a write of that process."""
        self.refused.append(f"{contender.name} with {self.short(contender)}")

    def tell(self, what: str) -> None:
        """Say what happens, where there is no live picture to show it."""
        self.screen.note(f"{self.timeline.now():5.2f} s  {what}")

    async def holds(self, contender: Contender) -> None:
        """Wait until a process holds the mutex and has written under it."""
        await contender.says("fence")
        self.tell(f"{contender.name} holds {MUTEX} with fence {self.short(contender)}")

        async def has_written() -> bool:
            return (contender.name, contender.fence) in self.ledger.entries()

        await until(has_written)

    def short(self, contender: Contender) -> str:
        """Return the end of a fence, which is a long number; those that are shown keep their order."""
        all_begin_with = self.contenders[0].fence // SHOWN * SHOWN
        return f"{self.screen.glyphs.cut}{contender.fence - all_begin_with:08}"

    async def watch(self) -> None:
        """Draw until cancelled."""
        while True:
            places = {name: place for place, name in enumerate(await self.line(), start=1)}
            self.screen.draw(self.picture(places))
            await asyncio.sleep(1 / FRAMES_A_SECOND)

    def picture(self, places: dict[str, int]) -> list[str]:
        """Draw who waits and who holds, and below it what the ledger says."""
        for contender in self.contenders:
            contender.track.note = self._note(contender, places.get(contender.name))
        refused = f"   and refused what came too late: {' and '.join(self.refused)}" if self.refused else ""
        return [
            *self.timeline.rows(self.screen),
            f"   A ledger outside the store has accepted {len(self.ledger.entries())} writes",
            self.screen.paint(refused, "yellow") if refused else "",
        ]

    def _note(self, contender: Contender, place: int | None) -> str:
        fate = f", {contender.track.fate}" if contender.track.fate else ""
        if contender.fence:
            note = f"fence {self.short(contender)}{fate}"
            return note if contender.track.left or fate else self.screen.paint(note, "green")
        return self.screen.paint(f"waits, place {place}", "dim") if place else ""

    async def aclose(self) -> None:
        """Wait for all processes to end."""
        await end(*(contender.process for contender in self.contenders))
        await asyncio.gather(*self._listening)

    def kill_all(self) -> None:
        """Leave no process behind when something goes wrong, not even one that is stopped."""
        for contender in self.contenders:
            with contextlib.suppress(ProcessLookupError):
                contender.process.kill()
