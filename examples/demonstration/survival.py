"""The sixth scene: orders are fulfilled by a workflow; its worker is killed in the middle of a step."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final

import standfast as sf
from demonstration.orders import STEPS, Entry, Order, entries, fulfil
from demonstration.processes import PATIENCE, end, start
from demonstration.screen import padded

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from pathlib import Path

    from demonstration.findings import Report
    from demonstration.screen import Screen
    from standfast.workflows.run import Run

ORDERS: Final = ("order-1", "order-2", "order-3")
NAMES: Final = "AB"
KILLED_IN: Final = "pack"
AT_ONCE: Final = 1.0  # seconds; it is about 0.1 if the machine has time
FRAMES_A_SECOND: Final = 20


class Scene:
    """Three orders, two workers, and a ledger outside the store that says who did what."""

    def __init__(self, engine: sf.Engine, ledger: Path, screen: Screen, pace: float) -> None:
        self.engine, self.ledger, self.screen, self.pace = engine, ledger, screen, pace
        self.workers: list[Process] = []
        self.runs: list[Run[list[str]]] = []
        self.killed, self.killed_at = 0, 0.0

    async def hire(self, url: str, lease: float) -> None:
        """Start a worker."""
        worker = await start("drive", url=url, lease=lease)
        self.workers.append(worker)
        assert worker.stdout is not None
        async with asyncio.timeout(PATIENCE):
            await worker.stdout.readline()

    async def begin(self) -> None:
        """Start the runs. They are durable when this returns, whoever drives them."""
        for name in ORDERS:
            order = Order(name, str(self.ledger), 0.35 * self.pace)
            self.runs.append(await self.engine.start(fulfil, order, id=name))

    async def until(self, step: str, order: str) -> Entry:
        """Wait until a step of an order has begun; return who does it."""
        async with asyncio.timeout(PATIENCE):
            while True:
                for entry in entries(self.ledger):
                    if (entry.order, entry.step, entry.what) == (order, step, "begins"):
                        return entry
                await asyncio.sleep(0.01)

    def kill(self, pid: int) -> None:
        """Kill the worker with that process id."""
        victim = next(worker for worker in self.workers if worker.pid == pid)
        self.killed, self.killed_at = pid, time.monotonic()
        victim.kill()
        self.screen.note(f"worker {self.name(pid)} is killed with -9 in the middle of {KILLED_IN!r}")

    def name(self, pid: int) -> str:
        """Return what a worker is called."""
        return NAMES[[worker.pid for worker in self.workers].index(pid)]

    def picture(self) -> list[str]:
        """Draw the step log of each order: which worker began which step, and whether it ended there."""
        known = entries(self.ledger)
        return [
            f"   {padded(name, 9)}" + "".join(padded(self._cell(known, name, step), 17) for step in STEPS)
            for name in ORDERS
        ]

    def _cell(self, known: list[Entry], order: str, step: str) -> str:
        done = [entry for entry in known if (entry.order, entry.step) == (order, step)]
        marks = [self._mark(entry, done) for entry in done if entry.what == "begins"]
        return " ".join((step, *marks))

    def _mark(self, begun: Entry, done: list[Entry]) -> str:
        glyphs = self.screen.glyphs
        if any(entry.what == "ends" and entry.pid == begun.pid for entry in done):
            return self.screen.paint(f"{self.name(begun.pid)}{glyphs.kept}", "green")
        if begun.pid == self.killed:
            return self.screen.paint(f"{self.name(begun.pid)}{glyphs.broken}", "red")
        return self.screen.paint(f"{self.name(begun.pid)}{glyphs.cut}", "yellow")

    async def watch(self) -> None:
        """Redraw the picture until told to stop."""
        while True:
            self.screen.draw(self.picture())
            await asyncio.sleep(1 / FRAMES_A_SECOND)


async def play_survival(url: str, folder: Path, screen: Screen, report: Report, pace: float) -> None:
    """Play the scene and compare what happened with what was promised."""
    screen.say("", screen.paint("6  Three orders run as workflows; a worker is killed in the middle of a step", "bold"))
    async with sf.Engine(url, namespace="demo", workflows=[fulfil], drive=False) as engine:
        scene = Scene(engine, folder / "orders.log", screen, pace)
        drawing = asyncio.create_task(scene.watch())
        try:
            await asyncio.gather(*(scene.hire(url, 5.0) for _ in NAMES))
            await scene.begin()
            scene.kill((await scene.until(KILLED_IN, ORDERS[0])).pid)
            results = [await run.result(timeout=PATIENCE) for run in scene.runs]
        finally:
            drawing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await drawing
            for worker in scene.workers:
                if worker.returncode is None:
                    worker.terminate()
            await end(*scene.workers)
        screen.keep(scene.picture())
        judge(scene, results, report)


def judge(scene: Scene, results: list[list[str]], report: Report) -> None:
    """Compare the ledger with what was promised."""
    known = entries(scene.ledger)
    begun = [(each.order, each.step) for each in known if each.what == "begins"]
    # A step is recorded before the next one begins: of each order at most the last that the killed one began was not.
    by_killed = [(each.order, each.step) for each in known if each.what == "begins" and each.pid == scene.killed]
    unrecorded = set(dict(by_killed).items())
    twice = {each for each in begun if begun.count(each) > 1}
    after = [
        each.at for each in known if each.pid != scene.killed and each.at > scene.killed_at and each.what == "begins"
    ]
    took = 1000 * (min(after, default=scene.killed_at + PATIENCE) - scene.killed_at)
    report.figures["workflow_takeover_ms"] = took
    report.add(
        "A workflow survives kill -9, and goes on where it was.",
        f"Worker {scene.name(scene.killed)} was killed with -9 in the middle of {KILLED_IN!r}. The other one went on "
        f"{took:.0f} ms later, and all {len(results)} orders were fulfilled.",
        kept=took < 1000 * AT_ONCE and all(len(result) == len(STEPS) for result in results),
    )
    report.add(
        "A step that is recorded never runs again.",
        f"Of {len(ORDERS) * len(STEPS)} steps {len(twice)} began twice: those not recorded when the kill came.",
        kept=twice <= unrecorded,
    )
