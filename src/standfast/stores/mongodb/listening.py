"""Listening: hints arrive by a change stream on the messages that transactions leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final, final

from standfast.errors import StoreUnavailableError
from standfast.stores.mongodb.trouble import TROUBLE

if TYPE_CHECKING:
    from pymongo.asynchronous.change_stream import AsyncChangeStream

    from standfast.stores.mongodb.connecting import Connection
    from standfast.stores.remote.server import Listener

    Stream = AsyncChangeStream[dict[str, Any]]

QUIET: Final = 10.0
"""How many seconds the server waits for a message before it says that there is none."""

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 3.0

_INSERTED: Final[list[dict[str, Any]]] = [
    {"$match": {"operationType": "insert"}},
    {"$project": {"fullDocument.topic": 1, "fullDocument.data": 1}},
]


@final
class Listening:
    """The change stream of one handle. It is opened when there is something to listen to."""

    def __init__(self, connection: Connection) -> None:
        self._connection: Final = connection
        self._messages: Final = connection.collection(connection.messages)
        self._random: Final = random.Random()  # noqa: S311 -- spreads out who comes back when
        self._is_open: Final = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.listener: Listener | None = None
        self.topics: frozenset[bytes] = frozenset()

    async def start(self) -> None:
        """Return when messages are heard; raises ``StoreUnavailableError`` if that takes too long."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_listening())
        try:
            async with asyncio.timeout(self._connection.options.timeout):
                await self._is_open.wait()
        except TimeoutError as problem:
            raise StoreUnavailableError(self._connection.name, "its change stream could not be opened") from problem

    async def _keep_listening(self) -> None:
        pause = FIRST_PAUSE
        was_open = False
        while True:
            try:
                async with await self._open() as stream:
                    self._is_open.set()
                    pause = FIRST_PAUSE
                    if was_open and self.listener is not None:
                        self.listener.take_loss()  # it begins with what comes now: what was sent meanwhile is lost
                    was_open = True
                    await self._hear(stream)
            except TROUBLE:  # whoever writes or reads meets it too, and reports it
                self._is_open.clear()
            await asyncio.sleep(self._random.uniform(pause / 2, pause))
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _open(self) -> Stream:
        async with asyncio.timeout(self._connection.options.timeout):
            return await self._messages.watch(_INSERTED, max_await_time_ms=int(QUIET * 1000))

    async def _hear(self, stream: Stream) -> None:
        """Hand over what arrives. A connection that says nothing for too long is broken, whatever it looks like."""
        patience = QUIET + self._connection.options.timeout
        while True:
            async with asyncio.timeout(patience):
                change = await stream.try_next()
            if change is not None and self.listener is not None:
                message = change["fullDocument"]
                if message["topic"] in self.topics:
                    self.listener.take(message["data"])

    async def aclose(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
