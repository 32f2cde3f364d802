"""Listening: one connection for what the server publishes, watched by pings and opened again when it breaks."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, final

from standfast.errors import StoreError, StoreUnavailableError
from standfast.stores.redis.connecting import Pauses, hang_up
from standfast.stores.redis.scripts import pack
from standfast.stores.redis.trouble import LOSSES, REFUSALS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.stores.redis.connecting import Dialer, Line, Reply
    from standfast.stores.redis.routing import Routes
    from standfast.stores.remote.server import Listener

PING_EVERY: Final = 10.0
_PARTS: Final = 3  # of what is published: the kind, the channel, the data


@final
class Listening:
    """Hears what is published to some channels, for as long as the handle is open."""

    def __init__(self, dialer: Dialer, routes: Routes) -> None:
        self._dialer, self._routes = dialer, routes
        self._listener: Listener | None = None
        self._channels: Final[set[bytes]] = set()
        self._confirmed: Final[set[bytes]] = set()
        self._line: Line | None = None
        self._moved: Final = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._pauses: Final = Pauses()
        self._heard_at = 0.0
        self._was_cut = False

    def listen(self, listener: Listener) -> None:
        """Hand everything to ``listener``. The connection is opened now: the first who waits shall not wait for it."""
        self._listener = listener
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def change(self, added: Iterable[bytes], removed: Iterable[bytes]) -> None:
        """Hear more channels and fewer; returns when the server has confirmed it."""
        added, removed = list(added), list(removed)
        self._channels.update(added)
        self._channels.difference_update(removed)
        if self._line is not None:
            await self._send(self._line, added, removed)
        await self._until_confirmed()

    async def _send(self, line: Line, added: list[bytes], removed: list[bytes]) -> None:
        parts = [pack(b"SUBSCRIBE", *added)] if added else []
        parts += [pack(b"UNSUBSCRIBE", *removed)] if removed else []
        if parts:
            with contextlib.suppress(*LOSSES):  # then it is opened again, with all channels
                await line.send(b"".join(parts))

    async def _until_confirmed(self) -> None:
        try:
            async with asyncio.timeout(self._dialer.timeout), self._moved:
                await self._moved.wait_for(lambda: self._channels <= self._confirmed)
        except TimeoutError:
            raise StoreUnavailableError(self._dialer.name, "it does not confirm what is listened to") from None

    # --- the connection ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._pauses.wait()
            try:
                self._line = await self._dialer.dial(*await self._routes.place())
                await self._send(self._line, list(self._channels), [])
                await self._hear(self._line)
            except (*REFUSALS, *LOSSES, StoreError, TimeoutError):
                self._pauses.note(connected=False)
                self._was_cut = True
                await self._routes.look_again()
            finally:
                line, self._line = self._line, None
                self._confirmed.clear()
                if line is not None:
                    await hang_up(line)

    async def _hear(self, line: Line) -> None:
        """Hear messages until the connection breaks, or is silent although it was pinged."""
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        pinging = loop.create_task(self._ping(line))
        try:
            while True:
                message = await line.receive()
                self._heard_at = loop.time()
                self._pauses.note(connected=True)
                await self._take(message)
        finally:
            pinging.cancel()

    async def _ping(self, line: Line) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(*LOSSES):
            while True:
                await asyncio.sleep(PING_EVERY)
                asked_at = loop.time()
                await line.send(pack(b"PING"))
                await asyncio.sleep(self._dialer.timeout)
                if self._heard_at < asked_at:
                    break
        await hang_up(line)  # whoever reads from it notices

    async def _take(self, message: Reply) -> None:
        kind = message[0] if len(message) == _PARTS else b""
        if kind == b"message" and self._listener is not None:
            self._listener.take(message[2])
        elif kind in {b"subscribe", b"unsubscribe"}:
            async with self._moved:
                (self._confirmed.add if kind == b"subscribe" else self._confirmed.discard)(message[1])
                self._moved.notify_all()
            self._tell_loss()

    def _tell_loss(self) -> None:
        """After a cut, once everything is listened to again: messages may have been missed meanwhile."""
        if self._was_cut and self._channels <= self._confirmed and self._listener is not None:
            self._was_cut = False
            self._listener.take_loss()

    async def aclose(self) -> None:
        """Hear nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
