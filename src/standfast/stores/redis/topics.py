"""Topics on Redis: who listens to what lies in each namespace, and each has its own generation.

A handle counts the generations that it meets as one: it grows whenever that of any namespace has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from standfast.ids import new_id
from standfast.keys import RecordKey
from standfast.stores.redis.scripts import AUDIENCE, SUBSCRIBE, pack
from standfast.stores.redis.trouble import NotSentError, ReplyLostError
from standfast.stores.remote.server import Audience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from standfast.stores.redis.calling import Calls
    from standfast.stores.redis.listening import Listening
    from standfast.stores.redis.names import Names
    from standfast.stores.redis.scripts import Argument
    from standfast.stores.remote.server import Message

LIVES_FOR: Final = 60_000_000
"""For how many microseconds a topic stays that nobody refreshes."""

_HANDLE: Final = 36


@final
class Topics:
    """What one handle listens to, and what it knows of others."""

    def __init__(self, calls: Calls, listening: Listening, names: Callable[[bytes], Names]) -> None:
        self._calls, self._listening, self._names = calls, listening, names
        self._handle: Final = new_id().encode()
        self._mine: dict[bytes, frozenset[bytes]] = {}
        self._generations: Final[dict[bytes, int]] = {}
        self._fetched: Final[dict[bytes, tuple[int, frozenset[bytes]]]] = {}
        self._epoch = 1

    # --- listening ---------------------------------------------------------------------------------------------

    async def subscribe(self, added: Iterable[bytes], removed: Iterable[bytes], all_topics: frozenset[bytes]) -> None:
        """Hear more and fewer channels, and let committers know."""
        mine, before = self._by_namespace(all_topics), self._mine
        self._mine = mine
        await self._listening.change(map(self.channel, added), map(self.channel, removed))
        gone = self._by_namespace(removed)
        for namespace in mine.keys() | before.keys() | gone.keys():
            topics = mine.get(namespace, frozenset())
            await self._tell(self._names(namespace), topics, gone.get(namespace, frozenset()) - topics)

    async def _tell(self, names: Names, topics: frozenset[bytes], removed: frozenset[bytes]) -> None:
        members = [self._handle + topic for topic in (*removed, *topics)]
        arguments: list[Argument] = [LIVES_FOR, len(removed), *members]
        await self._calls.run(SUBSCRIBE, names, (names.head, names.topics), arguments)

    async def leave(self) -> None:
        """Let committers know that this handle listens no more."""
        mine, self._mine = self._mine, {}
        for namespace, topics in mine.items():
            await self._tell(self._names(namespace), frozenset(), topics)

    def _by_namespace(self, topics: Iterable[bytes]) -> dict[bytes, frozenset[bytes]]:
        found: dict[bytes, set[bytes]] = {}
        for topic in topics:
            found.setdefault(_namespace(topic), set()).add(topic)
        return {namespace: frozenset(each) for namespace, each in found.items()}

    def channel(self, topic: bytes) -> bytes:
        """Return the channel of a topic."""
        return self._names(_namespace(topic)).channel + topic

    # --- sending -----------------------------------------------------------------------------------------------

    def meet(self, namespace: bytes, generation: int) -> int:
        """Take the generation that a write has met; return what it comes to for this handle."""
        if generation != self._generations.get(namespace, 0):
            self._generations[namespace] = generation
            self._epoch += 1
        return self._epoch

    async def audience(self) -> Audience:
        """Return the topics of all namespaces that this handle has written to."""
        epoch = self._epoch
        for namespace, generation in tuple(self._generations.items()):
            if self._fetched.get(namespace, (0, None))[0] != generation:
                names = self._names(namespace)
                answer = await self._calls.run(AUDIENCE, names, (names.head, names.topics), ())
                members: list[bytes] = answer[4]
                self._fetched[namespace] = (answer[3], frozenset([member[_HANDLE:] for member in members]))
        nobody: frozenset[bytes] = frozenset()
        return Audience(epoch, nobody.union(*(topics for _, topics in self._fetched.values())))

    async def send(self, messages: Sequence[Message]) -> None:
        """Publish hints."""
        for message in messages:
            channel = self.channel(message.topic)
            pool = await self._calls.routes.pool(self._names(_namespace(message.topic)).slot)
            try:
                await pool.call(pack(b"PUBLISH", channel, message.data))
            except (NotSentError, ReplyLostError):
                return  # a hint; the slow check finds what it was about

    def namespaces(self) -> Iterable[bytes]:
        """Return the namespaces that this handle listens to something in."""
        return tuple(self._mine)


def _namespace(topic: bytes) -> bytes:
    return RecordKey.from_encoded(topic).namespace
