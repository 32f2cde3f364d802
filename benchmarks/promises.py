"""What the promises come to on each store: measured with real processes that are killed and paused.

``make promises`` writes the table to ``docs/explanation/promises.md``. Every cell was measured in that run, on the
default lease unless the row names another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness import ROOT, machine_facts
from benchmarks.stores import SERVERS, started
from standfast.clock import monotonic
from standfast.ids import new_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    Measure = Callable[[str], Awaitable[str]]

PAGE: Final = ROOT / "docs" / "explanation" / "promises.md"
MARKS: Final = ("<!-- measured -->", "<!-- end of what was measured -->")
DEFAULT_LEASE: Final = "30s"
SHORT_LEASE: Final = {"dynamodb": 12.0, "etcd": 12.0}
"""Seconds of a lease in rows where a process is paused past it; other stores take 4."""
ROUNDS: Final = int(os.environ.get("STANDFAST_BENCH_ROUNDS", "5"))
ENOUGH: Final = 45.0
"""Seconds after which a row does no further round: a store that waits for a lease gets one or two."""
PATIENCE: Final = 120.0


class Actor:
    """A process of ``benchmarks._promise_actor``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.heard: list[dict[str, Any]] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, role: str, url: str, namespace: str, lease: str, *options: str) -> AsyncIterator[Actor]:
        """Start one, wait until it is ready, and end it afterwards."""
        pipe = asyncio.subprocess.PIPE
        command = [sys.executable, "-m", "benchmarks._promise_actor", role, url, namespace, lease, *options]
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=ROOT)
        actor = cls(process)
        try:
            await actor.until("ready")
            yield actor
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def until(self, what: str, *, among: tuple[str, ...] = ()) -> dict[str, Any]:
        """Wait until something has happened, and return what is known of it."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while True:
                line = await self._process.stdout.readline()
                if not line:
                    raise RuntimeError(f"an actor ended before {what!r}: {self.heard}")
                fact: dict[str, Any] = json.loads(line)
                self.heard.append(fact)
                if fact["what"] in (what, *among):
                    return fact

    def order(self, what: str) -> None:
        """Give it an order."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n".encode())

    def kill(self) -> float:
        """End it with SIGKILL, and return when."""
        at = monotonic()
        self._process.kill()
        return at

    async def pause(self, seconds: float) -> None:
        """Stop it for a while."""
        self._process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self._process.send_signal(signal.SIGCONT)


def fresh() -> str:
    """Return a namespace that nothing else uses."""
    return f"p{new_id()[-12:]}"


async def longest(once: Callable[[], Awaitable[float]]) -> str:
    """Return the longest of several rounds, in seconds, and how many there were."""
    took, began = list[float](), monotonic()
    while len(took) < ROUNDS and (not took or monotonic() - began < ENOUGH):
        took.append(await once())
    return f"{max(took):.2f} s ({len(took)})"


# --- succession ----------------------------------------------------------------------------------------------------


async def killed_holder(url: str) -> str:
    """A holder is killed; how long until the first waiter holds the lock."""

    async def once() -> float:
        namespace = fresh()
        async with Actor.started("hold", url, namespace, DEFAULT_LEASE) as holder:
            await holder.until("held")
            async with Actor.started("hold", url, namespace, DEFAULT_LEASE) as waiter:
                await asyncio.sleep(0.3)
                at = holder.kill()
                return float((await waiter.until("held"))["at"]) - at

    return await longest(once)


async def killed_waiter(url: str) -> str:
    """The first waiter is killed, then the holder leaves; how long until the second waiter holds the lock."""

    async def once() -> float:
        namespace = fresh()
        async with contextlib.AsyncExitStack() as stack:
            holder, first, second = [
                await stack.enter_async_context(Actor.started("hold", url, namespace, DEFAULT_LEASE)) for _ in range(3)
            ]
            await holder.until("held")
            await asyncio.sleep(0.3)
            first.kill()
            at = monotonic()
            holder.order("leave")
            return float((await second.until("held"))["at"]) - at

    return await longest(once)


async def killed_worker(url: str) -> str:
    """A worker is killed in the middle of a step; how long until another one runs that step."""

    async def once() -> float:
        namespace = fresh()
        async with Actor.started("work", url, namespace, DEFAULT_LEASE, "slow") as worker:
            while (await worker.until("step"))["step"] != "second":
                pass
            async with Actor.started("work", url, namespace, DEFAULT_LEASE) as other:
                at = worker.kill()
                began = await other.until("step")
                assert began["step"] == "second", "a recorded step was run again"
                return float(began["at"]) - at

    return await longest(once)


