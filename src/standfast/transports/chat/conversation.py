"""What was written in a conversation, in order, so that all who are in it see the same wherever they are connected.

The text of a message and the id of the request that answers it lie here for a while. What that request tells lies
where every request's events do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct

from standfast.clock import later
from standfast.codec import Codec
from standfast.stores.protocol import Conflict, Put

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.clock import Instant
    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot, Watch

PAGE: Final = 100
"""How many messages are read at once."""

TOLD_AGAIN: Final = 200
"""How many messages somebody is told who comes without having read any."""


class Entry(Struct, frozen=True, omit_defaults=True):
    """One message.

    Attributes:
        text: What somebody wrote.
        message: Its id, made by whoever sent it.
        request: The request that answers it; empty if that was refused.
        problem: Why it was, as a problem for callers.
    """

    text: str
    message: str
    request: str = ""
    problem: dict[str, Any] | None = None


class HeadRecord(Struct, frozen=True):
    """The number of the latest message."""

    last: int


class SentRecord(Struct, frozen=True):
    """The number under which a message lies that may be sent again."""

    number: int


ENTRIES: Final[Codec[Entry]] = Codec(Entry, what="a message of a chat")
HEADS: Final[Codec[HeadRecord]] = Codec(HeadRecord, what="the head of a chat")
SENT: Final[Codec[SentRecord]] = Codec(SentRecord, what="a message that was sent")


@final
class Conversation:
    """The messages of one session in one flow.

    Args:
        scope: Where.
        tenant: Whose.
        flow: The kind of the flow.
        session: The session.
        keep: Seconds for which a message lies here.
    """

    def __init__(self, scope: Scope, tenant: str, flow: str, session: str, keep: float) -> None:
        self._scope, self._keep = scope, keep
        self._place: Final = (tenant, flow, session)
        self._head: Final = scope.key("chat", *self._place)
        self._said: Final = scope.key("chat-said", *self._place)

    async def add(self, entry: Entry) -> int:
        """Put a message at the end and return its number. One that lies here already, by its id, stays as it is."""
        sent = self._scope.key("chat-sent", *self._place, entry.message)
        while True:
            seen = await self._scope.read(self._head, sent)
            if entry.request and (found := seen.get(sent)) is not None:
                return SENT.decode(found.value).number
            number = self._next(seen)
            if not isinstance(await self._scope.commit(*self._changes(entry, number, sent, seen)), Conflict):
                return number

    def _changes(self, entry: Entry, number: int, sent: RecordKey, seen: Snapshot) -> list[Put]:
        gone = later(seen.at, self._keep)
        head = HEADS.encode_own(HeadRecord(number))
        changes = [
            Put(self._head, head, seen.version(self._head), expires_at=gone),
            Put(self._key(number), ENTRIES.encode_own(entry), expires_at=gone),
        ]
        if entry.request:  # one that was refused may be sent again, and is then another one
            changes.append(Put(sent, SENT.encode_own(SentRecord(number)), seen.version(sent), expires_at=gone))
        return changes

    def _next(self, seen: Snapshot) -> int:
        """Return the next number. The first one follows from the time, so that none is ever used again."""
        head = seen.get(self._head)
        return _first(seen.at) if head is None else HEADS.decode(head.value).last + 1

    def _key(self, number: int) -> RecordKey:
        return self._said.child(f"{number:015d}")

    def watch(self) -> Watch:
        """Subscribe to hints that there is a new message."""
        return self._scope.watch(self._said)

    async def beginning(self) -> int:
        """Return the number before the first message that somebody is told who has read none."""
        page = await self._scope.scan(*self._said.within(), limit=TOLD_AGAIN, reverse=True)
        return min((_number(key) for key in page.records), default=1) - 1

    async def after(self, number: int) -> AsyncIterator[tuple[int, Entry]]:
        """Yield the messages after a number, oldest first."""
        start, (_, end) = self._key(number).successor(), self._said.within()
        while True:
            page = await self._scope.scan(start, end, limit=PAGE)
            for key, record in page.records.items():
                yield _number(key), ENTRIES.decode(record.value)
            if page.more is None:
                return
            start = page.more


def _first(at: Instant) -> int:
    return at // 1_000


def _number(key: RecordKey) -> int:
    return int(key.parts[-1])
