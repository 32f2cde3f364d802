"""A conversation over a WebSocket."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, final

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from standfast.clock import monotonic
from standfast.errors import InvalidInputError, StandfastError
from standfast.web.chat.feed import Cancel, Feed, FeedCursor, Open, Say, accepted_body, checked_message, read_frame
from standfast.web.problems import as_json, problem_of, status_of

if TYPE_CHECKING:
    from standfast.web.chat.conversation import Party, Serving


SILENT: Final = 3
"""How many heartbeats a client may miss."""

ROOM: Final = 8_192
"""Bytes that a frame may have besides the text of a message."""

CAN_BE_TRIED_AGAIN: Final = frozenset({429, 503})

FAREWELL: Final = 1.0
"""Seconds that a client has to read why it is let go."""

GOING_AWAY: Final = 1001
POLICY: Final = 1008
TOO_BIG: Final = 1009
RESTARTING: Final = 1012
LATER: Final = 1013
IDLE: Final = 4000
SLOW: Final = 4001
NO_ANSWER: Final = 4008


class _LeaveError(Exception):
    """The connection is to be closed. It never leaves this module."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code, self.reason = code, reason


@final
class Talk:
    """One WebSocket.

    Args:
        socket: The connection, not accepted yet.
        serving: The chat.
    """

    def __init__(self, socket: WebSocket, serving: Serving) -> None:
        self._socket, self._serving, self._limits = socket, serving, serving.chat.limits
        self._receiving: asyncio.Task[Any] | None = None
        self._who: Final = serving.who(socket)
        self._used_at = monotonic()

    async def run(self) -> None:
        """Serve it until one side leaves.

        Raises:
            TooManyRequestsError: There are too many already; it was not accepted.
        """
        with self._serving.places.of(self._who), self._serving.guests.connected(self._who):
            await self._socket.accept()
            try:
                await self._converse()
            except _LeaveError as leave:
                await self._close(leave.code, leave.reason)
            except StandfastError as problem:
                with suppress(_LeaveError, WebSocketDisconnect, OSError, RuntimeError):
                    await self._send({"type": "refused", "message": "", "problem": problem_of(problem)})
                await self._close(LATER if status_of(problem) in CAN_BE_TRIED_AGAIN else POLICY, "")
            except (WebSocketDisconnect, OSError):
                return
            finally:
                if self._receiving is not None:
                    self._receiving.cancel()
                    await asyncio.gather(self._receiving, return_exceptions=True)

    async def _converse(self) -> None:
        said = await self._next_frame(self._limits.heartbeat)
        if said is None:
            raise _LeaveError(NO_ANSWER, "no session was opened in time")
        frame = read_frame(said)
        if not isinstance(frame, Open):
            raise InvalidInputError("the first frame", "must be of the type 'open'")
        party, seen = await self._serving.party(self._socket, frame.session), FeedCursor.read(frame.after)
        hello = {"type": "hello", "session": party.session, "flow": party.chat.flow, "message": self._limits.message}
        await self._send(hello)
        async with Feed(party, seen) as feed:
            works = [self._read(party, feed), self._write(feed), self._serving.closing.wait()]
            tasks = [asyncio.ensure_future(work) for work in works]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done():
                        task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        raise _LeaveError(RESTARTING, "the server is closing")

    # --- in ------------------------------------------------------------------------------------------------------

    async def _read(self, party: Party, feed: Feed) -> None:
        silent = 0
        while True:
            said = await self._next_frame(self._limits.heartbeat)
            if said is not None:
                silent = 0
                await self._take(said, party, feed)
                continue
            silent += 1
            if silent >= SILENT:
                raise _LeaveError(NO_ANSWER, "the client is silent")
            if feed.is_quiet and monotonic() - self._used_at >= self._limits.idle:
                raise _LeaveError(IDLE, "nothing was written for a while")
            await feed.tell({"type": "ping"})

    async def _take(self, said: str, party: Party, feed: Feed) -> None:
        message = ""
        try:
            frame = read_frame(said)
            if isinstance(frame, Say):
                message, self._used_at = frame.id, monotonic()
                checked_message(frame, self._limits.message)
                self._serving.guests.write(self._who)
                posted = await party.post(frame.text, frame.id)
                await feed.tell(accepted_body(posted.message, posted.handle))
            elif isinstance(frame, Cancel):
                await party.cancel(frame.request)
            elif isinstance(frame, Open):
                raise InvalidInputError("the frame", "opens a session, and one is open")
        except StandfastError as problem:
            await feed.tell({"type": "refused", "message": message, "problem": problem_of(problem)})

    async def _next_frame(self, timeout: float) -> str | None:
        """Return the next frame, or None after a time. The frame is not lost then."""
        receiving = self._receiving
        if receiving is None:
            receiving = self._receiving = asyncio.ensure_future(self._socket.receive())
        await asyncio.wait({receiving}, timeout=timeout)
        if not receiving.done():
            return None
        received, self._receiving = receiving.result(), None
        if received["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(received.get("code", GOING_AWAY))
        data: str | bytes = received.get("text") or received.get("bytes") or ""
        if len(data) > 6 * self._limits.message + ROOM:  # JSON may write each byte as \u00xx
            raise _LeaveError(TOO_BIG, "the frame is too large")
        return data if isinstance(data, str) else data.decode("utf-8", "replace")

    # --- out -----------------------------------------------------------------------------------------------------

    async def _write(self, feed: Feed) -> None:
        while True:
            body, cursor = await feed.next()
            await self._send(body | {"cursor": cursor} if cursor else body)

    async def _send(self, body: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(self._limits.patience):
                await self._socket.send_text(as_json(body).decode())
        except TimeoutError:
            raise _LeaveError(SLOW, "the client reads too slowly") from None

    async def _close(self, code: int, reason: str) -> None:
        if self._socket.application_state is WebSocketState.CONNECTED:
            # The other side may have gone meanwhile, or may not read; then the server ends the connection by itself.
            with suppress(WebSocketDisconnect, OSError, RuntimeError):  # a TimeoutError is an OSError
                async with asyncio.timeout(min(self._limits.patience, FAREWELL)):
                    await self._socket.close(code, reason)
