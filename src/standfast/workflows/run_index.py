"""The index of runs: lists and counts by status, workflow, tag and time, at the cost of what is shown.

A run that no worker drives has a record in the index whose key says its status, its workflow and since when it is so,
and one more for each of its tags. These are written in the commits that move the run (:func:`records.listing`), so the
index is exact. A run that a worker drives has none: it is found by the worker's grant, so a short run costs one record
more, at its end. One that came to be as it is more than a second after its start has records by its start as well.

Every list is a merge of such ranges, in the order of the time since when each run is as it is; if it is asked for by
their start, in the order of that. Then a run without a record by its start is looked for in the second after it. Runs
of a store that is older than the index are listed by a worker in the background; until that is done lists read all
runs, in the order of their ids.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypedDict, Unpack, get_args

from msgspec import Struct

from standfast.clock import MICROSECONDS, Instant, later
from standfast.errors import DeclarationError, InvalidArgumentError
from standfast.keys import RecordKey, encode_parts
from standfast.locks.run_locks import LISTING, LISTINGS, NEAR
from standfast.stores.protocol import Conflict, Put
from standfast.workflows.lanes import (
    ALWAYS,
    BATCH,
    LAST,
    PAGE,
    PAUSE,
    IndexLane,
    IndexMarker,
    LaneMerge,
    Position,
    count_lane,
    count_within,
    cursor_at,
    cursor_by_id,
    parts_below,
    position_in,
    position_of,
)
from standfast.workflows.queries import Page, RunInfo, info_of
from standfast.workflows.records import (
    ENDED,
    HEADERS,
    OWNERSHIPS,
    RUN_STATES,
    Header,
    RunKeys,
    RunState,
    Status,
    far_children,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable

    from standfast.scope import Scope
    from standfast.stores.protocol import Record

STATUSES: Final[frozenset[str]] = frozenset(get_args(Status))

MOST_PASSED: Final = 2_000
"""How many runs that are not meant a page passes over; then it ends, and the next one goes on from there."""

MOST_COUNTED: Final = 1_000
"""Where a count stops if nothing else is said."""

COUNTED_PAGES: Final = 4
"""How many pages are read to count what the index does not serve; then there may be more."""

_SLACK: Final = 60.0
"""Seconds by which a run may seem to have changed before it started, by the clocks of two processes."""


# --- which runs are meant -------------------------------------------------------------------------------------------


class RunFilter(Struct, frozen=True, kw_only=True):
    """Which runs are meant. All that is said must hold.

    Attributes:
        status: Those that are so; None: all.
        workflow: Those of this workflow.
        tag: Those with this tag.
        parent: Those that this run has started as its children.
        started_after: Those that were started at this instant or later.
        started_before: Those that were started before this instant.
        ended_after: Those that ended at this instant or later.
        ended_before: Those that ended before this instant.
    """

    status: frozenset[str] | None = None
    workflow: str | None = None
    tag: str | None = None
    parent: str | None = None
    started_after: Instant | None = None
    started_before: Instant | None = None
    ended_after: Instant | None = None
    ended_before: Instant | None = None

    def __post_init__(self) -> None:
        if unknown := (self.status or frozenset()) - STATUSES:
            raise InvalidArgumentError(
                "status", f"choose from {', '.join(get_args(Status))}", f"the status {min(unknown)!r:.60}"
            )

    @property
    def statuses(self) -> frozenset[str]:
        """The statuses that runs which are meant can have."""
        wanted = STATUSES if self.status is None else self.status
        return wanted if self.ended_after is None and self.ended_before is None else wanted & ENDED

    @property
    def times(self) -> tuple[Instant, Instant]:
        """From when and before when a run that is meant can have come to be as it is."""
        earliest = Instant(0) if self.started_after is None else later(self.started_after, -_SLACK)
        low = max(Instant(0), earliest, self.ended_after or Instant(0))
        return low, LAST if self.ended_before is None else self.ended_before

    @property
    def starts(self) -> tuple[Instant, Instant] | None:
        """From when and before when a run that is meant can have been started; None: at any time."""
        if self.started_after is None and self.started_before is None:
            return None
        return self.started_after or Instant(0), LAST if self.started_before is None else self.started_before

    @property
    def is_by_start(self) -> bool:
        """Whether the runs are in the order of their start: they are asked for by that, and not closer by their end."""
        starts, (low, end) = self.starts, (self.ended_after or Instant(0), self.ended_before or LAST)
        return starts is not None and starts[1] - starts[0] <= end - low

    @property
    def is_indexed(self) -> bool:
        """Whether the index alone says which runs are meant, without a look at the runs."""
        return self.parent is None and (self.tag is None or self.workflow is None)

    def takes_listing(self, value: bytes) -> bool:
        """Return False if what lists a run says that it was not started in the time that is meant."""
        started_at = LISTINGS.decode(value)
        if started_at is True:  # it does not say, as those that older versions have written
            return True
        return _is_within(started_at, self.started_after, self.started_before)

    def takes_beginning(self, value: bytes) -> bool:
        """Return False if what lists a run by its start says that it did not end in the time that is meant."""
        return _is_within(LISTINGS.decode(value), self.ended_after, self.ended_before)

    def takes_state(self, state: RunState) -> bool:
        """Return True if a run in this state can be meant."""
        if state.status not in self.statuses or (self.workflow is not None and state.workflow != self.workflow):
            return False
        return _is_within(state.changed_at, self.ended_after, self.ended_before)

    def takes(self, header: Header, state: RunState) -> bool:
        """Return True if a run is meant."""
        return (
            self.takes_state(state)
            and (self.parent is None or header.parent == self.parent)
            and (self.tag is None or self.tag in header.tags)
            and _is_within(header.started_at, self.started_after, self.started_before)
        )


class RunFilters(TypedDict, total=False):
    """Which runs are meant, as a user says it; see :class:`RunFilter`. Times are datetimes with a zone."""

    status: str | Collection[str] | None
    workflow: str | None
    tag: str | None
    parent: str | None
    started_after: datetime | None
    started_before: datetime | None
    ended_after: datetime | None
    ended_before: datetime | None


def chosen_by(**filters: Unpack[RunFilters]) -> RunFilter:
    """Return a filter from what a user says; refuse what cannot be one."""
    status = filters.get("status")
    return RunFilter(
        status=None if status is None else frozenset({status} if isinstance(status, str) else status),
        workflow=filters.get("workflow"),
        tag=filters.get("tag"),
        parent=filters.get("parent"),
        started_after=_instant("started_after", filters.get("started_after")),
        started_before=_instant("started_before", filters.get("started_before")),
        ended_after=_instant("ended_after", filters.get("ended_after")),
        ended_before=_instant("ended_before", filters.get("ended_before")),
    )


def _instant(what: str, at: datetime | None) -> Instant | None:
    if at is None:
        return None
    if not isinstance(at, datetime) or at.tzinfo is None:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise InvalidArgumentError(what, "it must be a datetime with a time zone", f"{at!r:.100}")
    return Instant(max(0, int(at.timestamp() * MICROSECONDS)))


def _is_within(at: Instant, first: Instant | None, end: Instant | None) -> bool:
    return (first is None or at >= first) and (end is None or at < end)


# --- ranges of the index --------------------------------------------------------------------------------------------


async def _lanes(scope: Scope, chosen: RunFilter) -> list[IndexLane]:
    """Return the ranges of all that can be meant: one for each status, and each workflow if need be."""
    if chosen.is_by_start:
        return await _lanes_by_start(scope, chosen)
    takes = None if chosen.starts is None else chosen.takes_listing
    prefixes = await _prefixes(scope, "runs", "tagged", chosen, chosen.statuses)
    return [IndexLane(prefix, chosen.times, takes) for prefix in prefixes]


async def _lanes_by_start(scope: Scope, chosen: RunFilter) -> list[IndexLane]:
    """Return the ranges of all that can be meant, in the order of their start."""
    first, end = chosen.starts or ALWAYS
    low, high = max(first, chosen.ended_after or first), LAST if chosen.ended_before is None else chosen.ended_before
    far = chosen.statuses if chosen.tag is None else chosen.statuses & ENDED  # see run_locks.listings
    near, begun, rest = await asyncio.gather(
        _prefixes(scope, "runs", "tagged", chosen, far),
        _prefixes(scope, "begun", "begun-tagged", chosen, far),
        _prefixes(scope, "runs", "tagged", chosen, chosen.statuses - far),
    )
    has_end = chosen.ended_after is not None or chosen.ended_before is not None
    ended, soon = chosen.takes_beginning if has_end else None, (low, min(high, Instant(end + NEAR)))
    return [
        *(IndexLane(prefix, soon, chosen.takes_listing, _started_at, NEAR) for prefix in near),
        *(IndexLane(prefix, (first, end), ended) for prefix in begun),
        *(IndexLane(prefix, (low, high), chosen.takes_listing, _started_at, LAST) for prefix in rest),
    ]


def _started_at(value: bytes) -> int | None:
    started_at = LISTINGS.decode(value)
    return None if started_at is True else started_at


async def _prefixes(
    scope: Scope, kind: str, tagged: str, chosen: RunFilter, statuses: frozenset[str]
) -> list[RecordKey]:
    """Return the beginnings of the keys of runs with one of some statuses."""
    if chosen.tag is not None:
        return [scope.key(tagged, chosen.tag, status) for status in sorted(statuses)]
    if chosen.workflow is not None:
        return [scope.key(kind, status, chosen.workflow) for status in sorted(statuses)]
    roots = [scope.key(kind, status) for status in sorted(statuses)]
    found = await asyncio.gather(*(parts_below(scope, root) for root in roots))
    return [root.child(workflow) for root, some in zip(roots, found, strict=True) for workflow in some]


async def workflows_with(scope: Scope, status: str) -> list[str]:
    """Return the names of the workflows that have runs with a status which no worker drives."""
    return await parts_below(scope, scope.key("runs", status))


async def _driven(scope: Scope, chosen: RunFilter) -> list[Position]:
    """Return the runs that workers drive: since when, or when they were started if that is the order, and their ids."""
    if "running" not in chosen.statuses:
        return []
    low, end = chosen.times
    found: list[Position] = []
    async for page in _pages(scope, *scope.key("own").within()):
        owned = [OWNERSHIPS.decode(record.value) for record in page]
        found += [(each.claimed_at, each.run) for each in owned if low <= each.claimed_at < end]
    if not chosen.is_by_start:
        return found
    started: list[Position] = []
    for first in range(0, len(found), BATCH):
        runs = await _read(scope, [run_id for _, run_id in found[first : first + BATCH]], chosen)
        started += [(run.started_at, run.id) for run in runs.values()]
        await asyncio.sleep(0)
    return started


async def _pages(scope: Scope, start: RecordKey, end: RecordKey, most: int = PAGE) -> AsyncIterator[list[Record]]:
    """Yield the records of a range page by page, and give the event loop back between two of them."""
    while True:
        page = await scope.scan(start, end, limit=most)
        yield list(page.records.values())
        if page.more is None:
            return
        start = page.more
        await asyncio.sleep(0)


# --- pages and counts -----------------------------------------------------------------------------------------------


async def list_runs(
    scope: Scope, chosen: RunFilter, *, newest_first: bool = False, limit: int = 100, after: str | None = None
) -> Page:
    """Return a page of the runs that are meant, in the order of the time since when they are as they are.

    Asked for by their start, they are in the order of that, unless the time of their end is asked for more closely.

    A page can have fewer runs than ``limit``, or none, and yet a next one: a filter that the index does not serve
    passes over a bounded number of runs.
    """
    if type(limit) is not int or limit < 1:
        raise DeclarationError("list", f"limit is {limit!r:.100}; it must be a whole number, at least 1")
    position = None if after is None else position_of(after)
    if (
        isinstance(position, str)
        or chosen.parent is not None
        or not await is_complete(scope, by_start=chosen.is_by_start)
    ):
        if isinstance(position, tuple):
            position = position[1]
        return await _list_by_id(scope, chosen, newest_first=newest_first, limit=limit, after=position)
    # Driven runs are read before and after the lanes: a run that is claimed in between would else be in neither.
    merge = LaneMerge(scope, newest_first=newest_first, after=position)
    merge.add(await _driven(scope, chosen))
    await merge.open(await _lanes(scope, chosen), limit)
    merge.add(await _driven(scope, chosen))
    found: dict[str, RunInfo] = {}
    passed = 0
    while positions := await merge.take(min(BATCH, limit - len(found))):
        runs = await _read(scope, [run_id for _, run_id in positions], chosen)
        passed += len(positions) - len(runs)
        found.update(runs)
        if len(found) >= limit or passed >= MOST_PASSED:
            return Page(tuple(found.values()), cursor_at(positions[-1]))
        await asyncio.sleep(0)
    return Page(tuple(found.values()), None if merge.stopped_at is None else cursor_at(merge.stopped_at))


async def _read(scope: Scope, run_ids: Iterable[str], chosen: RunFilter) -> dict[str, RunInfo]:
    """Read runs, and return those that are meant as they are now."""
    keys = [RunKeys(scope, run_id) for run_id in dict.fromkeys(run_ids)]
    most, found = max(1, scope.at_most(2 * BATCH) // 2), dict[str, RunInfo]()
    for first in range(0, len(keys), most):
        some = keys[first : first + most]
        seen = await scope.read(*(key for each in some for key in (each.header, each.state)))
        for each in some:
            header, state = seen.get(each.header), seen.get(each.state)
            if header is None or state is None:
                continue
            shown, lived = HEADERS.decode(header.value), RUN_STATES.decode(state.value)
            if chosen.takes(shown, lived):
                found[each.id] = info_of(each.id, shown, lived)
    return found


async def _list_by_id(scope: Scope, chosen: RunFilter, *, newest_first: bool, limit: int, after: str | None) -> Page:
    """Return a page of runs in the order of their ids: of the children of one run, or while there is no index."""
    start, end = scope.key("life").within()
    if chosen.parent is not None:  # children are named after their parent: its id, a dot, the step
        start, end = scope.key("life", f"{chosen.parent}."), scope.key("life", f"{chosen.parent}/")
    if after is not None:
        own = RecordKey.from_encoded(scope.key("life") + encode_parts((after,)))
        start, end = (start, min(end, own)) if newest_first else (max(start, own.successor()), end)
    found: dict[str, RunInfo] = {}
    passed = 0
    while start < end:
        page = await scope.scan(start, end, limit=scope.at_most(BATCH), reverse=newest_first)
        states = {key.parts[-1]: record for key, record in page.records.items()}
        meant = [run_id for run_id, state in states.items() if chosen.takes_state(RUN_STATES.decode(state.value))]
        runs = await _read(scope, meant, chosen) if meant else {}
        passed += len(states) - len(runs)
        for run_id, run in runs.items():
            found[run_id] = run
            if len(found) == limit:
                return Page(tuple(found.values()), cursor_by_id(run_id))
        if page.more is None:
            break
        if passed >= MOST_PASSED:
            return Page(tuple(found.values()), cursor_by_id(next(reversed(states))))
        start, end = (start, page.more) if newest_first else (page.more, end)
        await asyncio.sleep(0)
    if chosen.parent is not None:
        found.update(await _read(scope, await far_children(scope, chosen.parent), chosen))
    return Page(tuple(found.values()), None)


class RunCount(Struct, frozen=True):
    """How many runs there are; counting stops at a bound.

    Attributes:
        number: How many were counted.
        has_more: There are more, or may be: the count has stopped at its bound.
    """

    number: int
    has_more: bool = False

    def __str__(self) -> str:
        return f"{self.number:,}+" if self.has_more else f"{self.number:,}"


async def count_runs(scope: Scope, chosen: RunFilter, *, most: int = MOST_COUNTED) -> RunCount:
    """Count the runs that are meant, up to a bound."""
    if type(most) is not int or most < 1:
        raise InvalidArgumentError("most", "it must be a whole number, at least 1", f"{most!r:.100}")
    if not chosen.is_indexed or not await is_complete(scope, by_start=chosen.is_by_start):
        return await _count_pages(scope, chosen, most)
    is_plain = chosen.workflow is None and chosen.tag is None and chosen.starts is None
    driven, may_be_more = await _driven(scope, chosen), False
    counted = len(driven) if is_plain else await _count_driven(scope, [run_id for _, run_id in driven], chosen, most)
    if is_plain and chosen.ended_after is None and chosen.ended_before is None:
        for status in sorted(chosen.statuses):
            counted += await count_lane(scope, scope.key("runs", status), most + 1 - counted)
    else:
        for lane in await _lanes(scope, chosen):
            number, gave_up = await count_within(scope, lane, most + 1 - counted)
            counted, may_be_more = counted + number, may_be_more or gave_up
    return RunCount(min(counted, most), has_more=may_be_more or counted > most)


async def _count_driven(scope: Scope, driven: list[str], chosen: RunFilter, most: int) -> int:
    """Count the driven runs of one workflow, or with one tag: their records have to be read for that."""
    counted = 0
    for first in range(0, len(driven), BATCH):
        runs = await _read(scope, driven[first : first + BATCH], chosen)
        counted += sum(1 for run in runs.values() if run.owner)
        if counted > most:
            break
        await asyncio.sleep(0)
    return counted


async def _count_pages(scope: Scope, chosen: RunFilter, most: int) -> RunCount:
    """Count by reading runs. It stops where a list would end its page."""
    counted, after = 0, None
    for _ in range(COUNTED_PAGES):
        page = await list_runs(scope, chosen, limit=most + 1 - counted, after=after)
        counted += len(page.runs)
        if counted > most:
            return RunCount(most, has_more=True)
        after = page.next
        if after is None:
            return RunCount(counted)
    return RunCount(counted, has_more=True)


class EndedRun(Struct, frozen=True):
    """A run that has ended, as the index shows it."""

    id: str
    workflow: str
    status: str
    ended_at: Instant


async def oldest_ended(
    scope: Scope, status: str, *, before: Instant, workflow: str | None = None, since: Instant = ALWAYS[0]
) -> AsyncIterator[list[EndedRun]]:
    """Yield the runs that ended in one way before an instant, page by page; of each workflow the oldest first.

    What is yielded may be deleted at once. It reads the index alone, so it costs what it yields. A store whose index is
    not complete shows those that are indexed: ask :func:`is_complete`.
    """
    root = scope.key("runs", status)
    for name in await parts_below(scope, root) if workflow is None else [workflow]:
        lane = root.child(name)
        async for page in _pages(scope, lane.child(f"{since:016d}"), lane.child(f"{before:016d}")):
            ended = (position_in(lane, record.key) for record in page)
            yield [EndedRun(run_id, name, status, Instant(at)) for at, run_id in ended]


# --- stores that are older than the index ---------------------------------------------------------------------------

TRIES: Final = 20


def _markers(scope: Scope) -> tuple[IndexMarker, IndexMarker]:
    """Return what says how far the index is: that of runs, and that by their start, which came later."""
    root = scope.key("life")
    return IndexMarker(scope, "runs", root), IndexMarker(scope, "begun", root)


async def is_complete(scope: Scope, *, by_start: bool = False) -> bool:
    """Return True if all runs of a store are in the index, or in that by their start."""
    return await _markers(scope)[by_start].is_complete()


async def begin_index(scope: Scope) -> None:
    """Say that the index of a store is complete, if the store has no runs yet."""
    runs, begun = _markers(scope)
    await runs.begin(begun)


async def index_existing(scope: Scope, *, pause: float = PAUSE, again: bool = False) -> int:
    """Index the runs that a store had before it had an index, slowly; see :meth:`IndexMarker.index_existing`."""

    async def index(key: RecordKey) -> bool:
        return await _index(scope, RunKeys(scope, key.parts[-1]))

    return sum([await marker.index_existing(index, pause=pause, again=again) for marker in _markers(scope)])


async def _index(scope: Scope, keys: RunKeys) -> bool:
    """List one run if it is not listed, or not by its start.

    Its state is written again in the same commit, unchanged: whatever moves the run at this moment looks again, and
    finds the listing that it has to delete.
    """
    for _ in range(TRIES):
        seen = await scope.read(keys.header, keys.state)
        header, state = seen.get(keys.header), seen.get(keys.state)
        if header is None or state is None:
            return False
        listed = keys.listed(RUN_STATES.decode(state.value), HEADERS.decode(header.value))
        there = (await scope.read(*listed)).records if listed else {}
        silent = {key: there[key].version for key in there if there[key].value == LISTING}  # it does not say the start
        missing = [
            Put(key, value, silent.get(key, 0)) for key, value in listed.items() if key not in there or key in silent
        ]
        if not missing:
            return False
        if not isinstance(await scope.commit(Put(keys.state, state.value, state.version), *missing), Conflict):
            return True
    return False
