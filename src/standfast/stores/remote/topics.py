"""Topics: which hints travel over the network, so that a commit that nobody waits for sends none.

A handle that has watches tells the server which *topics* it listens to: prefixes of keys. A committer knows all topics
that anyone listens to, and sends to just those that cover a key it changed or woke. Every answer to a write carries
the generation of the list; when it has moved on, the committer fetches the list and sends what it had left out.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, final

import msgspec

from standfast.errors import StandfastError
from standfast.keys import RecordKey
from standfast.stores.protocol import Wake
from standfast.stores.remote.server import Audience, Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SIBLINGS: Final = 3
"""With this many topics below one key, a handle listens to that key instead: one awaited run after another."""

_SHORTEST: Final = 3
"""A topic is not widened beyond the kind of a record: namespace, tenant, kind."""

MOST_HINTS: Final = 100
LONGEST_MESSAGE: Final = 5_500
"""A message with more hints, or more bytes, says only: look at everything. As text it fits into 8,000 characters."""


@final
class Interests:
    """What one handle listens to: what its watches want, widened a little, so that it changes seldom."""

    __slots__ = ("_topics", "_wanted")

    def __init__(self) -> None:
        self._wanted: Final[Counter[RecordKey]] = Counter()
        self._topics: Final[set[RecordKey]] = set()

    @property
    def topics(self) -> frozenset[bytes]:
        """The topics to listen to."""
        return frozenset(self._topics)

    def want(self, prefixes: Iterable[RecordKey]) -> bool:
        """Want hints about ``prefixes``; tell whether that needs another topic."""
        prefixes = tuple(prefixes)
        self._wanted.update(prefixes)
        added = [prefix for prefix in prefixes if not self._is_covered(prefix)]
        self._topics.update(map(self._widened, added))
        return bool(added)

    def _is_covered(self, prefix: RecordKey) -> bool:
        return any(prefix.startswith(topic) for topic in self._topics)

    def _widened(self, prefix: RecordKey) -> RecordKey:
        parts = prefix.parts
        if len(parts) <= _SHORTEST:
            return prefix
        parent = RecordKey(*parts[:-1])
        siblings = sum(1 for topic in self._topics if topic != parent and topic.startswith(parent))
        return parent if siblings >= SIBLINGS else prefix

    def let_go(self, prefixes: Iterable[RecordKey]) -> None:
        """Want hints about ``prefixes`` once less; topics stay until :meth:`tidy`."""
        self._wanted.subtract(prefixes)

    def tidy(self) -> bool:
        """Drop the topics that nobody wants any more; tell whether there were any."""
        for each in [each for each, count in self._wanted.items() if count <= 0]:
            del self._wanted[each]
        unwanted = {topic for topic in self._topics if not any(each.startswith(topic) for each in self._wanted)}
        narrow = {each for each in self._topics if any(each != wide and each.startswith(wide) for wide in self._topics)}
        self._topics.difference_update(unwanted | narrow)
        return bool(unwanted | narrow)


@final
class Addressing:
    """Which topics anyone listens to, as a committer knows it."""

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

    def messages(
        self, changed: Sequence[RecordKey], wakes: Sequence[Wake], origin: str, among: frozenset[bytes] | None = None
    ) -> tuple[Message, ...]:
        """Return what to send for a commit, to the topics that cover it (and are ``among`` these)."""
        if not self._lengths:
            return ()
        found: dict[bytes, list[Wake]] = {}
        for key in changed:
            self._address(Wake(key), found)
        for wake in wakes:
            self._address(wake, found)
        return tuple(
            [
                Message(topic, encode_message(origin, hints))
                for topic, hints in found.items()
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


def encode_message(origin: str, hints: Sequence[Wake]) -> bytes:
    """Return hints as bytes, with who sent them; without the hints if they are too many to be told apart."""
    if len(hints) <= MOST_HINTS:
        encoded = msgspec.msgpack.encode(
            (origin, [(bytes(hint.to), hint.about and bytes(hint.about)) for hint in hints])
        )
        if len(encoded) <= LONGEST_MESSAGE:
            return encoded
    return msgspec.msgpack.encode((origin, None))


_decoder: Final = msgspec.msgpack.Decoder(tuple[str, list[tuple[bytes, bytes | None]] | None])


def decode_message(data: bytes) -> tuple[str, tuple[Wake, ...] | None]:
    """Return who sent a message, and its hints; None: look at everything. So does what cannot be read."""
    try:
        origin, raw = _decoder.decode(data)
        return origin, None if raw is None else tuple([_hint(*each) for each in raw])
    except (msgspec.DecodeError, StandfastError, ValueError):
        return "", None


def _hint(to: bytes, about: bytes | None) -> Wake:
    return Wake(RecordKey.from_encoded(to), None if about is None else RecordKey.from_encoded(about))
