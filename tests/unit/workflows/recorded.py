"""A run that one version of the code has begun, and another one has to go on with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec import Struct

import standfast as sf
from standfast.events import RunCodeDiffers, RunLeftAlone, RunMoved, StepArgumentsDiffer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from standfast.events import Event

    Code = Callable[..., Coroutine[Any, Any, Any]]


class Fate(Struct, frozen=True):
    """What became of a run when another version of its code was to go on with it.

    Attributes:
        how: ``completed``, ``failed``, or ``left``: it is as it was, and the worker has said so.
        result: What it returned.
        recorded: What the error names as recorded, if it was left.
        asked: What the error names as asked for.
        warned: The steps whose arguments differed.
    """

    how: str
    result: Any = None
    recorded: str = ""
    asked: str = ""
    warned: tuple[str, ...] = ()


def declared(code: Code, **options: Any) -> sf.Workflow[..., Any]:
    """Return a workflow of that code, with the name that all of these have."""
    return sf.workflow(name="order", **options)(code)


class News:
    """A hook that remembers what it was told, and lets others wait for it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._heard = asyncio.Event()

    def __call__(self, event: Event) -> None:
        """Take note."""
        self.events.append(event)
        self._heard.set()

    async def until(self, holds: Callable[[list[Event]], bool]) -> None:
        """Wait until a condition of what was told holds."""
        async with asyncio.timeout(10):
            while not holds(self.events):
                self._heard.clear()
                await self._heard.wait()


async def go_on(old: Code, new: Code, *, old_args: tuple[Any, ...] = (), **options: Any) -> Fate:
    """Run the old code until it waits for the signal ``go``; then let the new code go on."""
    before, after = News(), News()
    async with sf.open("memory://") as space:
        async with sf.Engine(
            space, workflows=[declared(old)], worker=sf.admin.WorkerLimits(linger=0), hooks=[before]
        ) as engine:
            await engine.start(declared(old), *old_args, id="one")
            await before.until(lambda events: _status(events) in ("suspended", "failed", "completed"))
        async with sf.Engine(
            space, workflows=[declared(new, **options)], worker=sf.admin.WorkerLimits(linger=0), hooks=[after]
        ) as engine:
            await engine.signal("one", "go")
            await after.until(lambda events: _status(events) in ("failed", "completed") or _is_left(events))
            info = await engine.get("one")
    return _fate(info.status, info.result, after.events)


def _status(events: list[Event]) -> str:
    return next((event.status for event in reversed(events) if isinstance(event, RunMoved)), "")


def _is_left(events: list[Event]) -> bool:
    return any(isinstance(event, RunCodeDiffers | RunLeftAlone) for event in events)


def _fate(status: str, result: Any, events: list[Event]) -> Fate:
    warned = tuple(event.step for event in events if isinstance(event, StepArgumentsDiffer))
    for event in events:
        if isinstance(event, RunCodeDiffers):
            return Fate("left", recorded=event.recorded, asked=event.asked, warned=warned)
        if isinstance(event, RunLeftAlone):
            return Fate("left", recorded=f"version {event.version!r}", warned=warned)
    return Fate(status, result, warned=warned)