async def handed_over(url: str) -> str:
    """A holder leaves; how long until the waiter in another process holds the lock."""
    took = list[float]()
    for _ in range(ROUNDS):
        namespace = fresh()
        async with Actor.started("hold", url, namespace, DEFAULT_LEASE) as holder:
            await holder.until("held")
            async with Actor.started("hold", url, namespace, DEFAULT_LEASE) as waiter:
                await asyncio.sleep(0.3)
                at = monotonic()
                holder.order("leave")
                took.append(float((await waiter.until("held"))["at"]) - at)
    return f"{sorted(took)[len(took) // 2] * 1000:.0f} ms"


# --- paused past the lease -----------------------------------------------------------------------------------------


def short_lease(url: str) -> float:
    """Return the seconds of the lease with which a process is paused on a store."""
    return SHORT_LEASE.get(url.split(":", 1)[0], 4.0)


async def paused_and_succeeded(url: str) -> str:
    """A holder is stopped past its lease and another one has the lock: what its late write comes to."""
    namespace, lease = fresh(), short_lease(url)
    async with Actor.started("hold", url, namespace, f"{lease}s") as holder:
        await holder.until("held")
        async with Actor.started("hold", url, namespace, f"{lease}s") as waiter:
            pause = asyncio.create_task(holder.pause(lease * 2))
            await waiter.until("held")
            await pause
            holder.order("write")
            return str((await holder.until("written", among=("refused",)))["what"])


async def paused_alone(url: str) -> str:
    """A holder is stopped past its lease and nobody else came: what its late write comes to."""
    lease = short_lease(url)
    async with Actor.started("hold", url, fresh(), f"{lease}s") as holder:
        await holder.until("held")
        await holder.pause(lease * 1.5)
        holder.order("write")
        return str((await holder.until("written", among=("refused",)))["what"])


async def paused_worker(url: str) -> str:
    """The only worker is stopped past its lease in the middle of a step: whether that step counts."""
    lease = short_lease(url)
    async with Actor.started("work", url, fresh(), f"{lease}s", "slow") as worker:
        while (await worker.until("step"))["step"] != "second":
            pass
        await worker.pause(lease * 1.5)
        worker.order("go on")
        worker.order("go on")
        await worker.until("result")
        times = sum(fact["what"] == "step" and fact["step"] == "second" for fact in worker.heard)
        return "recorded" if times == 1 else "run again"


PROMISES: Final[Mapping[str, Measure]] = {
    "a holder is killed with -9: the next in line has the lock after": killed_holder,
    "the first in line is killed, the holder leaves: the second has the lock after": killed_waiter,
    "a worker is killed in the middle of a step: another one runs that step after": killed_worker,
    "a holder leaves: a waiter in another process has the lock after (median)": handed_over,
    "a holder paused past its lease, another one has the lock: its guarded write is": paused_and_succeeded,
    "a holder paused past its lease, without a new holder: its guarded write is": paused_alone,
    "the only worker paused past its lease in the middle of a step: that step is": paused_worker,
}


async def measured(urls: Mapping[str, str]) -> dict[str, list[str]]:
    """Measure every row on every store: the stores side by side, because most of it is waiting for leases."""

    async def column(name: str, url: str) -> list[str]:
        cells = list[str]()
        for what, measure in PROMISES.items():
            cells.append(await measure(url))
            print(f"{name}: {what} {cells[-1]}", flush=True)
        return cells

    columns = await asyncio.gather(*(column(name, url) for name, url in urls.items()))
    return {what: [cells[place] for cells in columns] for place, what in enumerate(PROMISES)}


def table(stores: list[str], rows: Mapping[str, list[str]]) -> str:
    """Return the rows as a Markdown table, with a column a store."""
    lines = [["", *stores], ["---"] * (len(stores) + 1), *([what, *cells] for what, cells in rows.items())]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write(text: str) -> None:
    """Put what was measured into its page, in place of what stood there."""
    begin, end = MARKS
    page = PAGE.read_text(encoding="utf-8")
    part = re.compile(rf"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    PAGE.write_text(part.sub(lambda _: f"{begin}\n\n{text}\n\n{end}", page), encoding="utf-8")


def main() -> None:
    """Measure all stores and write the table."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = started(stack)
        urls = {"SQLite": f"sqlite:///{folder}/promises.db"} | {SERVERS[kind]: url for kind, url in servers.items()}
        rows = asyncio.run(measured(urls))
    shown = table(list(urls), rows)
    print(f"\n{shown}")
    if not os.environ.get("STANDFAST_BENCH_DRY"):
        write(f"`make promises` · {machine_facts()}\n\n{shown}")
        print(f"\nwritten to {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
