"""Messages from etcd: one stream of watches for each handle, which goes on where it broke off."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, final

import aiohttp
import msgspec
from msgspec import Struct

from standfast.errors import StoreError, StoreUnavailableError
from standfast.stores.etcd.gateway import EtcdHeader, KeyValue, RefusedError
from standfast.stores.remote.connection import ConnectBackoff

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.stores.etcd.gateway import EtcdConnection
    from standfast.stores.etcd.records import EtcdKeys
    from standfast.stores.remote.server import Listener


class _Event(Struct, frozen=True):
    kv: KeyValue
    type: str = "PUT"


class _Result(Struct, frozen=True):
    header: EtcdHeader = EtcdHeader()
    watch_id: int = 0
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    events: list[_Event] = []


class _WatchReply(Struct, frozen=True):
    result: _Result | None = None


_replies: Final = msgspec.json.Decoder(_WatchReply, strict=False)
_encode: Final = msgspec.json.Encoder().encode
_BROKEN: Final = (aiohttp.ClientError, TimeoutError, OSError, StoreError, RefusedError, msgspec.DecodeError)


class _Topic:
    """A watch: where it goes on, and whether the member at hand has it."""

    __slots__ = ("is_confirmed", "number", "start")

    def __init__(self, number: int) -> None:
        self.number, self.start, self.is_confirmed = number, 0, False


@final
class EtcdSubscriber:
    """The watches of one handle. The stream is opened when there is something to watch.

    A watch begins with the revision after the last one that was seen, also at another member, so nothing is lost as
    long as the history is there. If it is not, the listener is told that something may have been lost.
    """

    def __init__(self, connection: EtcdConnection, keys: EtcdKeys) -> None:
        self._connection, self._keys = connection, keys
        self._backoff: Final = ConnectBackoff()
        self._topics: Final[dict[bytes, _Topic]] = {}
        self._numbers: Final[dict[int, bytes]] = {}
        self._last = 0
        self._stream: aiohttp.ClientWebSocketResponse | None = None
        self._confirmed: Final = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.listener: Listener | None = None

    async def follow(self, topics: frozenset[bytes]) -> None:
        """Watch just these; return when the cluster does.

        Raises:
            StoreUnavailableError: That takes too long.
        """
        for topic in self._topics.keys() - topics:
            await self._send("cancel_request", {"watch_id": self._drop(topic)})
        for topic in topics - self._topics.keys():
            self._add(topic)
            await self._create(topic)
        if self._task is None and topics:
            self._task = asyncio.get_running_loop().create_task(self._keep_watching())
        try:
            async with asyncio.timeout(self._connection.options.timeout):
                while not all(topic.is_confirmed for topic in self._topics.values()):
                    self._confirmed.clear()
                    await self._confirmed.wait()
        except TimeoutError as error:
            raise StoreUnavailableError(self._connection.name, "its keys could not be watched") from error

    def _add(self, topic: bytes) -> None:
        self._last += 1
        self._topics[topic] = _Topic(self._last)
        self._numbers[self._last] = topic

    def _drop(self, topic: bytes) -> int:
        number = self._topics.pop(topic).number
        del self._numbers[number]
        return number

    async def _create(self, topic: bytes) -> None:
        watch = self._topics[topic]
        request = {"key": self._keys.topic(topic), "watch_id": watch.number, "filters": ["NODELETE"]}
        await self._send("create_request", request | {"start_revision": watch.start} if watch.start else request)

    async def _send(self, kind: str, request: dict[str, Any]) -> None:
        if self._stream is not None:
            with contextlib.suppress(*_BROKEN):  # the reader notices, and begins anew with all of them
                await self._stream.send_str(_encode({kind: request}).decode())

    # --- the stream ------------------------------------------------------------------------------------------

    async def _keep_watching(self) -> None:
        while True:
            await self._backoff.wait()
            try:
                async with asyncio.timeout(self._connection.options.timeout):
                    stream = await self._connection.connect_watch()
                try:
                    self._stream = stream
                    for topic in tuple(self._topics):
                        await self._create(topic)
                    await self._hear(stream)
                finally:
                    self._stream = None
                    await stream.close()
            except _BROKEN:
                pass  # writes and reads meet it too, and report it
            for watch in self._topics.values():
                watch.is_confirmed = False
            self._backoff.failed()
            self._connection.move_on()

    async def _hear(self, stream: aiohttp.ClientWebSocketResponse) -> None:
        async for message in stream:
            if message.type is not aiohttp.WSMsgType.TEXT:
                return
            result = _replies.decode(message.data).result
            if result is None:  # the member has lost its leader, say
                return
            topic = self._numbers.get(result.watch_id)
            if topic is None:  # it was given up meanwhile
                continue
            if result.canceled:
                if not result.compact_revision:
                    return
                await self._begin_anew(topic)
            else:
                self._take(topic, result)

    async def _begin_anew(self, topic: bytes) -> None:
        """Watch from now on: the history since the last message is gone."""
        self._drop(topic)
        self._add(topic)
        await self._create(topic)
        if self.listener is not None:
            self.listener.take_loss()

    def _take(self, topic: bytes, result: _Result) -> None:
        watch = self._topics[topic]
        if result.created:
            self._backoff.succeeded()
            watch.is_confirmed, watch.start = True, watch.start or result.header.revision + 1
            self._confirmed.set()
        self._hand_over(event for event in result.events if event.type == "PUT")
        if result.events:
            watch.start = max(watch.start, result.events[-1].kv.mod_revision + 1)

    def _hand_over(self, events: Iterable[_Event]) -> None:
        for event in events:
            if self.listener is not None:
                self.listener.take(event.kv.value)

    async def aclose(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
