"""Running a command for as long as a lock is held, and no longer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, final

import click
from msgspec import Struct

import standfast as sf
from standfast.cli.children import PASSED_ON, Child
from standfast.cli.exits import LOST, SIGNALLED, end
from standfast.cli.terminals import arrange
from standfast.cli.waiting import tell_of_wait
from standfast.keys import Key
from standfast.locks import Holding
from standfast.locks.driving.owners import owner_of_task
from standfast.locks.explaining.explanation import one_line

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from standfast.cli.targets import Target
    from standfast.locks import Hold


class Job(Struct, frozen=True):
    """What to run, and under which lock.

    ``holding`` makes the lock of a space, with ``on_lost="tell"``; ``grace`` is how many seconds the command has to end
    when the lock is lost.
    """

    command: tuple[str, ...]
    key: Key | str
    holding: Callable[[sf.Space], Holding]
    grace: float


async def run_job(target: Target, job: Job) -> int:
    """Run a command under its lock and return the exit code to end with."""
    signals = _Signals()
    try:
        async with target.opened(create=True) as space, _told_of(space, job.key) as done, job.holding(space) as hold:
            done()
            return await _run_under(hold, job, signals)
    except asyncio.CancelledError:
        if signals.heard is None:
            raise
        return SIGNALLED + signals.heard


@contextlib.asynccontextmanager
async def _told_of(space: sf.Space, key: Key | str) -> AsyncGenerator[Callable[[], object]]:
    """Tell a terminal about the wait, until what is yielded is called."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    telling = asyncio.create_task(tell_of_wait(space, key, owner_of_task()))
    try:
        yield telling.cancel
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _run_under(hold: Hold, job: Job, signals: _Signals) -> int:
    environment = {**os.environ, "STANDFAST_KEY": hold.key, "STANDFAST_FENCE": str(hold.fence)}
    child = Child(job.command, environment, arrange(), lambda: not hold.is_lost)
    signals.pass_to(child)
    lost: asyncio.Future[Any] = asyncio.ensure_future(hold.lost.wait())
    ends: set[asyncio.Future[Any]] = {child.ended, lost}
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        lost.cancel()
    if not child.ended.done():
        await child.end(job.grace)
    if hold.is_lost:
        message = f"the lock was lost while the command ran: {one_line(hold.key)}, fence {hold.fence}: {hold.reason}"
        end(message, LOST, "The command was ended. What it protects may be in other hands.")
    return child.ended.result()


SAID_AFTER: Final = 1.0
"""Seconds after which a command that goes on after a signal is told of."""


@final
class _Signals:
    """What is sent to us: it ends the wait for the lock, and later is the command's."""

    def __init__(self) -> None:
        self.heard: int | None = None
        self._child: Child | None = None
        self._task: Final = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in PASSED_ON:
            loop.add_signal_handler(number, self._hear, number)

    def pass_to(self, child: Child) -> None:
        """From now on, pass signals on to the command."""
        self._child = child
        if self.heard is not None:
            child.pass_on(self.heard)

    def _hear(self, number: int) -> None:
        if self._child is not None:
            self._child.pass_on(number)
            asyncio.get_running_loop().call_later(SAID_AFTER, self._say, self._child, number)
        elif self._task is not None and self.heard is None:
            self.heard = number
            self._task.cancel()

    @staticmethod
    def _say(child: Child, number: int) -> None:
        """Say what is waited for, if the command did not end at once."""
        if not child.ended.done():
            name = signal.Signals(number).name
            click.echo(
                f"{name} was passed on to the command (process {child.pid}), which goes on; it is waited for, and the"
                " lock is held until it ends. Another signal is passed on as well.",
                err=True,
            )
