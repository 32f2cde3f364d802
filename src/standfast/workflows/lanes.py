"""Lanes: ranges of an index whose keys end with a time and an id, read in the order of time and merged.

The index of runs and that of requests lie in the store as such lanes, one for each thing that a list can be asked for:
a status, a workflow, an action. A list is a merge of the lanes that are meant, so it costs what it shows.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypeAlias, final

from msgspec import Struct

from standfast.clock import Instant
from standfast.codec import Codec
from standfast.errors import InvalidArgumentError
from standfast.keys import RecordKey, decode_parts, encode_parts
from standfast.stores.protocol import Put

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence

    from standfast.scope import Scope

BATCH: Final = 50
"""How many entries are read together; the event loop is given back between two batches."""

PAGE: Final = 500
"""How many records of an index are read at once."""

COUNTED: Final = 1_000
"""How many entries are counted at once: their records hold next to nothing."""

MOST_SKIPPED: Final = 50_000
"""How many entries are passed over that are not meant, by their values, before a page ends."""

LAST: Final = Instant(10**16 - 1)
ALWAYS: Final = (Instant(0), LAST)

Position: TypeAlias = tuple[int, str]
"""Where an entry stands in a list: its time, and its id."""


# --- where a page ended ---------------------------------------------------------------------------------------------


def cursor_at(position: Position) -> str:
    """Return where the next page begins, as text."""
    return f"{position[0]}/{position[1]}"


def cursor_by_id(name: str) -> str:
    """Return the same where a list is in the order of ids."""
    return f"@{name}"


def position_of(after: str) -> Position | str:
    """Return where a page goes on: a position, or an id where a list is in the order of ids."""
    if after.startswith("@"):
        return after[1:]
    at, slash, name = after.partition("/")
    if not slash or not at.isdecimal() or int(at) > LAST:
        raise InvalidArgumentError("after", "give what the page before has as its next", f"{after!r:.100}")
    return int(at), name


# --- lanes, and their merge -----------------------------------------------------------------------------------------


@final
class _LaneReader:
    """One lane, read in order."""

    def __init__(self, scope: Scope, lane: RecordKey, times: tuple[Instant, Instant]) -> None:
        self._scope, self._lane = scope, lane
        self.fetched = 0  # how many entries were read last
        self.is_barren = False  # most of what was read last is not meant: read more at once
        self._start, self._end = self._at(times[0]), self._at(times[1])
        self.last: Position | None = None
        self.has_more = True

    def _at(self, at: int, name: str | None = None) -> RecordKey:
        rest = (f"{at:016d}",) if name is None else (f"{at:016d}", name)
        return RecordKey.from_encoded(self._lane + encode_parts(rest))

    def go_on(self, after: Position, *, newest_first: bool) -> None:
        """Begin behind a position."""
        at = self._at(*after)
        if newest_first:
            self._end = min(self._end, at)
        else:
            self._start = max(self._start, at.successor())

    async def fetch(
        self, many: int, takes: Callable[[bytes], bool] | None = None, *, newest_first: bool
    ) -> list[Position]:
        """Return the next positions, without those whose values are not taken."""
        if self._start >= self._end:
            self.has_more, self.fetched = False, 0
            return []
        page = await self._scope.scan(self._start, self._end, limit=many, reverse=newest_first)
        if page.more is None:
            self.has_more = False
        elif newest_first:
            self._end = page.more
        else:
            self._start = page.more
        self.fetched, records = len(page.records), page.records
        if records:
            self.last = position_in(self._lane, next(reversed(records)))
        if takes is not None:  # most of a page may be passed over: only what is taken is decoded
            return [position_in(self._lane, key) for key, record in records.items() if takes(record.value)]
        return [position_in(self._lane, key) for key in records]


def position_in(lane: RecordKey, key: RecordKey) -> Position:
    """Return the position that a key of a lane says."""
    at, name = decode_parts(key[len(lane) :])
    return int(at), name


@final
class LaneMerge:
    """The entries of several lanes, in the order of time.

    Args:
        scope: Where they lie.
        newest_first: Which way.
        after: The last position of the page before.
        takes: Returns False if the value of an entry says that it is not meant; then it is passed over.

    Attributes:
        stopped_at: Up to where entries were read, if too many were passed over to go on; None: on.
    """

    def __init__(
        self,
        scope: Scope,
        *,
        newest_first: bool,
        after: Position | None = None,
        takes: Callable[[bytes], bool] | None = None,
    ) -> None:
        self._scope, self._newest_first, self._after, self._takes = scope, newest_first, after, takes
        self._skipped = 0
        self.stopped_at: Position | None = None
        self._lanes: list[_LaneReader] = []
        self._waiting: list[Position] = []
        self._met: Final[set[Position]] = set()

    async def open(self, lanes: Sequence[RecordKey], times: tuple[Instant, Instant], many: int) -> None:
        """Read the beginning of each lane, as much as a page of ``many`` entries needs."""
        self._lanes = [_LaneReader(self._scope, lane, times) for lane in lanes]
        if self._after is not None:
            for each in self._lanes:
                each.go_on(self._after, newest_first=self._newest_first)
        first = max(2, min(PAGE, 2 * many // max(1, len(lanes)) + 1))
        fetched = await asyncio.gather(*(self._fetched(each, first) for each in self._lanes))
        self.add(position for some in fetched for position in some)

    async def _fetched(self, lane: _LaneReader, many: int) -> list[Position]:
        if (takes := self._takes) is None:
            return await lane.fetch(many, newest_first=self._newest_first)
        meant = await lane.fetch(PAGE if lane.is_barren else many, takes, newest_first=self._newest_first)
        lane.is_barren = 2 * len(meant) < lane.fetched
        self._skipped += lane.fetched - len(meant)
        await asyncio.sleep(0)
        return meant

    def add(self, found: Iterable[Position]) -> None:
        """Take entries in that were found elsewhere."""
        for position in found:
            if position not in self._met and (self._after is None or self._is_behind(position, self._after)):
                self._met.add(position)
                self._waiting.append(position)
        self._waiting.sort(reverse=not self._newest_first)  # the next ones are at the end

    def _is_behind(self, position: Position, other: Position) -> bool:
        return position < other if self._newest_first else position > other

    async def take(self, many: int) -> list[Position]:
        """Return the next positions, no more than ``many``; none: that was all, or it has stopped."""
        waiting = self._waiting
        while True:
            unread = [lane for lane in self._lanes if lane.has_more]
            if not unread:
                break
            behind = (max if self._newest_first else min)(unread, key=lambda lane: lane.last or (0, ""))
            edge = behind.last
            ready = waiting[-many:]
            if edge is not None and len(ready) == many and not self._is_behind(ready[0], edge):
                break
            if edge is not None and self._skipped >= MOST_SKIPPED:
                self.stopped_at = edge
                taken = [position for position in waiting[-many:][::-1] if not self._is_behind(position, edge)]
                waiting.clear()
                return taken
            self.add(await self._fetched(behind, min(PAGE, max(many, BATCH))))
        taken = waiting[-many:][::-1]
        del waiting[-many:]
        return taken


_ONE_LOOK: Final[ContextVar[dict[RecordKey, list[str] | bool] | None]] = ContextVar("one look", default=None)


@contextlib.contextmanager
def one_look() -> Generator[None]:
    """Ask once, in this block, which lanes there are and if an index is complete: for a page of many lists and counts.

    What is found stays as it was first seen in the block, so the block must be short.
    """
    token = _ONE_LOOK.set({})
    try:
        yield
    finally:
        _ONE_LOOK.reset(token)


async def parts_below(scope: Scope, prefix: RecordKey) -> list[str]:
    """Find which parts follow a prefix in the keys of a store, by one look for each of them."""
    seen = _ONE_LOOK.get()
    if seen is None:
        return await _parts_below(scope, prefix)
    known = seen.get(prefix)
    if not isinstance(known, list):
        known = seen[prefix] = await _parts_below(scope, prefix)
    return known


async def _parts_below(scope: Scope, prefix: RecordKey) -> list[str]:
    found: list[str] = []
    depth = len(prefix.parts)
    start, end = prefix.within()
    while records := (await scope.scan(start, end, limit=1)).records:
        found.append(next(iter(records)).parts[depth])
        start = prefix.child(found[-1]).within()[1]
    return found


async def count_lane(scope: Scope, lane: RecordKey, most: int, times: tuple[Instant, Instant] | None = None) -> int:
    """Count the entries below the beginning of a key, up to a bound; with times, the beginning is that of one lane."""
    start, end = lane.within()
    if times is not None:
        start, end = lane.child(f"{times[0]:016d}"), lane.child(f"{times[1]:016d}")
    counted = 0
    while counted < most and start < end:
        page = await scope.scan(start, end, limit=min(COUNTED, most - counted))
        counted += len(page.records)
        if page.more is None:
            break
        start = page.more
        await asyncio.sleep(0)
    return counted


# --- stores that are older than an index ----------------------------------------------------------------------------

PAUSE: Final = 0.05
"""Seconds between two batches of entries that are indexed later: as many as a busy store does not notice."""


class Indexing(Struct, frozen=True, omit_defaults=True):
    """How far the entries of a store are indexed.

    Attributes:
        is_done: All are.
        after: Up to this id they are.
        under: What the id lies under, if ids do: of requests, a tenant.
    """

    is_done: bool = False
    after: str = ""
    under: str = ""


INDEXINGS: Final[Codec[Indexing]] = Codec(Indexing, what="the state of an index")


@final
class IndexMarker:
    """Says whether everything of one kind is in its index.

    Args:
        scope: Where.
        name: What the index is called.
        root: What the keys of everything begin with that is to be in it.
    """

    def __init__(self, scope: Scope, name: str, root: RecordKey) -> None:
        self._scope, self._root, self._key = scope, root, scope.key("indexed", name)

    async def is_complete(self) -> bool:
        """Return True if all are in the index."""
        seen = _ONE_LOOK.get()
        if seen is not None and seen.get(self._key) is True:
            return True
        record = (await self._scope.read(self._key)).get(self._key)
        is_done = record is not None and INDEXINGS.decode(record.value).is_done
        if seen is not None:
            seen[self._key] = is_done
        return is_done

    async def begin(self) -> None:
        """Say that the index is complete, if there is nothing yet that it would hold."""
        if (await self._scope.read(self._key)).get(self._key) is not None:
            return
        if not (await self._scope.scan(*self._root.within(), limit=1)).records:
            done = INDEXINGS.encode(Indexing(is_done=True))
            await self._scope.commit(Put(self._key, done))  # if refused, another was faster

    async def index_existing(
        self, index: Callable[[RecordKey], Awaitable[bool]], *, pause: float = PAUSE, again: bool = False
    ) -> int:
        """Index what was there before there was an index, slowly; return how many were not indexed.

        It goes on where it was interrupted, and several processes may do it at the same time.

        Args:
            index: Indexes what has a key, and says whether it was not.
            pause: Seconds to wait after each batch.
            again: Begin anew, also if it was done: a process of an older version has written since.
        """
        scope, added, depth = self._scope, 0, len(self._root.parts)
        while True:
            record = (await scope.read(self._key)).get(self._key)
            known = Indexing() if record is None or again else INDEXINGS.decode(record.value)
            if known.is_done:
                return added
            again = False
            last = (known.under, known.after) if known.under else (known.after,)
            start = self._root.child(*last).successor() if known.after else self._root
            page = await scope.scan(start, self._root.within()[1], limit=BATCH)
            keys = list(page.records)
            added += sum(await asyncio.gather(*map(index, keys)))
            *under, after = keys[-1].parts[depth:] if keys else last
            so_far = Indexing(is_done=page.more is None, after=after, under="".join(under))
            await scope.commit(Put(self._key, INDEXINGS.encode(so_far), 0 if record is None else record.version))
            await asyncio.sleep(pause)
