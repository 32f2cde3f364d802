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
from standfast.stores.etcd.records import read_message
from standfast.stores.remote.connection import ConnectBackoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.keys import RecordKey
    from standfast.stores.etcd.gateway import EtcdConnection
    from standfast.stores.etcd.records import EtcdKeys, KnownRecord
    from standfast.stores.remote.server import Listener


class _Event(Struct, frozen=True):
    kv: KeyValue


class _Result(Struct, frozen=True):
    header: EtcdHeader = EtcdHeader()
    watch_id: int = 0
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    events: list[_Event] = []


class _WatchReply(Struct, frozen=True):
    result: _Result | None = None


WATCH: Final = "/v3/watch"
_replies: Final = msgspec.json.Decoder(_WatchReply, strict=False)
_encode: Final = msgspec.json.Encoder().encode
_BROKEN: Final = (aiohttp.ClientError, TimeoutError, OSError, StoreError, RefusedError, msgspec.DecodeError)


@final
class EtcdSubscriber:
    """The watches of one handle. The stream is opened when there is something to watch, and anew for other topics.

    Each watch begins with the revision after the last one that was seen, also at another member, so nothing is lost as
    long as the history is there. If it is not, the listener is told that something may have been lost. ``learn`` is
    called with what pins down each record that a message shows.
    """

    def __init__(
        self, connection: EtcdConnection, keys: EtcdKeys, learn: Callable[[RecordKey, KnownRecord], None]
    ) -> None:
        self._connection, self._keys, self._learn = connection, keys, learn
        self._backoff: Final = ConnectBackoff()
        self._starts: Final[dict[bytes, int]] = {}
        self._stream: aiohttp.ClientResponse | None = None
        self._waiting: set[bytes] = set()
        self._changed: Final = asyncio.Event()
        self._confirmed: Final = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.listener: Listener | None = None

    async def follow(self, topics: frozenset[bytes]) -> None:
        """Watch just these; return when the cluster does.

        Raises:
            StoreUnavailableError: That takes too long.
        """
        added = topics - self._starts.keys()
        for topic in self._starts.keys() - topics:
            del self._starts[topic]
        if added:
            self._starts.update(dict.fromkeys(added, 0))
            self._confirmed.clear()
            self._changed.set()
        if self._task is None and topics:
            self._task = asyncio.get_running_loop().create_task(self._keep_watching())
        if not topics:
            return
        try:
            async with asyncio.timeout(self._connection.options.timeout):
                await self._confirmed.wait()
        except TimeoutError as error:
            raise StoreUnavailableError(self._connection.name, "its keys could not be watched") from error

    # --- the stream ------------------------------------------------------------------------------------------

    async def _keep_watching(self) -> None:
        while True:
            self._changed.clear()
            streaming = asyncio.create_task(self._watch())
            changing = asyncio.create_task(self._changed.wait())
            try:
                await asyncio.wait({streaming, changing}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (streaming, changing):
                    task.cancel()
                await asyncio.wait({streaming, changing})
            if not self._changed.is_set():
                self._confirmed.clear()
                self._backoff.failed()
                self._connection.move_on()
                await self._backoff.wait()

    async def _watch(self) -> None:
        """Watch all topics until the stream breaks: writes and reads meet that too, and report it."""
        topics = tuple(self._starts.items())
        requests: list[bytes] = []
        for number, (topic, start) in enumerate(topics, 1):
            request: dict[str, Any] = {"key": self._keys.topic(topic), "watch_id": number, "filters": ["NODELETE"]}
            if start:
                request["start_revision"] = start
            requests.append(_encode({"create_request": request}))
        self._waiting = set(self._starts)
        try:
            async with asyncio.timeout(self._connection.options.timeout):
                self._stream = await self._connection.open_stream(WATCH, b"\n".join(requests))
            await self._listen(self._stream, [topic for topic, _ in topics])
        except _BROKEN:
            return
        finally:
            if self._stream is not None:
                self._stream.close()
                self._stream = None

    async def _listen(self, stream: aiohttp.ClientResponse, topics: list[bytes]) -> None:
        left = b""
        async for chunk in stream.content.iter_any():
            *lines, left = (left + chunk).split(b"\n")
            for line in lines:
                result = _replies.decode(line).result
                if result is None or not 0 < result.watch_id <= len(topics):  # the member has lost its leader, say
                    return
                topic = topics[result.watch_id - 1]
                if result.canceled:
                    if result.compact_revision:
                        self._lose(topic)
                    return
                self._take(topic, result)

    def _lose(self, topic: bytes) -> None:
        """Watch from now on: the history since the last message is gone."""
        self._changed.set()
        if topic in self._starts:
            self._starts[topic] = 0
        if self.listener is not None:
            self.listener.take_loss()

    def _take(self, topic: bytes, result: _Result) -> None:
        if topic not in self._starts:  # it was given up meanwhile
            return
        if result.created:
            self._starts[topic] = self._starts[topic] or result.header.revision + 1
            self._waiting.discard(topic)
            if not self._waiting and not self._changed.is_set():
                self._backoff.succeeded()
                self._confirmed.set()
        for event in result.events:
            self._starts[topic] = event.kv.mod_revision + 1
            self._connection.note_revision(event.kv.mod_revision)
            if self.listener is not None:
                data, shown, gone = read_message(event.kv)
                for each in shown:
                    self._learn(each.record.key, each.known)
                self.listener.take(data, [(each.to, each.record) for each in shown], gone)

    async def aclose(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
