"""Moving everything under a prefix.

There is no one place that all writes come by: each namespace has a head of its own, in a cluster on a server of its
own. So one key says of the whole store why it is frozen and above which version it goes on, and each head is marked. A
write looks at the head alone, and is refused if that is frozen. If the head was never marked it is created, then the
key is read, and then the head is marked in the write itself, unless it is frozen by then.

Whoever freezes sets the key first, and then marks every head there is. A head that was there before the key was read to
be open is there for all of that search; and one that comes later finds the key set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast, final

from msgspec import Struct

from standfast.keys import RecordKey
from standfast.stores.moving.paging import pages
from standfast.stores.moving.protocol import EXPORTED, OPEN, moved
from standfast.stores.redis.names import slot_of
from standfast.stores.redis.records import digits, expiry
from standfast.stores.redis.scripts import LOAD, MARK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from standfast.errors import StoreMovedError
    from standfast.stores.moving.paging import Scan
    from standfast.stores.protocol import Record
    from standfast.stores.redis.calling import Calls
    from standfast.stores.redis.connecting import Reply
    from standfast.stores.redis.names import Names
    from standfast.stores.redis.scripts import Argument

_END: Final = b"\x00\x01"
_SEARCHED: Final = 1_000
_FIELD: Final = 16
_FROZEN, _OPENED, _AS_IT_IS = "!", "+", ""


class Notice(Struct, frozen=True):
    """What is said of the whole store."""

    reason: int = OPEN
    floor: int = 0


@final
class RedisMoving:
    """Everything under one prefix."""

    def __init__(self, calls: Calls, prefix: str, names: Callable[[bytes], Names], scan: Scan) -> None:
        self._calls, self._names, self._scan = calls, names, scan
        self._key: Final = f"{prefix}:store".encode()
        self._head: Final = (f"{{{prefix}:".encode(), b"}:head")

    # --- the store -----------------------------------------------------------------------------------------------

    async def notice(self) -> Notice:
        """Read what is said of the whole store."""
        found = await self._ask("GET", self._key)
        if found is None:
            return Notice()
        text = cast("bytes", found)
        return Notice(int(text[:_FIELD]), int(text[_FIELD:]))

    async def _tell(self, notice: Notice) -> None:
        await self._ask("SET", self._key, digits(notice.reason) + digits(notice.floor))

    async def _ask(self, *command: Argument) -> Reply:
        pool = await self._calls.routes.pool(slot_of(self._key))
        answer = await self._calls.ask(pool, *command)
        if isinstance(answer, Exception):
            raise self._calls.refused(answer)
        return answer

    async def refusal(self, name: str) -> StoreMovedError:
        """Return the error for a write to a frozen namespace."""
        return moved(name, (await self.notice()).reason or EXPORTED)

    # --- all namespaces ------------------------------------------------------------------------------------------

    async def _namespaces(self) -> list[Names]:
        """Find every namespace that has a head, on every server; keys of others are passed over."""
        first, last = self._head
        found: set[bytes] = set()
        for pool in await self._calls.routes.pools():
            cursor: Argument = b"0"
            while True:
                answer = await self._calls.ask(pool, "SCAN", cursor, "MATCH", first + b"*" + last, "COUNT", _SEARCHED)
                if isinstance(answer, Exception):
                    raise self._calls.refused(answer)
                cursor, keys = cast("tuple[bytes, list[bytes]]", answer)
                found.update(key[len(first) : -len(last)] + _END for key in keys)
                if cursor == b"0":
                    break
        return [self._names(namespace) for namespace in sorted(found) if namespace != _END]

    async def _mark(self, mark: str, least: int = 0) -> None:
        for names in await self._namespaces():
            await self._calls.run(MARK, names, (names.head,), (mark, least), replicated=True)

    async def frozen(self) -> int:
        """Return why it is frozen."""
        return (await self.notice()).reason

    async def freeze(self, reason: int) -> None:
        """Refuse writes, in every namespace."""
        notice = await self.notice()
        await self._tell(Notice(notice.reason or reason, notice.floor))
        await self._mark(_FROZEN)

    async def thaw(self) -> None:
        """Take writes again."""
        await self._tell(Notice(OPEN, (await self.notice()).floor))
        await self._mark(_OPENED)

    async def last(self) -> int:
        """Return the highest of the last versions of all namespaces."""
        last = (await self.notice()).floor
        for names in await self._namespaces():
            last = max(last, (await self._calls.run(MARK, names, (names.head,), (_AS_IT_IS, 0)))[2])
        return last

    async def lift(self, version: int) -> None:
        """Go on above a version, also in namespaces to come."""
        notice = await self.notice()
        await self._tell(Notice(notice.reason, max(notice.floor, version)))
        await self._mark(_AS_IT_IS, version)

    async def dump(self) -> AsyncIterator[Sequence[Record]]:
        """Return all records, one namespace after the other."""
        for names in await self._namespaces():
            start = RecordKey.from_encoded(names.namespace)
            async for page in pages(self._scan, *start.within()):
                yield page

    async def put(self, records: Sequence[Record]) -> None:
        """Write records as they are."""
        by_namespace: dict[bytes, list[Argument]] = {}
        for record in records:
            fields = (record.key, digits(record.version), expiry(record.expires_at), record.value)
            by_namespace.setdefault(record.key.namespace, []).extend(fields)
        for namespace, arguments in by_namespace.items():
            names = self._names(namespace)
            keys = (names.head, names.records, names.order, names.expiries)
            await self._calls.run(LOAD, names, keys, arguments, replicated=True)
