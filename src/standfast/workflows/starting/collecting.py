"""Events that are collected by a run before it begins.

The run is there from the first event on, and waits for its time. Each further event is put into its inbox by a commit
that holds only while nobody has taken the run up, and may put its time off. So whether an event belongs to a run or to
the next one is decided by the commit that takes the run up: none is lost, and none is in two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from msgspec import Struct, structs

from standfast.clock import Instant, later
from standfast.codec import Codec
from standfast.errors import StoreBusyError
from standfast.ids import new_id
from standfast.stores.protocol import Change, Check, Conflict, Delete, Put
from standfast.workflows.starting.creating import Start, creation
from standfast.workflows.starting.posting import Sending, first_of
from standfast.workflows.storing.committing import commit_over
from standfast.workflows.storing.records import COUNTERS, LIVES, NO_DUE, READY, Counter, Life, RunKeys, Standing

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.stores.protocol import Snapshot
    from standfast.workflows.running.host import Host

EVENT: Final = "event"
"""The name of the signals that events lie in the inbox as."""

TRIES: Final = 200
PATIENCE: Final = 0.001
KEPT: Final = 86_400.0
"""For how many seconds after its time a run that was not taken up yet is found by further events."""


class Plan(Struct, frozen=True):
    """How events are collected.

    Attributes:
        workflow: What the run is a run of.
        window: After how many seconds it begins: from its first event on; or from its latest, if it ``slides``.
        slides: Whether each event puts its beginning off.
        most: After how many seconds it begins at the latest, however it slides.
        size: With how many events it begins at once.
    """

    workflow: Any
    window: float
    slides: bool
    most: float | None = None
    size: int | None = None


class Bringing(Struct, frozen=True, kw_only=True):
    """What else is written with an event, for those who build more on it.

    Attributes:
        run_id: The id of the run, if the event begins one.
        tags: The tags of that run.
        lines: The lines in which that run has to stand once its time has come.
        opening: Further changes in the commit that creates the run, given the store's time.
        always: Further changes in the commit of the event, given the run and the store's time.
    """

    run_id: str
    tags: tuple[str, ...] = ()
    lines: tuple[Standing, ...] = ()
    opening: Callable[[Instant], Sequence[Change]]
    always: Callable[[str, Instant], Sequence[Change]]


class BringingRefusedError(Exception):
    """A guard of what an event brought along did not hold. Nothing was written."""

    def __init__(self, key: RecordKey) -> None:
        super().__init__(key)
        self.key = key


class Collecting(Struct, frozen=True):
    """Which run collects the events of a key, and since when."""

    run: str
    since: Instant


COLLECTINGS: Final[Codec[Collecting]] = Codec(Collecting, what="what collects events")


class Collected(Struct, frozen=True):
    """The run that an event is in, and whether it is its first."""

    run_id: str
    is_new: bool


_turns: Final[WeakKeyDictionary[Any, WeakValueDictionary[RecordKey, asyncio.Lock]]] = WeakKeyDictionary()


async def collect(host: Host, plan: Plan, key: str, packed: bytes, bringing: Bringing | None = None) -> Collected:
    """Put an event where it belongs: with the run that collects those of its key, or with a new one.

    Raises:
        BringingRefusedError: A guard of what it brings along did not hold.
    """
    place = host.space.key("collecting", plan.workflow.name, key)
    turns = _turns.setdefault(host, WeakValueDictionary())
    turn = turns.setdefault(place, asyncio.Lock())  # those in one process need not get into each other's way
    async with turn:
        for tried in range(TRIES):
            seen = await host.space.read(place)
            run_id = _run_in(seen, place)
            keys = None if run_id is None else RunKeys(host.space, run_id)
            done = None if keys is None else await _join(host, plan, place, keys, packed, bringing)
            if done is None:
                done = await _open(host, plan, key, seen, place, packed, bringing)
            if not isinstance(done, Conflict):
                return done
            _check_bringing(done, bringing)
            if tried:
                await asyncio.sleep(PATIENCE * min(tried, 10))
    raise StoreBusyError(f"the events of {key}", f"others brought some {TRIES} times while one was put down")


def _run_in(seen: Snapshot, place: RecordKey) -> str | None:
    record = seen.get(place)
    return None if record is None else COLLECTINGS.decode(record.value).run


def _check_bringing(conflict: Conflict, bringing: Bringing | None) -> None:
    if bringing is None:
        return
    at = conflict.at
    own = {change.key for change in (*bringing.opening(at), *bringing.always(bringing.run_id, at))}
    refused = own.intersection(conflict.current)
    if refused:
        raise BringingRefusedError(refused.pop())


async def _open(
    host: Host,
    plan: Plan,
    key: str,
    seen: Snapshot,
    place: RecordKey,
    packed: bytes,
    bringing: Bringing | None,
) -> Collected | Conflict:
    """Begin to collect, with a new run."""
    at, workflow = seen.at, plan.workflow
    keys = RunKeys(host.space, new_id() if bringing is None else bringing.run_id)
    life = Life("pending", workflow.name, workflow.version, at, waits_for="a worker")
    if plan.size != 1:
        life = structs.replace(life, until=later(at, plan.window), waits_for="further events")
    asked = Start(workflow=workflow, packed=b"{}", run_id=keys.id, tags=(key,) if bringing is None else bringing.tags)
    lines = () if bringing is None else bringing.lines
    life = structs.replace(life, collects=True) if lines and life.until is not None else life
    changes = [*creation(host, asked, at, life, lines), *first_of(keys, Sending("signal", EVENT, packed), at)]
    if bringing is not None:
        changes += (*bringing.opening(at), *bringing.always(keys.id, at))
    if life.until is not None:
        changes.append(_noted(place, Collecting(keys.id, at), seen.version(place), life.until))
    answer = await host.space.commit(*changes)
    if isinstance(answer, Conflict):
        return answer
    host.emit_moved(keys.id, life, 0, at)
    return Collected(keys.id, is_new=True)


def _noted(place: RecordKey, collecting: Collecting, version: int, until: Instant) -> Put:
    return Put(place, COLLECTINGS.encode_own(collecting), version, expires_at=later(until, KEPT))


async def _join(
    host: Host, plan: Plan, place: RecordKey, keys: RunKeys, packed: bytes, bringing: Bringing | None
) -> Collected | Conflict | None:
    """Join the run that collects; None: it does not any more."""
    seen = await host.space.read(place, keys.life, keys.counter)
    record, noted = seen.get(keys.life), seen.get(place)
    life = None if record is None else LIVES.decode(record.value)
    collecting = None if noted is None else COLLECTINGS.decode(noted.value)
    if collecting is None or collecting.run != keys.id:
        return Conflict(seen.at, {})
    if life is None or not _collects(life):
        return None
    counter = seen.get(keys.counter)
    number = 0 if counter is None else COUNTERS.decode(counter.value).next
    changes: list[Change] = [
        *Sending("signal", EVENT, packed).changes(keys, number, seen.at),
        Put(keys.counter, COUNTERS.encode_own(Counter(number + 1)), seen.version(keys.counter)),
    ]
    is_full = plan.size is not None and number + 1 >= plan.size
    until = None if is_full else _put_off(plan, collecting, life, seen.at)
    changes += _moved(place, keys, collecting, seen, life, until, is_full=is_full)
    if bringing is not None:
        changes += bringing.always(keys.id, seen.at)
    over: dict[RecordKey, bytes | None] = {}
    if until != life.until and life.until is not None:
        over = {keys.timer(life.until): None, **({keys.ready: READY} if until is None else {keys.timer(until): NO_DUE})}
    answer = await commit_over(host.space, changes, over)
    return answer if isinstance(answer, Conflict) else Collected(keys.id, is_new=False)


def _collects(life: Life) -> bool:
    """Tell whether nobody has taken a run up, nor is to do so now."""
    is_waiting = life.until is not None or life.ticket is not None
    return life.status == "pending" and not life.owner and not life.claims and is_waiting and life.cancel is None


def _put_off(plan: Plan, collecting: Collecting, life: Life, at: Instant) -> Instant | None:
    """Return when a run begins that has got an event now."""
    if not plan.slides or life.until is None:  # it stands in a line, and waits for its turn only
        return life.until
    latest = later(at, plan.window)
    return latest if plan.most is None else min(latest, later(collecting.since, plan.most))


def _moved(
    place: RecordKey,
    keys: RunKeys,
    collecting: Collecting,
    seen: Snapshot,
    life: Life,
    until: Instant | None,
    *,
    is_full: bool,
) -> list[Change]:
    """Return the changes that let a run begin at a time, or at once; none of them holds if somebody has taken it up."""
    version, noted = seen.version(keys.life), seen.version(place)
    if until == life.until:
        return [Check(keys.life, version), Delete(place, noted) if is_full else Check(place, noted)]
    if until is None:
        begins = structs.replace(life, until=None, waits_for="a worker")
        return [Put(keys.life, LIVES.encode_own(begins), version), Delete(place, noted)]
    begins = structs.replace(life, until=until)
    return [Put(keys.life, LIVES.encode_own(begins), version), _noted(place, collecting, noted, until)]
