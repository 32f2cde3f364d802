"""Words for those who wait or run elsewhere: a record that says why to stop, and a hint for the process to look.

A word is for one entry in a line, never for a session or a key, so that it cannot reach whoever comes next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

from standfast.clock import later
from standfast.codec import Codec
from standfast.flows.arbiters.protocol import MOST_HANDED_OVER, Stop
from standfast.stores.protocol import Decision, Put, Wake

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.keys import RecordKey
    from standfast.space import Space
    from standfast.stores.protocol import Snapshot, Watch

KEPT_FOR: Final = 3_600.0
"""Seconds that a word stays: longer than a process sleeps that is still to find it."""

MOST_READ: Final = 100
"""The most words that are read at once."""

STOPS: Final[Codec[Stop]] = Codec(Stop, what="a word to stop")


class Followed(Struct, frozen=True):
    """The requests that one has superseded, the oldest first."""

    ids: tuple[str, ...] = ()


FOLLOWED: Final[Codec[Followed]] = Codec(Followed, what="the requests that were superseded")


@final
class Words:
    """The words of one space."""

    def __init__(self, space: Space) -> None:
        self._space: Final = space
        self._root: Final = space.key("stop")

    def watch(self) -> Watch:
        """Return what hears of words for this process."""
        return self._space.watch(self._of_process(self._space.presence_name))

    def entries(self, about: Iterable[RecordKey]) -> list[str]:
        """Return for which entries there are words, by the keys that a hint is about."""
        return [key.parts[-1] for key in about if key.startswith(self._root)]

    async def leave(self, entry_id: str, why: Stop) -> None:
        """Leave a word for an entry, and wake its process. The first word counts."""
        key, opening = self._key(entry_id), entry_id.rpartition(":")[0]

        def decide(seen: Snapshot) -> Decision[None]:
            wake = (Wake(self._of_process(opening), key),) if opening else ()
            if seen.get(key) is not None:
                return Decision(None, wake=wake)
            put = Put(key, STOPS.encode(why), expires_at=later(seen.at, KEPT_FOR))
            return Decision(None, (put,), wake=wake)

        await self._space.update([key], decide)

    async def read(self, entries: Iterable[str]) -> dict[str, Stop]:
        """Return the words that there are for these entries."""
        wanted, found, most = list(entries), dict[str, Stop](), self._space.at_most(MOST_READ)
        for start in range(0, len(wanted), most):
            keys = {self._key(each): each for each in wanted[start : start + most]}
            seen = await self._space.read(*keys)
            found |= {keys[key]: STOPS.decode(record.value) for key, record in seen.records.items()}
        return found

    async def note_followed(self, request_id: str, ids: tuple[str, ...]) -> None:
        """Note whom a request supersedes: for whichever process drives it, and for whoever supersedes it in turn."""
        key = self._space.key("superseded", request_id)

        def decide(seen: Snapshot) -> Decision[None]:
            before = seen.get(key)
            known = () if before is None else FOLLOWED.decode(before.value).ids
            value = FOLLOWED.encode(Followed(tuple(dict.fromkeys((*known, *ids)))[-MOST_HANDED_OVER:]))
            put = Put(key, value, seen.version(key), expires_at=later(seen.at, KEPT_FOR))
            return Decision(None, (put,))

        await self._space.update([key], decide)

    async def followed(self, *requests: str) -> dict[str, tuple[str, ...]]:
        """Return whom each of these requests has superseded, if it has."""
        found, most = dict[str, tuple[str, ...]](), self._space.at_most(MOST_READ)
        for start in range(0, len(requests), most):
            keys = {self._space.key("superseded", each): each for each in requests[start : start + most]}
            seen = await self._space.read(*keys)
            found |= {keys[key]: FOLLOWED.decode(record.value).ids for key, record in seen.records.items()}
        return found

    def _key(self, entry_id: str) -> RecordKey:
        return self._root.child(entry_id)

    def _of_process(self, opening: str) -> RecordKey:
        return self._space.key("stops", opening)
