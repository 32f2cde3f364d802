"""What a client of a conversation is told: each message once, and each answer as it comes, from where it left off.

Nothing is kept for a client that reads slowly but a few frames: the rest stays in the store until they are read.
"""

from __future__ import annotations

import asyncio
import re
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, final

import msgspec
from msgspec import Struct

from standfast.errors import ForbiddenError, InvalidInputError, RequestNotFoundError, StandfastError
from standfast.flows.request import ENDED
from standfast.web.problems import shown_explanation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

    from standfast.flows.request import EmittedEvent, RequestInfo
    from standfast.web.call import HandleLike
    from standfast.web.chat.conversation import ChatEntry, Party


# --- how far a client has read a conversation, as text that it sends when it comes back ----------------------------
#
# ``120-125,122:7,124-124`` says: of the messages up to 120 everything was read, and the messages up to 125 themselves;
# of the answer to 122 seven events, and the answer to 124 to its end. Of the other answers nothing was read yet.

LONGEST: Final = 4_000
_PAIR: Final = re.compile(r"([0-9]{1,15})([:-])([0-9]{1,15})", re.ASCII)
_NOT_OURS: Final = ("the place to continue from", "is not one that was given out")


@final
class FeedCursor:
    """What a client has read.

    Attributes:
        base: Of the messages up to this one, everything.
        last: The messages up to this one.
    """

    __slots__ = ("_ended", "_last_events", "base", "last")

    def __init__(self, base: int = 0, last: int = 0) -> None:
        self.base, self.last = base, max(base, last)
        self._last_events: Final[dict[int, int]] = {}
        self._ended: list[tuple[int, int]] = []

    def tell(self, message: int) -> None:
        """Note that a message was read."""
        self.last = max(self.last, message)

    def note(self, message: int, event: int) -> None:
        """Note that an event of its answer was read."""
        self._last_events[message] = event

    def end(self, message: int) -> None:
        """Note that its answer was read to the end."""
        self._last_events.pop(message, None)
        self._ended = _merged([*self._ended, (message, message)])
        self.skip(self.base)

    def skip(self, message: int) -> None:
        """Note that there is nothing more to read of the messages up to this one."""
        self.base = max(self.base, message)
        while self._ended and self._ended[0][0] <= self.base + 1:
            self.base = max(self.base, self._ended.pop(0)[1])
        self.last = max(self.last, self.base)
        for done in [each for each in self._last_events if each <= self.base]:
            del self._last_events[done]

    def after(self, message: int) -> int:
        """Return the number of the last event of its answer that was read."""
        return self._last_events.get(message, 0)

    def is_over(self, message: int) -> bool:
        """Return True if the answer to a message was read to its end."""
        return message <= self.base or any(first <= message <= last for first, last in self._ended)

    def __str__(self) -> str:
        under_way = [f"{message}:{event}" for message, event in sorted(self._last_events.items())]
        ended = [f"{first}-{last}" for first, last in self._ended]
        return ",".join([f"{self.base}-{self.last}", *under_way, *ended])

    @classmethod
    def read(cls, text: str) -> Self:
        """Return what a client says it has read; nothing at all stands for the beginning.

        Raises:
            InvalidInputError: It is not what a client was given.
        """
        if not text:
            return cls()
        pairs = [_pair(part) for part in text[: LONGEST + 1].split(",")]
        (base, mark, last), *parts = pairs
        if len(text) > LONGEST or mark != "-":
            raise InvalidInputError(*_NOT_OURS)
        seen = cls(base, last)
        for message, kind, number in parts:
            if kind == ":":
                seen.note(message, number)
        seen._ended = _merged([(first, end) for first, kind, end in parts if kind == "-" and first <= end])
        seen.skip(seen.base)
        return seen


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order; those that touch become one."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if merged and begin <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def _pair(part: str) -> tuple[int, str, int]:
    if (match := _PAIR.fullmatch(part)) is None:
        raise InvalidInputError(*_NOT_OURS)
    return int(match[1]), match[2], int(match[3])


# --- in which order a client is told that answers have ended: as they ended, the same for all who read along -------
#
# Each answer is followed by itself, so one that ended later may be heard of earlier. Before its end is told, it is
# looked at which of the others have ended before, by the time in their records; those are told first. Two answers that
# end while neither can see the other, side by side, may be told in either order: every frame names its answer.

LOOKED_AT: Final = 32
"""How many answers are looked at, the oldest first: those that are about to end are among them."""

When: TypeAlias = tuple[int, str]
"""When an answer ended; of those that did at the same time, the id decides."""


