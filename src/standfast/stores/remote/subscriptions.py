"""The subscriptions of one handle on a server: what it wants to be notified of, and what it sends to others.

Notifications come from the handle itself, from the server, and from a poll that finds what got lost. They travel by
*topic*, a prefix of keys, so that a commit that no handle waits for sends none.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from standfast.errors import StandfastError, StoreError
from standfast.ids import new_id
from standfast.keys import RecordKey
from standfast.stores.alternatives import changed_in
from standfast.stores.protocol import Record, Wake
from standfast.stores.remote.server import Audience, Message
from standfast.stores.watch import LocalSubscriptions

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from standfast.stores.backend import Applied, Subscriber
    from standfast.stores.protocol import Alternative
    from standfast.stores.remote.server import DatabaseServer, Row


# --- topics: what is sent over the network, and to which handles ---------------------------------------------------
#
# A handle that has watches tells the server which *topics* it listens to: prefixes of keys. A committer knows all
# topics that any handle listens to, and sends to just those that cover a key it changed or woke. Every answer to a
# write carries the generation of the list; when it has moved on, the committer fetches the list and sends what it had
# left out.

SIBLINGS: Final = 3
"""With this many topics below one key, a handle listens to that key instead: one awaited run after another."""

_SHORTEST: Final = 3
"""A topic is not widened beyond the kind of a record: namespace, tenant, kind."""

MOST_WAKES: Final = 100
LONGEST_MESSAGE: Final = 5_500
"""A message with more keys, or more bytes, says only: anything may have changed. As text it has 8,000 characters."""


@final
class Interests:
    """What one handle listens to: what its watches want, widened a little, so that it changes seldom."""

    __slots__ = ("_topics", "_wanted")

    def __init__(self) -> None:
        self._wanted: Final[Counter[RecordKey]] = Counter()
        self._topics: Final[set[RecordKey]] = set()

    @property
    def topics(self) -> frozenset[bytes]:
        """The topics to subscribe to."""
        return frozenset(self._topics)

    def want(self, prefixes: Iterable[RecordKey]) -> bool:
        """Want notifications of ``prefixes``; return True if that needs another topic."""
        prefixes = tuple(prefixes)
        self._wanted.update(prefixes)
        added = [prefix for prefix in prefixes if not any(prefix.startswith(topic) for topic in self._topics)]
        self._topics.update(map(self._widened, added))
        return bool(added)

    def _widened(self, prefix: RecordKey) -> RecordKey:
        parts = prefix.parts
        if len(parts) <= _SHORTEST:
            return prefix
        parent = RecordKey(*parts[:-1])
        siblings = sum(1 for topic in self._topics if topic != parent and topic.startswith(parent))
        return parent if siblings >= SIBLINGS else prefix

    def let_go(self, prefixes: Iterable[RecordKey]) -> None:
        """Want notifications of ``prefixes`` once less; topics stay until :meth:`tidy`."""
        self._wanted.subtract(prefixes)

    def tidy(self) -> bool:
        """Drop the topics that are not wanted any more; return True if there were any."""
        for each in [each for each, count in self._wanted.items() if count <= 0]:
            del self._wanted[each]
        unwanted = {topic for topic in self._topics if not any(each.startswith(topic) for each in self._wanted)}
        narrow = {each for each in self._topics if any(each != wide and each.startswith(wide) for wide in self._topics)}
        self._topics.difference_update(unwanted | narrow)
        return bool(unwanted | narrow)


@final
class KnownTopics:
    """The topics that any handle listens to, as a committer knows them."""

    __slots__ = ("_lengths", "generation", "topics")

    def __init__(self) -> None:
        self.generation = -1
        self.topics: frozenset[bytes] = frozenset()
        self._lengths: tuple[int, ...] = ()

    def learn(self, audience: Audience) -> frozenset[bytes]:
        """Take a newer list; return the topics that were not on the old one."""
        added = audience.topics - self.topics
        self.generation, self.topics = audience.generation, audience.topics
        self._lengths = tuple(sorted({len(topic) for topic in audience.topics}))
        return added

    def reaches(self, changed: Iterable[Sequence[RecordKey]]) -> bool:
        """Return True if any topic covers one of the keys."""
        topics, lengths = self.topics, self._lengths
        for keys in changed:
            for key in keys:
                for length in lengths:
                    if key[:length] in topics:
                        return True
        return False

    def messages(
        self,
        changed: Sequence[RecordKey],
        wakes: Sequence[Wake],
        origin: str,
        among: frozenset[bytes] | None = None,
        rows: Sequence[Row] = (),
        deletes: Sequence[RecordKey] = (),
    ) -> tuple[Message, ...]:
        """Return what to send for a commit, to the topics that cover it (and are ``among`` these)."""
        if not self._lengths:
            return ()
        found: dict[bytes, list[Wake]] = {}
        for key in changed:
            for length in self._lengths:  # as _address does: mostly no topic covers a key that is written
                if key[:length] in self.topics:
                    self._address(Wake(key), found)
                    break
        for wake in wakes:
            self._address(wake, found)
        if not found:
            return ()
        return tuple(
            [
                _message(topic, origin, wakes, rows, deletes)
                for topic, wakes in found.items()
                if among is None or topic in among
            ]
        )

    def _address(self, wake: Wake, found: dict[bytes, list[Wake]]) -> None:
        for length in self._lengths:
            if length > len(wake.to):
                return
            topic = bytes(wake.to[:length])
            if topic in self.topics:
                found.setdefault(topic, []).append(wake)


def _message(
    topic: bytes, origin: str, wakes: Sequence[Wake], rows: Sequence[Row], deletes: Sequence[RecordKey]
) -> Message:
    """Return what is sent to a topic, with the rows that wakes show and what they show to be gone."""
    data = encode_message(origin, wakes)
    shown: list[tuple[RecordKey, Row]] = []
    gone: list[RecordKey] = []
    for wake in wakes:
        if wake.shows and wake.about is not None:  # all that it names, or nothing
            named = (wake.about, *wake.shows)
            by_key = {row.key: row for row in rows if row.key in named}
            deleted = [key for key in deletes if key in named]
            is_short = sum([len(row.value) for row in by_key.values()]) <= LONGEST_MOVED
            if len(by_key) + len(deleted) == len(named) and is_short:
                shown += [(wake.to, by_key[key]) for key in named if key in by_key]
                gone += deleted
    return Message(topic, data, tuple(shown), tuple(gone))


def encode_message(origin: str, wakes: Sequence[Wake]) -> bytes:
    """Return wakes as bytes, with the sender; without the wakes if they are too many for one message."""
    if len(wakes) <= MOST_WAKES:
        encoded = msgspec.msgpack.encode(
            (origin, [(bytes(wake.to), wake.about and bytes(wake.about)) for wake in wakes])
        )
        if len(encoded) <= LONGEST_MESSAGE:
            return encoded
    return msgspec.msgpack.encode((origin, None))


MOVED: Final = b"\x01"
"""What a message begins with that a server made of a moved record.

