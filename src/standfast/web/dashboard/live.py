"""Live pages: one stream a page that says when to look again, and one watch on the store for all of them.

A stream carries no data: our script fetches the part of the page that changes, as the caller may see it. However many
look, the store is watched once for each tenant, and what several fetch after a change is made once (ADR 105).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, final

from starlette.responses import Response, StreamingResponse

from standfast.errors import StandfastError
from standfast.web.sse import HEADERS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable

    from standfast.scope import Scope
    from standfast.web.dashboard.pages import View

SHORTEST: Final = 0.5
"""Seconds between two events of a stream: a page is drawn at most twice a second."""

LONGEST: Final = 5.0
"""Seconds after which a page is drawn again though nothing was said to have changed: times on it have."""

WATCHED: Final = ("life", "line", "ticket", "schedule", "worker", "audit", "request", "rate")
"""The kinds of records that pages show."""

MOST_STREAMS: Final = 500

MOST_A_SECOND: Final = 50
"""How many parts of pages are fetched in a second: if more than half as many look, they do so less often."""

PAUSE: Final = 100
"""How many times as long as it took to make a part it is shown at least, if it goes on changing."""

OLDEST: Final = 10.0
"""Seconds after which a part is made anew though that took long."""

MOST_PARTS: Final = 200
"""How many parts are kept."""


@final
class Watcher:
    """Watches the records of one tenant while a page is open, and wakes all streams at once."""

    def __init__(self, scope: Scope) -> None:
        self._scope: Final = scope
        self._looking = 0
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._changes = 0  # none: it is not watched yet

    @property
    def looking(self) -> int:
        """How many streams there are."""
        return self._looking

    @property
    def changes(self) -> int:
        """How many changes were seen; 0: it is not watched."""
        return self._changes

    @contextlib.asynccontextmanager
    async def look(self) -> AsyncGenerator[None]:
        """Watch while in this block."""
        self._looking += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield
        finally:
            self._looking -= 1
            if not self._looking:
                self._stop()

    def _stop(self) -> None:
        task, self._task, self._changes = self._task, None, 0
        if task is not None:
            task.cancel()

    def wake(self) -> None:
        """Wake all streams."""
        self._changes += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self, seen: int = 0) -> int:
        """Wait until there were other changes than those that were seen, and no longer than a while; return how many.

        A caller that has seen none is told at once that it is watched: its page was drawn before that.
        """
        if self._changes == seen:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), LONGEST)
        return self._changes

    async def _watch(self) -> None:
        try:
            async with self._scope.watch(*(self._scope.key(kind) for kind in WATCHED)) as watch:
                while True:
                    self.wake()
                    await asyncio.sleep(max(SHORTEST, self._looking / MOST_A_SECOND))
                    await watch.wait(LONGEST)
        except StandfastError:  # pages are drawn again after a while in any case, and say what is wrong
            self._task = None


@final
class SharedParts:
    """Parts of pages that were made since the last change: all that look at the same page have the same one.

    A part is made anew when something has changed since it was begun, but not before a pause that grows with what it
    costs. So a page costs the store the same for one viewer and for a hundred, and a dear one is drawn less often.
    """

    def __init__(self) -> None:
        self._kept: Final[OrderedDict[Hashable, _Part]] = OrderedDict()

    async def get(self, key: Hashable, changes: int, make: Callable[[], Awaitable[Response]]) -> Response:
        """Return a part that was begun after that number of changes, or lately enough; make it if there is none.

        Args:
            key: What it depends on: the page, whose it is, and what its viewer may do.
            changes: How many changes there were.
            make: Makes it.
        """
        loop = asyncio.get_running_loop()
        part = self._kept.get(key)
        if part is None or (part.changes != changes and loop.time() >= part.until):
            part = self._kept[key] = _Part(changes, loop.create_task(_made(make)))
            if len(self._kept) > MOST_PARTS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        try:
            answer, took = await asyncio.shield(part.task)
        except Exception:
            if self._kept.get(key) is part:
                del self._kept[key]
            raise
        if not part.until:
            part.until = loop.time() + min(PAUSE * took, OLDEST)
        return Response(answer.body, answer.status_code, {"cache-control": "no-store"}, answer.media_type)


class _Part:
    __slots__ = ("changes", "task", "until")

    def __init__(self, changes: int, task: asyncio.Task[tuple[Response, float]]) -> None:
        self.changes, self.task = changes, task
        self.until = 0.0


async def _made(make: Callable[[], Awaitable[Response]]) -> tuple[Response, float]:
    began = asyncio.get_running_loop().time()
    answer = await make()
    return answer, asyncio.get_running_loop().time() - began


async def live(view: View) -> Response:
    """Stream an event whenever the page may have changed."""
    space, closing = view.engine.space, view.dashboard.closing
    watcher = view.dashboard.watchers.setdefault(space, Watcher(space))

    async def events() -> AsyncGenerator[bytes]:
        yield b"retry: 3000\n\n"
        if watcher.looking >= MOST_STREAMS:
            return
        seen = 0
        async with watcher.look():
            while not closing.is_set():
                seen = await watcher.change(seen)
                yield b"event: changed\ndata: 1\n\n"

    headers = {name.decode(): value.decode() for name, value in HEADERS}
    return StreamingResponse(events(), 200, headers)
