"""Lanes: ranges of an index whose keys end with a time and an id, read in the order of time and merged.

The index of runs and that of requests lie in the store as such lanes, one for each thing that a list can be asked for:
a status, a workflow, an action. A list is a merge of the lanes that are meant, so it costs what it shows.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypeAlias, final

from msgspec import Struct

from standfast.clock import Instant
from standfast.codec import Codec
from standfast.errors import InvalidArgumentError
from standfast.keys import RecordKey, decode_parts, encode_parts
from standfast.stores.protocol import Put

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator, Iterable, Sequence

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


class IndexLane(Struct, frozen=True):
    """A range of an index whose keys end with a time and an id.

    Attributes:
        prefix: What its keys begin with.
        times: From when and before when, by the times in the keys.
        takes: Returns False if the value of an entry says that it is not meant; then it is passed over.
        time_in: Returns the time in the value of an entry, if the list is in the order of that; None: it does not say.
        reach: How much later the time in a key is than that in the value; other entries are passed over, because
            another lane has them.
    """

    prefix: RecordKey
    times: tuple[Instant, Instant] = ALWAYS
    takes: Callable[[bytes], bool] | None = None
    time_in: Callable[[bytes], int | None] | None = None
    reach: int = 0

    def positions(self, records: Iterable[tuple[RecordKey, bytes]]) -> list[Position]:
        """Return where entries of the lane stand in a list, without those that are not meant."""
        prefix, takes, time_in = self.prefix, self.takes, self.time_in
        if takes is not None:  # most of a page may be passed over: only the keys of what is taken are decoded
            records = [(key, value) for key, value in records if takes(value)]
        if time_in is None:
            return [position_in(prefix, key) for key, _ in records]
        found: list[Position] = []
        for key, value in records:
            at, name = position_in(prefix, key)
            said = time_in(value)
            said = at if said is None else said
            if 0 <= at - said < self.reach:
                found.append((said, name))
        return found


@final
class _LaneReader:
    """One lane, read in order."""

    def __init__(self, scope: Scope, lane: IndexLane, *, newest_first: bool) -> None:
        self._scope, self._lane, self._newest_first = scope, lane, newest_first
        self.fetched = 0  # how many entries were read last
        self.is_barren = False  # most of what was read last is not meant: read more at once
        self._start, self._end = self._at(lane.times[0]), self._at(lane.times[1])
        self.edge: Position | None = None
        """Behind this is all that was not read yet."""
        self.has_more = True

    def _at(self, at: int, name: str | None = None) -> RecordKey:
        at = min(at, LAST)
        rest = (f"{at:016d}",) if name is None else (f"{at:016d}", name)
        return RecordKey.from_encoded(self._lane.prefix + encode_parts(rest))

    def go_on(self, after: Position) -> None:
        """Begin behind a position."""
        is_exact, at = self._lane.time_in is None, after[0]
        if self._newest_first:
            self._end = min(self._end, self._at(*after) if is_exact else self._at(at + self._lane.reach))
        else:
            self._start = max(self._start, self._at(*after).successor() if is_exact else self._at(at))

    async def fetch(self, many: int) -> list[Position]:
        """Return the next positions, without those that are not meant."""
        if self._start >= self._end:
            self.has_more, self.fetched = False, 0
            return []
        lane = self._lane
        page = await self._scope.scan(self._start, self._end, limit=many, reverse=self._newest_first)
        if page.more is None:
            self.has_more = False
        elif self._newest_first:
            self._end = page.more
        else:
            self._start = page.more
        records = page.records
        self.fetched = len(records)
        if records:
            at, name = position_in(lane.prefix, next(reversed(records)))
            # By a time in the values: what comes next in the keys can be older by the reach of the lane, but no newer.
            is_exact = lane.time_in is None or self._newest_first
            self.edge = (at, name) if is_exact else (max(0, at - lane.reach), "")
        return lane.positions((key, record.value) for key, record in records.items())


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

    Attributes:
        stopped_at: Up to where entries were read, if too many were passed over to go on; None: on.
    """

    def __init__(self, scope: Scope, *, newest_first: bool, after: Position | None = None) -> None:
        self._scope, self._newest_first, self._after = scope, newest_first, after
        self._skipped = 0
        self.stopped_at: Position | None = None
        self._lanes: list[_LaneReader] = []
        self._waiting: list[Position] = []
        self._met: Final[set[Position]] = set()

    async def open(self, lanes: Sequence[IndexLane], many: int) -> None:
        """Read the beginning of each lane, as much as a page of ``many`` entries needs; lanes may be added later."""
        opened = [_LaneReader(self._scope, lane, newest_first=self._newest_first) for lane in lanes]
        if self._after is not None:
            for each in opened:
                each.go_on(self._after)
        self._lanes += opened
        first = max(2, min(PAGE, 2 * many // max(1, len(lanes)) + 1))
        fetched = await asyncio.gather(*(self._fetched(each, first) for each in opened))
        self.add(position for some in fetched for position in some)

    async def _fetched(self, lane: _LaneReader, many: int) -> list[Position]:
        meant = await lane.fetch(PAGE if lane.is_barren else many)
        lane.is_barren = 2 * len(meant) < lane.fetched
        if skipped := lane.fetched - len(meant):
            self._skipped += skipped
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
            behind = (max if self._newest_first else min)(unread, key=lambda lane: lane.edge or (0, ""))
            edge = behind.edge
            ready = waiting[-many:]
            if edge is not None and len(ready) == many and not self._is_behind(ready[0], edge):
                break
            # A page must not end where it began, or the next one would begin there again.
            leads_on = edge is not None and (self._after is None or self._is_behind(edge, self._after))
            if edge is not None and self._skipped >= MOST_SKIPPED and leads_on:
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


async def count_lane(scope: Scope, lane: RecordKey, most: int) -> int:
    """Count the entries below the beginning of a key, up to a bound."""
    return (await _counted(scope, None, *lane.within(), most))[0]


async def count_within(scope: Scope, lane: IndexLane, most: int) -> tuple[int, bool]:
    """Count the entries of a lane that are meant, up to a bound; the second says if it gave up before.

    It does so when more were passed over than a page passes over.
    """
    start, end = (lane.prefix.child(f"{at:016d}") for at in lane.times)
    return await _counted(scope, lane, start, end, most)


async def _counted(
    scope: Scope, lane: IndexLane | None, start: RecordKey, end: RecordKey, most: int
) -> tuple[int, bool]:
    counted = passed = 0
    is_judged = lane is not None and (lane.takes is not None or lane.time_in is not None)
    while counted < most and start < end:
        page = await scope.scan(start, end, limit=min(COUNTED, most - counted + (PAGE if is_judged else 0)))
        meant = len(page.records)
        if lane is not None and is_judged:
            meant = len(lane.positions((key, record.value) for key, record in page.records.items()))
            passed += len(page.records) - meant
        counted += meant
        if page.more is None:
            break
        if passed >= MOST_SKIPPED:
            return min(counted, most), True
        start = page.more
        await asyncio.sleep(0)
    return min(counted, most), False


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
        self._scope, self._root = scope, root
        self.key: Final = scope.key("indexed", name)

    async def is_complete(self) -> bool:
        """Return True if all are in the index."""
        seen = _ONE_LOOK.get()
        if seen is not None and seen.get(self.key) is True:
            return True
        record = (await self._scope.read(self.key)).get(self.key)
        is_done = record is not None and INDEXINGS.decode(record.value).is_done
        if seen is not None:
            seen[self.key] = is_done
        return is_done

    async def begin(self, *others: IndexMarker) -> None:
        """Say that the index, and others of the same things, are complete if there is nothing yet that they would hold.

        A store that knows none of them is new, or older than all.
        """
        keys = [self.key, *(other.key for other in others)]
        if (await self._scope.read(*keys)).records:
            return
        if not (await self._scope.scan(*self._root.within(), limit=1)).records:
            done = INDEXINGS.encode(Indexing(is_done=True))
            await self._scope.commit(*(Put(key, done) for key in keys))  # if refused, another was faster

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
            record = (await scope.read(self.key)).get(self.key)
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
            await scope.commit(Put(self.key, INDEXINGS.encode(so_far), 0 if record is None else record.version))
            await asyncio.sleep(pause)