@final
class Ends:
    """The answers of one client whose ends were not told yet.

    Args:
        party: Who reads, and where.
    """

    def __init__(self, party: Party) -> None:
        self._party: Final = party
        self._untold: Final[dict[str, asyncio.Event]] = {}
        self._known: Final[dict[str, When]] = {}
        self._has_met_all: Final = asyncio.Event()

    def meet(self, request: str) -> None:
        """Note that there is an answer."""
        self._untold[request] = asyncio.Event()

    def met_all(self) -> None:
        """Note that all answers are known that there were when the client came."""
        self._has_met_all.set()

    async def before(self, request: str) -> list[asyncio.Event]:
        """Return what has to happen before the end of an answer is told: all were met, and earlier ends told.

        Those wait for none that ended later.
        """
        if not self._has_met_all.is_set():
            return [self._has_met_all]
        own = await self._when(request)
        oldest = list(islice(self._untold.items(), LOOKED_AT))
        found = [(await self._when(other), is_told) for other, is_told in oldest]
        return [is_told for when, is_told in found if own is not None and when is not None and when < own]

    def told(self, request: str) -> None:
        """Note that the client was told, or that there is nothing to tell any more."""
        self._known.pop(request, None)
        if (is_told := self._untold.pop(request, None)) is not None:
            is_told.set()

    async def _when(self, request: str) -> When | None:
        """Return when an answer ended, if it has; it is looked up once."""
        if request not in self._known and request in self._untold:
            try:
                handle = await self._party.dispatching.find(self._party.principal, request)
                if handle.status in ENDED:
                    self._known[request] = ((await handle.info()).ended_at, request)
            except RequestNotFoundError:
                return None
        return self._known.get(request)


# --- what is said over a connection: JSON objects with a ``type`` --------------------------------------------------

REQUEST_ENDED: Final = "request.ended"
FAILED: Final = "the answer failed"
"""All that is told about what an action raised: the rest is in the log."""

LONGEST_MESSAGE_ID: Final = 64


class Frame(Struct, frozen=True):
    """Something that is sent to a client.

    Attributes:
        body: What is sent.
        entry: The number of the message that it belongs to; 0: none, and it is not told again after a break.
        event: The number of the event of that message's answer; 0: it is the message itself, or none of it.
        is_end: The answer ends with it.
    """

    body: dict[str, Any]
    entry: int = 0
    event: int = 0
    is_end: bool = False


class Open(Struct, frozen=True, tag="open"):
    """The first frame of a client: which session, and how far it has read."""

    session: str = ""
    after: str = ""


class Say(Struct, frozen=True, tag="message"):
    """A user wrote something. With the same id it may be sent again: it is taken once."""

    text: str
    id: str = ""


class Cancel(Struct, frozen=True, tag="cancel"):
    """An answer is not wanted any more."""

    request: str


class Pong(Struct, frozen=True, tag="pong"):
    """The client is still there."""


Said: TypeAlias = Open | Say | Cancel | Pong
_decoder: Final[msgspec.json.Decoder[Said]] = msgspec.json.Decoder(Open | Say | Cancel | Pong)


