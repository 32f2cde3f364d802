"""Driving an engine until a signal says to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any, Final, final

from standfast.cli.exits import NOT_LOADED, SIGNALLED, end

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from standfast.cli.worker_telling import Telling
    from standfast.workflows.engine import Engine
    from standfast.workflows.working.worker import Worker

STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STATUS_EVERY: Final = 0.5
"""Seconds between two looks at how it goes, on a terminal."""


async def serve(engine: Engine, telling: Telling, grace: float) -> int:
    """Drive runs until a signal comes, hand them back, and return the exit code to end with."""
    signals = _Signals()
    if engine.worker is not None:
        end("the engine is open already", NOT_LOADED, "Leave that to the worker: make the engine, and do not open it.")
    await engine.open(drive=True, hooks=[telling])
    worker = engine.worker
    assert worker is not None  # noqa: S101 -- it was told to drive
    signals.hurries = worker
    telling.started(engine)
    async with _status(engine, telling):
        await _until_stopped(worker, signals)
    telling.stopping(signals.name, len(engine.host.loaded))
    await engine.aclose(grace=grace)
    telling.stopped()
    return signals.exit_code


async def _until_stopped(worker: Worker, signals: _Signals) -> None:
    joined = asyncio.ensure_future(worker.join())
    ends: set[asyncio.Future[Any]] = {joined, signals.first}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if joined.done():
        await joined  # it ends by itself only with an error that nobody expected: let it be seen
    joined.cancel()


@contextlib.asynccontextmanager
async def _status(engine: Engine, telling: Telling) -> AsyncGenerator[None]:
    """Show on a terminal how it goes."""
    if not telling.is_live:
        yield
        return

    async def show() -> None:
        while True:
            telling.show_status(len(engine.host.loaded))
            await asyncio.sleep(STATUS_EVERY)

    showing = asyncio.create_task(show())
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


@final
class _Signals:
    """What is sent to us: the first stops the worker, the second lets it wait for no step, the third ends us."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.first: Final[asyncio.Future[int]] = loop.create_future()
        self.hurries: Worker | None = None
        self._heard: Final[list[int]] = []
        for number in STOPS:
            loop.add_signal_handler(number, self._hear, number)

    def _hear(self, number: int) -> None:
        self._heard.append(number)
        if not self.first.done():
            self.first.set_result(number)
        elif self.hurries is not None and len(self._heard) == 2:  # noqa: PLR2004 -- the second
            self.hurries.hurry()
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    @property
    def name(self) -> str:
        """The name of the signal that stopped the worker."""
        return signal.Signals(self.first.result()).name

    @property
    def exit_code(self) -> int:
        """0, or that of the signal that made it hurry."""
        return SIGNALLED + self._heard[1] if len(self._heard) > 1 else 0