Then follow the sender (36 characters), the version of the record, the length of the inbox and that of the record's key
(16 digits each), the inbox, the key and the value. Without a version it came without the value, which was too long.
"""

LONGEST_MOVED: Final = 5_800
"""How many bytes inbox, key and value may have in a message. With its head, as text, it has 8,000 characters."""

_ORIGIN: Final = 36
_DIGITS: Final = 16
_VERSION: Final = len(MOVED) + _ORIGIN
_INBOX: Final = _VERSION + _DIGITS
_KEY: Final = _INBOX + _DIGITS
_MOVED_HEAD: Final = _KEY + _DIGITS


def _decode_moved(data: bytes) -> tuple[str, tuple[Wake, ...] | None]:
    version, inbox = int(data[_VERSION:_INBOX]), int(data[_INBOX:_KEY])
    key, key_starts = int(data[_KEY:_MOVED_HEAD]), _MOVED_HEAD + inbox
    to, about = data[_MOVED_HEAD:key_starts], RecordKey.from_encoded(data[key_starts : key_starts + key])
    moved = Record(about, data[key_starts + key :], version) if version else None
    origin = data[len(MOVED) : _VERSION].decode()
    return origin, (Wake(RecordKey.from_encoded(to), about, moved),)


_decoder: Final = msgspec.msgpack.Decoder(tuple[str, list[tuple[bytes, bytes | None]] | None])


def decode_message(data: bytes) -> tuple[str, tuple[Wake, ...] | None]:
    """Return the origin of a message, and what it notifies of; None: of anything, as for what cannot be read."""
    try:
        if data[:1] == MOVED:
            return _decode_moved(data)
        origin, raw = _decoder.decode(data)
        if raw is None:
            return origin, None
        read = RecordKey.from_encoded
        return origin, tuple([Wake(read(to), None if about is None else read(about)) for to, about in raw])
    except (msgspec.DecodeError, StandfastError, ValueError):
        return "", None


# --- the subscriptions of one handle: notified by the handle, by the server, and by polling ------------------------

REFRESH: Final = 15.0
"""How often, in seconds, a handle says again what it listens to; a server forgets it after a few times that."""

SUBSCRIBED_WITHIN: Final = 2.0
"""How long, in seconds, a watch waits until the server knows of it; after that it opens all the same, and polls."""

SLOW_CHECK: Final = 1.0
"""How many seconds a lost notification can go unnoticed."""

FIRST_POLL: Final = 0.015
POLL_GROWS: Final = 1.3
"""Where nothing is pushed: how soon to poll after something was found, and how that grows while nothing is.

