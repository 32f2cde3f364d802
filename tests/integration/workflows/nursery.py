"""Workers as real processes: born, killed, stopped, and never forgotten."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, final

from tests.fork_server import forked_exec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.integration.workflows.ledger import Ledger

ROOT: Final = Path(__file__).resolve().parents[3]
PATIENCE: Final = 40.0
"""How many seconds a healthy worker may take on a busy machine."""


@final
class Nursery:
    """A process that forks workers, and what is known of them."""

    def __init__(self, ledger: Ledger, environment: Mapping[str, str] | None = None) -> None:
        self._ledger: Final = ledger
        self._environment: Final = dict(environment or {})
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._news: Final = asyncio.Condition()
        self.born: Final[list[int]] = []
        self.ready: Final[set[int]] = set()
        self.gone: Final[dict[int, int]] = {}
        self.ended: Final[set[int]] = set()

    async def __aenter__(self) -> Self:
        self._process = await forked_exec(
            sys.executable, "-m", "tests.integration.workflows.programs.nursery",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **self._environment},
        )  # fmt: skip
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._process is not None
        for pid in self.alive:
            os.kill(pid, signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        if self._reading is not None:
            await self._reading

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            what, pid, *rest = line.decode().split()
            if what == "born":
                self.born.append(int(pid))
            elif what == "ready":
                self.ready.add(int(pid))
            else:
                self.gone[int(pid)] = int(rest[0])
            async with self._news:
                self._news.notify_all()

    @property
    def alive(self) -> list[int]:
        """The workers that are there, as far as is known."""
        return [pid for pid in self.born if pid not in self.gone and pid not in self.ended]

    async def spawn(self, number: int = 1, *, lease: float = 30.0, deaths: int = 0, names: str = "*") -> list[int]:
        """Start workers, with some workflows or all; return their process ids when they are born."""
        assert self._process is not None
        assert self._process.stdin is not None
        before = len(self.born)
        self._process.stdin.write(f"{lease} {deaths} {names}\n".encode() * number)
        await self._wait_for(lambda: len(self.born) >= before + number)
        return self.born[before:]

    async def spawn_ready(
        self, number: int = 1, *, lease: float = 30.0, deaths: int = 0, names: str = "*"
    ) -> list[int]:
        """Start workers; return when they drive runs."""
        pids = await self.spawn(number, lease=lease, deaths=deaths, names=names)
        await self._wait_for(lambda: self.ready.issuperset(pids))
        return pids

    async def are_ready(self, number: int) -> None:
        """Wait until so many workers drive runs."""
        await self._wait_for(lambda: len(self.ready.intersection(self.alive)) >= number)

    def kill(self, pid: int) -> None:
        """Kill a worker with SIGKILL, and write that down before."""
        self._ledger.write("kill", pid=pid)
        os.kill(pid, signal.SIGKILL)
        self.ended.add(pid)

    def stop(self, pid: int) -> None:
        """Stop a worker with SIGSTOP, and write that down before."""
        self._ledger.write("stop", pid=pid)
        os.kill(pid, signal.SIGSTOP)

    def dismiss(self, pid: int) -> None:
        """Ask a worker to hand everything back."""
        os.kill(pid, signal.SIGTERM)
        self.ended.add(pid)

    async def gone_with(self, pid: int) -> int:
        """Wait until a process is gone; return its exit code."""
        await self._wait_for(lambda: pid in self.gone)
        return self.gone[pid]

    async def _wait_for(self, is_so: object) -> None:
        assert callable(is_so)
        async with self._news, asyncio.timeout(PATIENCE):
            await self._news.wait_for(is_so)