def read_frame(data: str | bytes) -> Said:
    """Return what a client says.

    Raises:
        InvalidInputError: It is none of what a client can say. The error names the place, never the data.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidInputError("the frame", _problem(problem)) from None


def read_message(data: bytes) -> Say:
    """Return the message in a body over HTTP, which needs no ``type``.

    Raises:
        InvalidInputError: It is none.
    """
    try:
        return msgspec.convert({"type": "message"} | msgspec.json.decode(data, type=dict[str, Any]), Say)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidInputError("the message", _problem(problem)) from None


def _problem(problem: Exception) -> str:
    """Return what does not fit; what is no JSON at all could be quoted."""
    return str(problem) if isinstance(problem, msgspec.ValidationError) else "is not JSON"


def checked_message(said: Say, most: int) -> Say:
    """Refuse a message that is empty or too long, or has an id that cannot be kept.

    Raises:
        InvalidInputError: It is.
    """
    if not said.text.strip():
        raise InvalidInputError("the message", "is empty")
    if len(said.text.encode("utf-8", "replace")) > most:
        raise InvalidInputError("the message", f"is longer than {most:,} bytes")
    if len(said.id) > LONGEST_MESSAGE_ID or not said.id.isascii() or not said.id.isprintable():
        raise InvalidInputError("the id of the message", f"must be at most {LONGEST_MESSAGE_ID} ASCII characters")
    return said


def message_frame(number: int, entry: ChatEntry) -> Frame:
    """Tell what a user wrote, and which request answers it."""
    body: dict[str, Any] = {"type": "message", "message": entry.message, "text": entry.text}
    if entry.request:
        return Frame(body | {"request": entry.request}, number)
    return Frame(body | {"problem": entry.problem}, number, is_end=True)


def event_frame(number: int, request: str, event: EmittedEvent) -> Frame:
    """Tell what the answering request told, or how it has ended."""
    if event.name == REQUEST_ENDED:
        told = event.data if event.data["status"] != "failed" else {"status": "failed", "error": FAILED}
        return Frame({"type": "ended", "request": request, **told}, number, event.number, is_end=True)
    body = {"type": "event", "request": request, "number": event.number, "name": event.name, "data": event.data}
    return Frame(body, number, event.number)


def gone_frame(number: int, request: str) -> Frame:
    """Tell that nothing is known any more about an answer."""
    return Frame({"type": "ended", "request": request, "status": "unknown"}, number, is_end=True)


def status_frame(info: RequestInfo) -> Frame:
    """Tell where an answer stands that has not ended: which position, and what it waits for."""
    body: dict[str, Any] = {"type": "status", "request": info.id, "status": info.status}
    if info.explanation is not None:
        body |= {"position": info.explanation.position, "explanation": shown_explanation(info.explanation)}
    return Frame(body)


def accepted_body(message: str, handle: HandleLike) -> dict[str, Any]:
    """Acknowledge a message: it is kept, and this request answers it."""
    body: dict[str, Any] = {"type": "accepted", "message": message, "request": handle.id, "status": handle.status}
    if handle.explanation is not None:
        body |= {"position": handle.position, "explanation": shown_explanation(handle.explanation)}
    return body


# --- the frames for one client: each message once, and each answer as it comes, from where the client left off -----

AHEAD: Final = 64
"""How many frames are ready for a client that has not read them yet."""

FOLLOWED: Final = 16
"""How many answers are followed at the same time; the oldest that have not ended."""

LOOK_EVERY: Final = 5.0
"""Seconds between two polls if no notification comes earlier."""

NEXT_WITHIN: Final = 1.0
"""Seconds between two looks at an answer that is the next one: what is in front of it may not be of this client."""

PAUSE: Final = 1.0
"""Seconds before the next attempt when the store does not answer."""


@final
class Feed:
    """The frames for one client, in order. Use it as an async context manager.

    Args:
        party: Who reads, and where.
        seen: How far they have read; it goes on with each frame.
    """

    def __init__(self, party: Party, seen: FeedCursor) -> None:
        self._party, self._seen = party, seen
        self._frames: Final[asyncio.Queue[Frame]] = asyncio.Queue(AHEAD)
        self._slots: Final = asyncio.Semaphore(FOLLOWED)
        self._looks: Final = asyncio.Semaphore(FOLLOWED)
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._met: Final[set[str]] = set()
        self._ends: Final = Ends(party)
        self._open = 0
        self._waiting: Final[dict[str, HandleLike]] = {}
        self._told: Final[dict[str, dict[str, Any]]] = {}
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
        """A task that waits for a frame is told if there will be none any more."""
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
            self._seen.note(frame.entry, frame.event)
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
                            await self._party.check()  # it had no owner when this began, perhaps
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

    async def _meet(self, number: int, entry: ChatEntry) -> None:
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
                await self._tell_early(request)
                async with self._slots:
                    handle = await self._find(request)
                    info = await handle.info()
                    await self._tell_status(request, info)
                    if info.status == "waiting":
                        self._watch_position(handle)
                    async for event in handle.events(after):
                        self._forget_status(request)
                        frame = event_frame(number, request, event)
                        if frame.is_end:
                            end = frame  # and no more come
                        else:
                            after = event.number
                            await self._frames.put(frame)
                if not (earlier := await self._ends.before(request)):
                    break
                end = None  # it is read again: nothing is kept for a slow reader
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
        self._forget_status(request)
        self._open -= 1
        self._moved.set()

    # --- where answers stand that have not begun -----------------------------------------------------------------

    def _find(self, request: str) -> Awaitable[HandleLike]:
        return self._party.dispatching.find(self._party.principal, request)

    async def _tell_early(self, request: str) -> None:
        """Tell where an answer stands that is to be followed later, because as many are followed as may be."""
        if self._slots.locked():
            async with self._looks:
                handle = await self._find(request)
                await self._tell_status(request, await handle.info())

    async def _tell_status(self, request: str, info: RequestInfo) -> None:
        """Tell where an answer stands, if it has not ended and that was not told."""
        frame = status_frame(info)
        if info.status not in ENDED and self._told.get(request) != frame.body:
            self._told[request] = frame.body
            await self._frames.put(frame)

    def _forget_status(self, request: str) -> None:
        """Note that an answer has begun or ended: what it tells itself says where it stands."""
        self._waiting.pop(request, None)
        self._told.pop(request, None)

    def _is_next(self, request: str) -> bool:
        return not self._told.get(request, {}).get("position")

    def _watch_position(self, handle: HandleLike) -> None:
        self._waiting[handle.id] = handle
        if self._is_next(handle.id):
            self._moved.set()  # from now on there is one to look at often

    async def _watch_positions(self) -> None:
        """Look again at those that wait: when an answer has ended, often at the next one, and from time to time."""
        while True:
            has_next = any(map(self._is_next, self._waiting))
            try:
                async with asyncio.timeout(min(NEXT_WITHIN, LOOK_EVERY) if has_next else LOOK_EVERY):
                    await self._moved.wait()
            except TimeoutError:
                pass
            self._moved.clear()
            for request, handle in list(self._waiting.items()):
                try:
                    info = await handle.info()
                except StandfastError:
                    continue
                if request not in self._waiting:  # it has begun or ended since: that was told
                    continue
                if info.status != "waiting":
                    self._waiting.pop(request, None)
                await self._tell_status(request, info)
