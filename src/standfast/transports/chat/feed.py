"""What a client of a conversation is told: each message once, and each answer as it comes, from where it left off.

Nothing is kept for a client that reads slowly but a few frames: the rest stays in the store until they are read.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Self, final

from standfast.errors import ForbiddenError, RequestNotFoundError, StandfastError
from standfast.flows.request import ENDED
from standfast.transports.chat.ends import Ends
from standfast.transports.chat.frames import Frame, event_frame, gone_frame, message_frame, status_frame

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from standfast.transports.chat.conversation import Entry
    from standfast.transports.chat.cursor import Seen
    from standfast.transports.chat.posting import Party
    from standfast.transports.seam import Handle

AHEAD: Final = 64
"""How many frames are ready for a client that has not read them yet."""

FOLLOWED: Final = 16
"""How many answers are followed at the same time; the oldest that have not ended."""

LOOK_EVERY: Final = 5.0
"""Seconds between two looks for news, if nothing tells earlier."""

PAUSE: Final = 1.0
"""Seconds until it is tried again when the store does not answer."""


@final
class Feed:
    """The frames for one client, in order. Use it as an async context manager.

    Args:
        party: Who reads, and where.
        seen: How far they have read; it goes on with each frame.
    """

    def __init__(self, party: Party, seen: Seen) -> None:
        self._party, self._seen = party, seen
        self._frames: Final[asyncio.Queue[Frame]] = asyncio.Queue(AHEAD)
        self._slots: Final = asyncio.Semaphore(FOLLOWED)
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._met: Final[set[str]] = set()
        self._ends: Final = Ends(party)
        self._open = 0
        self._waiting: Final[dict[str, Handle]] = {}
        self._moved: Final = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def is_quiet(self) -> bool:
        """Whether no answer is to come."""
        return not self._open

    async def __aenter__(self) -> Self:
        if not self._seen.last:
            self._seen.skip(await self._party.conversation.beginning())
        self._own(self._read_messages(self._seen.base))
        self._own(self._watch_positions())
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Whoever waits for a frame is told if there will be none any more."""
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = failure
            if self._frames.empty():
                self._frames.put_nowait(Frame({}))

    async def next(self) -> tuple[dict[str, Any], str]:
        """Return the next frame, and how far the client has read with it; empty if that is no farther than before."""
        frame = await self._frames.get()
        if self._failure is not None:
            raise self._failure
        if not frame.entry:
            return frame.body, ""
        if frame.event:
            self._seen.hear(frame.entry, frame.event)
        else:
            self._seen.tell(frame.entry)
        if frame.is_end:
            self._seen.end(frame.entry)
        return frame.body, str(self._seen)

    async def tell(self, body: dict[str, Any]) -> None:
        """Put something between the frames that is not told again after a break."""
        await self._frames.put(Frame(body))

    # --- messages ------------------------------------------------------------------------------------------------

    async def _read_messages(self, after: int) -> None:
        is_first = True
        async with self._party.conversation.watch() as watch:
            while True:
                try:
                    async for number, entry in self._party.conversation.after(after):
                        if is_first:
                            await self._party.check()  # it was nobody's when this began, perhaps
                            self._seen.skip(number - 1)  # what was before has gone with time
                        is_first, after = False, number
                        await self._meet(number, entry)
                except ForbiddenError:
                    raise
                except StandfastError:
                    await asyncio.sleep(PAUSE)
                    continue
                self._ends.met_all()
                await watch.wait(LOOK_EVERY)

    async def _meet(self, number: int, entry: Entry) -> None:
        if self._seen.is_over(number):
            return
        frame = message_frame(number, entry)
        is_shared = entry.request in self._met  # a burst has one answer, told with its first message
        if number > self._seen.last:
            await self._frames.put(Frame(frame.body, number, is_end=frame.is_end or is_shared))
        if entry.request and not is_shared:
            self._met.add(entry.request)
            self._ends.meet(entry.request)
            self._open += 1
            self._own(self._follow(number, entry.request, self._seen.after(number)))

    # --- answers -------------------------------------------------------------------------------------------------

    async def _follow(self, number: int, request: str, after: int) -> None:
        end: Frame | None = None
        while True:
            try:
                async with self._slots:
                    handle = await self._party.dispatching.find(self._party.principal, request)
                    await self._look(handle)
                    async for event in handle.events(after):
                        self._waiting.pop(request, None)
                        frame = event_frame(number, request, event)
                        if frame.is_end:
                            end = frame  # and no more come
                        else:
                            after = event.number
                            await self._frames.put(frame)
                if not (earlier := await self._ends.before(request)):
                    break
                end = None  # it is read again: whoever reads slowly has nothing kept for it
                for each in earlier:
                    await each.wait()
            except RequestNotFoundError:
                end = gone_frame(number, request)
                break
            except StandfastError:
                await asyncio.sleep(PAUSE)
        if end is not None:
            await self._frames.put(end)
        self._ends.told(request)
        self._waiting.pop(request, None)
        self._open -= 1
        self._moved.set()

    async def _look(self, handle: Handle) -> None:
        """Tell where an answer stands, if it has not begun; it is looked at again from time to time."""
        info = await handle.info()
        if info.status not in ENDED:
            await self._frames.put(status_frame(info))
        if info.status == "waiting":
            self._waiting[handle.id] = handle

    async def _watch_positions(self) -> None:
        told: dict[str, dict[str, Any]] = {}
        while True:
            try:
                async with asyncio.timeout(LOOK_EVERY):
                    await self._moved.wait()
            except TimeoutError:
                pass
            self._moved.clear()
            for request, handle in list(self._waiting.items()):
                try:
                    info = await handle.info()
                except StandfastError:
                    continue
                if info.status != "waiting":
                    self._waiting.pop(request, None)
                frame = status_frame(info)
                if info.status not in ENDED and told.get(request) != frame.body:
                    told[request] = frame.body
                    await self._frames.put(frame)
            told = {request: body for request, body in told.items() if request in self._waiting}