From one change to the longest pause that is some sixteen polls in four seconds.
"""

FIRST_PAUSE: Final = 0.05
"""How long to wait, in seconds, before the server is told again what is listened to; it grows."""


@final
class RemoteSubscriptions:
    """The subscribers of one handle, and what notifies them."""

    def __init__(self, server: DatabaseServer, learn: Callable[[Sequence[Record], Sequence[RecordKey]], None]) -> None:
        self._server, self._learn = server, learn
        self.origin: Final = new_id()
        self._pushes: Final = server.capabilities.wakes == "push"
        self._loop: Final = asyncio.get_running_loop()
        self._subscriptions: Final = LocalSubscriptions()
        self._interests: Final = Interests()
        self._addressing: Final = KnownTopics()
        self._addressed: tuple[int, frozenset[bytes]] = (self._addressing.generation, frozenset())
        self._subscribers: Final[dict[object, Subscriber]] = {}
        self._told: frozenset[bytes] = frozenset()
        self._changed: Final = asyncio.Event()
        self._settled: Final = asyncio.Event()
        self._settled.set()
        self._seen: int | None = None
        self._poll = FIRST_POLL
        self._timer: asyncio.TimerHandle | None = None
        self._is_polling = False
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._subscribing: asyncio.Task[None] | None = None
        self._is_closed = False
        if self._pushes:
            server.listen(self)

    # --- listening -------------------------------------------------------------------------------------------

    def subscribe(self, prefixes: tuple[RecordKey, ...], subscriber: Subscriber) -> Callable[[], None]:
        """Notify ``subscriber`` of keys at or below ``prefixes`` until the returned function is called."""
        token = object()
        forget = self._subscriptions.subscribe(prefixes, subscriber)
        self._subscribers[token] = subscriber
        if self._pushes and self._interests.want(prefixes):
            self._settled.clear()
            self._changed.set()
            if self._subscribing is None:
                self._subscribing = self._loop.create_task(self._subscribe())
        if self._timer is None:
            self._poll = FIRST_POLL
            if not self._is_polling:  # it goes on by itself
                self._plan_poll()
        return functools.partial(self._forget, token, prefixes, forget)

    def _forget(self, token: object, prefixes: tuple[RecordKey, ...], forget: Callable[[], None]) -> None:
        forget()
        if self._subscribers.pop(token, None) is not None and self._pushes:
            self._interests.let_go(prefixes)
        if not self._subscribers:
            self._seen = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    async def until_subscribed(self) -> None:
        """Return when the server knows what is listened to, or soon in any case."""
        if self._settled.is_set():
            return
        try:
            async with asyncio.timeout(SUBSCRIBED_WITHIN):
                await self._settled.wait()
        except TimeoutError:
            return

    async def _subscribe(self) -> None:
        """Keep the server informed for as long as the handle is open."""
        pause = FIRST_PAUSE
        while not self._is_closed:
            topics = self._interests.topics
            self._changed.clear()
            try:
                await self._server.subscribe(topics - self._told, self._told - topics, topics)
            except StoreError:
                await asyncio.sleep(pause)
                pause = min(pause * 2, REFRESH)
                continue
            pause, self._told = FIRST_PAUSE, topics
            if not self._changed.is_set():
                self._settled.set()
            try:
                async with asyncio.timeout(REFRESH):
                    await self._changed.wait()
            except TimeoutError:
                self._interests.tidy()

    # --- what is received ---------------------------------------------------------------------------------------

    def take(self, data: bytes, shown: Sequence[tuple[RecordKey, Record]] = (), gone: Sequence[RecordKey] = ()) -> None:
        """Take a message that the server pushed. What it shows need not be read, and is known to the next commit."""
        origin, wakes = decode_message(data)
        is_own = origin == self.origin  # then the subscribers of this handle were notified already
        if shown and not is_own:
            self._learn([record for _, record in shown], gone)
            last = {to: record.key for to, record in shown}
            self._subscriptions.notify((), [Wake(to, last[to], record) for to, record in shown])
            told = {(to, record.key) for to, record in shown}
            wakes = wakes and tuple([wake for wake in wakes if (wake.to, wake.about) not in told])
        if wakes is None:
            self.take_loss()
        elif not is_own:
            self._subscriptions.notify((), wakes)

    def take_loss(self) -> None:
        """Let everyone look at everything."""
        for subscriber in tuple(self._subscribers.values()):
            subscriber.notify(None)

    def notify(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:
        """Tell the watches of this handle."""
        if self._subscriptions.by_prefix:
            self._subscriptions.notify(changed, wakes)
        self._poll = FIRST_POLL

    # --- what is sent ----------------------------------------------------------------------------------------

    def address(
        self, changed: Sequence[RecordKey], wakes: Sequence[Wake], rows: Sequence[Row], deletes: Sequence[RecordKey]
    ) -> tuple[Message, ...]:
        """Return the messages that a commit is to send, which writes ``rows`` and ``deletes``."""
        self._addressed = (self._addressing.generation, self._addressing.topics)
        return self._addressing.messages(changed, wakes, self.origin, None, rows, deletes) if self._pushes else ()

    def address_each(self, alternatives: Sequence[Alternative]) -> tuple[tuple[Message, ...], ...]:
        """Return the messages that a commit is to send for each of its alternatives; mostly there are none."""
        known = self._addressing
        self._addressed = (known.generation, known.topics)
        changed = [*map(changed_in, alternatives)]
        wakes = [each.wake for each in alternatives]
        if not self._pushes or (wakes.count(()) == len(wakes) and not known.reaches(changed)):
            return ((),) * len(wakes)
        return tuple([known.messages(*each, self.origin) for each in zip(changed, wakes, strict=True)])

    def note_generation(self, generation: int, applied: Applied) -> None:
        """Fetch the list of topics if it has moved on, and send what a commit has left out for not knowing it.

        What the commit knew counts, not what is known by now: an earlier one may have fetched the list meanwhile.
        """
        known_generation, known = self._addressed
        if self._pushes and generation != known_generation and not self._is_closed:
            self._own(self._catch_up(generation, applied, known))

    async def _catch_up(self, generation: int, applied: Applied, known: frozenset[bytes]) -> None:
        addressing = self._addressing
        with contextlib.suppress(StoreError):  # then polling finds it
            if generation != addressing.generation:
                addressing.learn(await self._server.audience())
            missed = addressing.messages(applied.changed, applied.wakes, self.origin, addressing.topics - known)
            if missed:
                await self._server.send(missed)

    # --- polling --------------------------------------------------------------------------------------

    def _plan_poll(self) -> None:
        seconds = SLOW_CHECK if self._pushes else self._poll
        self._timer = self._loop.call_later(seconds, self._begin_poll)

    def _begin_poll(self) -> None:
        self._timer, self._is_polling = None, True
        self._own(self._poll_once())

    async def _poll_once(self) -> None:
        try:
            mark = await self._server.mark()
        except StoreError:  # the next read raises it; here it only means: notify
            mark = -1
        finally:
            self._is_polling = False
        if mark != self._seen:  # the first time, too: it is not known what was written before
            self._poll = FIRST_POLL
            self.take_loss()
        else:
            self._poll = min(self._poll * POLL_GROWS, SLOW_CHECK)
        self._seen = mark if self._subscribers else None
        if self._subscribers and not self._is_closed:
            self._plan_poll()

    # --- life ------------------------------------------------------------------------------------------------

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Stop listening and sending."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = {*self._tasks, *([self._subscribing] if self._subscribing is not None else [])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
