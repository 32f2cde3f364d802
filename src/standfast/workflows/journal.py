"""The history of a loaded run as it grows: events that are noted, and then written together.

They are written before the next effect begins, before the run is unloaded, and in the commit that ends it; so a step
costs one commit, and reading the time none. Every write is guarded by the owner's grant: a worker that was taken for
dead, and is not, writes nothing any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Raw, Struct, structs

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.locks.entry import Entry
from standfast.stores.group_commit import verdict_of
from standfast.stores.protocol import Change, Check, Commit, Conflict, Put
from standfast.workflows.records import CHUNKS, HistoryEvent, packed_chunk
from standfast.workflows.replay import chunks_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping

    from standfast.scope import Scope
    from standfast.workflows.records import Driven, RunKeys


MOST_RELEASED: Final = 128
"""How many branches that waited for a write go on in one turn of the event loop."""


class Claim(Struct, frozen=True):
    """The right to drive a run: where the owner's grant lies, and its version, the fence.

    ``is_first``: it was made together with the run, or no news of the run has been looked at before it. So there is
    none that is older than it, and is not noted to be looked at.
    """

    key: RecordKey
    fence: int
    presence: str
    state_version: int
    is_first: bool = False


class Held(Struct, frozen=True):
    """The grant of a lock that the run holds.

    Attributes:
        fence: Its version.
        name: The key of the lock, for people.
        path: The branch whose block it is: it, and those that it starts, are told when the lock is lost.
        line: The address of its line.
        ends_at: When it is over at the latest.
        entry: What stands in the line.
    """

    fence: int
    name: str
    path: str
    line: tuple[str, ...]
    ends_at: Instant | None
    entry: Entry


class Taken(Struct, frozen=True):
    """What was taken out of a journal to be written: events from a position of the history on, and other changes."""

    position: int
    events: list[HistoryEvent]
    extra_changes: dict[RecordKey, Change]


@final
class Journal:
    """What a run has done that is not written yet, and the guards with which it is.

    Attributes:
        holds: The grants of locks that the run holds. A commit is refused if one of them is gone.
        is_flushing: Whether something is being written.
        spared_at: Since when what is to be written waits for the next commit, by the loop's time; None: it does not.
    """

    __slots__ = (
        "_begun",
        "_commit",
        "_done",
        "_driven",
        "_extra_changes",
        "_just_told",
        "_keys",
        "_own",
        "_pending",
        "_progress",
        "_progress_version",
        "_readers",
        "_saw",
        "_scope",
        "_writers",
        "_written",
        "holds",
        "is_flushing",
        "spared_at",
    )

    def __init__(
        self,
        scope: Scope,
        saw: Callable[[Instant], None],
        keys: RunKeys,
        claim: Claim,
        written: int,
        driven: Driven | None = None,
    ) -> None:
        self._scope, self._commit, self._saw, self._keys = scope, scope.commit_at_once, saw, keys
        self._written, self._driven = written, driven
        self._pending: list[HistoryEvent] = []
        self._extra_changes: dict[RecordKey, Change] = {}
        self.is_flushing = False
        self._begun = self._done = 0  # the numbers of the last write that began, and of the last that was durable
        self._writers: Final[deque[asyncio.Future[None]]] = deque()
        self._readers: list[asyncio.Future[None]] = []
        self._own: Final = Check(claim.key, claim.fence)
        self._progress: bytes | None = None
        self._progress_version: int | None = None
        self.holds: Final[dict[RecordKey, Held]] = {}
        self._just_told: Final[set[RecordKey]] = set()
        self.spared_at: float | None = None

    @property
    def position(self) -> int:
        """How many events the history has, those that are not written included."""
        return self._written + len(self._pending)

    @property
    def written(self) -> int:
        """How many events of the history are known to be written."""
        return self._written

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to write."""
        return bool(self._pending or self._extra_changes or self._progress is not None)

    @property
    def has_work(self) -> bool:
        """Whether there is something to write, or being written, or held, which has to be looked at."""
        return bool(
            self._pending or self.is_flushing or self.holds or self._extra_changes or self._progress is not None
        )

    @property
    def has_only_grants(self) -> bool:
        """Whether all that is to be written is that locks were granted.

        That need not be durable before an effect begins: the grants are, and a worker that replays the run finds them.
        """
        if self._extra_changes or self._progress is not None:
            return False
        return all(event.kind == "held" for event in self._pending)

    def is_heavy(self, most: int) -> bool:
        """Return True if there is too much to write to take it along in a commit that does more."""
        return len(self._extra_changes) > most or size_of(self._pending) >= CHUNKS.max_bytes // 4

    def note(self, event: HistoryEvent, *extra_changes: Change) -> None:
        """Add an event, and changes that belong into the commit that writes it."""
        if self._driven is not None:
            event, self._driven = structs.replace(event, driven=self._driven), None
        self._pending.append(event)
        for change in extra_changes:
            self._extra_changes[change.key] = change

    def add(self, *changes: Change) -> None:
        """Add changes to the next commit."""
        for change in changes:
            self._extra_changes[change.key] = change

    def flush_at_once(self) -> Coroutine[Any, Any, Conflict | None] | None:
        """Do as :meth:`flush_for_effect` does; None: there is nothing to do, or it was done in this very call.

        Almost every step of a run that is alone on a store in this process comes to that.
        """
        pending = self._pending
        is_alone = len(pending) == 1 and pending[0].kind != "held"
        if not is_alone or self.is_flushing or self.holds or self._extra_changes or self._progress is not None:
            return self.flush_for_effect() if self.has_work else None
        answer = self._commit(self._own, Put(self._keys.chunk(self._written), packed_chunk(pending)))
        if type(answer) is not Commit:
            return self._flush_events(answer)
        self._pending, self.spared_at = [], None
        self._written += 1
        self._begun = self._done = self._begun + 1
        self._saw(answer.at)
        return None

    def flush_for_effect(self) -> Coroutine[Any, Any, Conflict | None]:
        """Write what has to be durable before an effect begins, or look at the holds; return what was in the way."""
        is_alone = len(self._pending) == 1 and self._pending[0].kind != "held"
        if is_alone and not (self.is_flushing or self.holds or self._extra_changes or self._progress is not None):
            return self._flush_events()  # almost every step comes to this
        return self._look_at_holds() if self.has_only_grants and not self.is_flushing else self.flush()

    async def flush(self) -> Conflict | None:
        """Write everything that was noted so far; return what was in the way. If there is none, look at the holds.

        A caller that meets a write under way joins the next one, with all others that wait: what was noted since it
        called is not its matter. However many wait, each waits for two writes at most.
        """
        if self.is_flushing:
            number = self._begun + (self.is_dirty or bool(self.holds))
            while self.is_flushing and self._done < number:
                await self._until_ended(self._readers)
            if self._done >= number:
                return None
        elif not self.is_dirty:
            return await self._look_at_holds() if self.holds else None
        if not self.holds and not self._extra_changes and self._progress is None:
            return await self._flush_events()
        return await self._flush_everything()

    async def _flush_everything(self) -> Conflict | None:
        """Write events together with other changes, guarded by all that the run holds."""
        taken = await self.begin()
        answer: Commit | Conflict | None = None
        is_seen = False
        early: list[HistoryEvent] = []
        try:
            if not taken.events and not taken.extra_changes:
                lost = await self._look_at_holds(is_alone=True)
                is_seen = lost is None
                return lost
            portions = self._portions(taken.events)
            for early in portions[:-1]:
                written = await self._scope.commit(*self.guards(), *self._chunks(early), before=self.ends_at())
                self._saw(written.at)
                if isinstance(written, Conflict):
                    return written
                taken = self._without(taken, early)
            early = []
            changes = (*self.guards(), *self._chunks(taken.events), *taken.extra_changes.values())
            before = self.ends_at()
            answer = await (
                self._scope.commit(*changes) if before is None else self._scope.commit(*changes, before=before)
            )
            self._saw(answer.at)
            return answer if isinstance(answer, Conflict) else None
        except asyncio.CancelledError as cancelled:
            verdict = verdict_of(cancelled)
            if early and isinstance(verdict, Commit):
                taken = self._without(taken, early)
            else:
                answer = verdict if isinstance(verdict, Commit) else None
            raise
        finally:
            self.end(taken, 0 if is_seen or isinstance(answer, Commit) else None, getattr(answer, "versions", {}))

    async def _flush_events(self, first: Awaitable[Commit | Conflict] | None = None) -> Conflict | None:
        """Write events and nothing else: what almost every step comes to. ``first`` is on its way, with all of them."""
        events, self._pending = self._pending, []
        self._start_flushing()
        some: list[HistoryEvent] = []
        try:
            for some in (events,) if len(events) == 1 else self._portions(events):
                # No key is checked again: those of chunks are shorter than that of the grant, which was.
                sent: Any = first or self._commit(self._own, *self._chunks(some))
                answer: Commit | Conflict = sent if type(sent) is Commit else await sent
                self._saw(answer.at)
                if type(answer) is Conflict:
                    return answer
                self._written += len(some)
                events = events[len(some) :]
        except asyncio.CancelledError as cancelled:
            if isinstance(verdict_of(cancelled), Commit):
                self._written += len(some)
                events = events[len(some) :]
            raise
        finally:
            if events:
                self._pending = events + self._pending
            self._stop_flushing(is_written=not events)
        return None

    async def begin(self) -> Taken:
        """Take everything out that is to be written. Until :meth:`end` is called no other task writes."""
        while self.is_flushing:
            await self._until_ended(self._writers)
        self._start_flushing()
        if self._progress is not None:
            try:
                await self.prepare()
            except BaseException:
                self._stop_flushing(is_written=False)
                raise
        taken = Taken(self._written, self._pending, self._with_progress())
        self._pending, self._extra_changes = [], {}
        return taken

    def end(self, taken: Taken, added: int | None, versions: Mapping[RecordKey, int]) -> None:
        """Say what became of what was taken: written, together with ``added`` events more; None: it was not."""
        if added is None:
            self._pending, self._extra_changes = taken.events + self._pending, taken.extra_changes | self._extra_changes
        else:
            self._written += len(taken.events) + added
            if self._keys.progress in taken.extra_changes:
                self._progress_version = versions.get(self._keys.progress)
        self._stop_flushing(is_written=added is not None)

    def _start_flushing(self) -> None:
        self.is_flushing, self.spared_at = True, None
        self._begun += 1

    def _stop_flushing(self, *, is_written: bool) -> None:
        self.is_flushing = False
        if is_written:
            self._done = self._begun
        if self._readers:
            readers, self._readers = self._readers, []
            release_all(iter(readers))
        if self._writers:
            self._let_next_write()

    async def _until_ended(self, waiting: list[asyncio.Future[None]] | deque[asyncio.Future[None]]) -> None:
        """Wait until a write has ended: with all others, or, among the writers, until it is this one's turn."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if not self.is_flushing:
                self._let_next_write()  # it may have been this one's turn
            raise

    def _let_next_write(self) -> None:
        """Release one of those that wait to write; the others could do nothing but wait again."""
        while self._writers:
            if not (first := self._writers.popleft()).done():
                first.set_result(None)
                return

    async def _look_at_holds(self, *, is_alone: bool = False) -> Conflict | None:
        """Return what is no longer as it should be among the grants that the run relies on.

        Other branches take and leave locks meanwhile, unless the caller is the only one who writes.
        """
        while looked_at := dict(self.holds):
            if self._just_told.issuperset(looked_at):
                return None
            seen = await self._scope.read(*looked_at)
            self._saw(seen.at)
            gone = {key: seen.get(key) for key, held in looked_at.items() if seen.version(key) != held.fence}
            # A branch may have left what is gone since it was looked at, or may be just leaving it.
            is_left = self.is_flushing or any(self.holds.get(key) is not looked_at[key] for key in gone)
            if is_alone or not gone or not is_left:
                ends_at = self.ends_at()
                return Conflict(seen.at, gone) if gone or (ends_at is not None and ends_at <= seen.at) else None
            await self.settled()
        return None

    def note_held(self, grant: RecordKey) -> None:
        """Note that the store has just said that the run holds this: it is not asked again before the loop has run."""
        self._just_told.add(grant)
        asyncio.get_running_loop().call_soon(self._just_told.discard, grant)

    def ends_at(self) -> Instant | None:
        """Return when the first of the holds is over: a commit must come before."""
        return min((held.ends_at for held in self.holds.values() if held.ends_at is not None), default=None)

    # --- progress ------------------------------------------------------------------------------------------------

    def set_progress(self, packed: bytes) -> None:
        """Write this about the run's progress with the next commit; of several, the last."""
        self._extra_changes.pop(self._keys.progress, None)
        self._progress = packed

    @property
    def needs_preparation(self) -> bool:
        """Whether :meth:`prepare` has something to find out."""
        return self._progress is not None and self._progress_version is None

    async def prepare(self) -> None:
        """Find out what is needed to write what was noted."""
        if self._progress is not None and self._progress_version is None:
            seen = await self._scope.read(self._keys.progress)
            self._progress_version = seen.version(self._keys.progress)

    def _with_progress(self) -> dict[RecordKey, Change]:
        key, packed = self._keys.progress, self._progress
        if packed is None or self._progress_version is None:
            return self._extra_changes
        self._progress = None
        self._extra_changes[key] = Put(key, packed, self._progress_version)
        return self._extra_changes

    # --- commits -------------------------------------------------------------------------------------------------

    def guards(self) -> tuple[Change, ...]:
        """Return the guards of every commit: the owner's grant, and the grants of locks that the run holds."""
        if not self.holds:
            return (self._own,)
        return (self._own, *(Check(key, held.fence) for key, held in self.holds.items()))

    async def settled(self) -> None:
        """Wait until nothing is being written."""
        while self.is_flushing:
            await self._until_ended(self._readers)

    def rest(self) -> tuple[Change, ...]:
        """Take out everything that is not written yet, for a commit that does more than that and is the last one."""
        changes = self._chunks(self._pending)
        if self._extra_changes or self._progress is not None:
            changes = (*changes, *self._with_progress().values())
        self._written += len(self._pending)
        self._pending, self._extra_changes = [], {}
        return changes

    def _without(self, taken: Taken, events: list[HistoryEvent]) -> Taken:
        """Say that the first events of what was taken are written."""
        self._written += len(events)
        return structs.replace(taken, position=self._written, events=taken.events[len(events) :])

    def _portions(self, events: list[HistoryEvent]) -> list[list[HistoryEvent]]:
        """Divide events into as many as a commit takes beside what else is in it: branches may end all at once."""
        most = self._scope.store.capabilities.max_commit_bytes // 2
        if len(events) <= 1 or size_of(events) <= most:
            return [events]
        portions, size = [[events[0]]], size_of(events[:1])
        for event in events[1:]:
            weight = size_of([event])
            if size + weight > most:
                portions.append([])
                size = 0
            portions[-1].append(event)
            size += weight
        return portions

    def _chunks(self, events: list[HistoryEvent]) -> tuple[Change, ...]:
        if not events:
            return ()
        if len(events) == 1:
            return (Put(self._keys.chunk(self._written), packed_chunk(events)),)  # as below
        return tuple(
            Put(self._keys.chunk(self._written + position), packed_chunk(some)) for position, some in chunks_of(events)
        )


def release_all(waiting: Iterator[asyncio.Future[None]]) -> None:
    """Let all go on, some in each turn of the event loop: they may be thousands."""
    for each in islice(waiting, MOST_RELEASED):
        if not each.done():
            each.set_result(None)
    if (following := next(waiting, None)) is not None:
        asyncio.get_running_loop().call_soon(release_all, chain((following,), waiting))


def size_of(events: Iterable[HistoryEvent]) -> int:
    """Return how many bytes the values of events have."""
    return sum(len(event.value) for event in events if isinstance(event.value, Raw))
