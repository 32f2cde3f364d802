"""Live pages: one stream a page that says when to refresh, and one watch on the store for all of them.

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
from standfast.workflows.lanes import one_look

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable

    from standfast.scope import Scope

SHORTEST: Final = 0.5
"""Seconds between two events of a stream: a page is drawn at most twice a second."""

LONGEST: Final = 5.0
"""Seconds after which a page is drawn again though nothing was said to have changed: times on it have."""

WATCHED: Final = ("life", "line", "ticket", "schedule", "worker", "audit", "request", "rate", "bulk")
"""The kinds of records that pages show."""

MOST_STREAMS: Final = 500

MOST_A_SECOND: Final = 50
"""How many parts of pages are fetched in a second: if more than half as many look, they do so less often."""

PAUSE: Final = 0.9
"""Seconds between the beginnings of two parts of one page, if it goes on changing."""

PAUSES: Final = {"/": 5.0, "/store": 6.0, "/runs": 2.0, "/flows": 1.5}
"""The same, of pages that ask the store for more than a few records: eight calls a second are what a page may cost."""

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
        if task is not None:  # it may have ended by itself
            task.cancel()

    def wake(self) -> None:
        """Wake all streams."""
        self._changes += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self, seen: int = 0) -> int:
        """Wait for a change that was not seen yet, for a bounded time; return how many there were.

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
    """Parts of pages that were made since the last change: all viewers of a page share one.

    A part is made anew when something has changed since it was begun, but two are not begun within a pause: a viewer
    that asks meanwhile waits for the next one. So what a viewer gets is never older than its question, the first change
    after a rest is shown at once, and a page costs the store the same for one viewer and for a hundred (ADR 105).
    """

    def __init__(self) -> None:
        self._kept: Final[OrderedDict[Hashable, _Part]] = OrderedDict()

    async def get(
        self,
        key: Hashable,
        changes: Callable[[], int],
        make: Callable[[], Awaitable[Response]],
        pause: float = PAUSE,
    ) -> Response:
        """Return a part that was begun after the last change; make it if there is none.

        Args:
            key: What it depends on: the page, whose it is, and what its viewer may do.
            changes: Says how many changes there were.
            make: Makes it.
            pause: Seconds between the beginnings of two parts.
        """
        loop = asyncio.get_running_loop()
        part = self._kept.get(key)
        if part is None or part.is_older_than(changes()):
            begins_at = loop.time() if part is None else part.began_at + pause
            part = self._kept[key] = _Part(begins_at)
            part.task = loop.create_task(part.run(changes, make))
            if len(self._kept) > MOST_PARTS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        try:
            answer = await asyncio.shield(part.task)
        except Exception:
            if self._kept.get(key) is part:
                del self._kept[key]
            raise
        return Response(answer.body, answer.status_code, {"cache-control": "no-store"}, answer.media_type)


@final
class _Part:
    """A part that is made, or is going to be at ``began_at``."""

    __slots__ = ("_changes", "began_at", "task")

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self._changes: int | None = None
        self.task: asyncio.Task[Response]

    def is_older_than(self, changes: int) -> bool:
        """Return True if something has changed since it was begun."""
        return self._changes is not None and self._changes != changes

    async def run(self, changes: Callable[[], int], make: Callable[[], Awaitable[Response]]) -> Response:
        """Make it when its time has come."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self.began_at - loop.time()))
        self.began_at, self._changes = loop.time(), changes()
        with one_look():
            return await make()


def stream_of(watcher: Watcher, closing: asyncio.Event) -> Response:
    """Return a stream with an event whenever a page may have changed."""

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
