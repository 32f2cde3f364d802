"""Handing a run's places on: the commit that ends a run leaves its lines and claims the run whose turn it is then."""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Final, NoReturn, final

from msgspec import structs

from standfast.errors import StoreError
from standfast.locks.entry import (
    OUT_OF_SIGHT,
    ExtraChanges,
    LeaveRequest,
    LineEntries,
    MissingKeysError,
    given_in,
)
from standfast.stores.protocol import Check, Commit, Conflict, Delete, Put, Record, Snapshot
from standfast.workflows.activation import Activation
from standfast.workflows.journal import Claim
from standfast.workflows.limits import admitted_state, entry_id_of, spec_of
from standfast.workflows.records import (
    HEADERS,
    RUN_STATES,
    Header,
    RunKeys,
    RunState,
    Standing,
    taken,
    taking,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from standfast.keys import RecordKey
    from standfast.locks.entry import Answer, Answered, Holder
    from standfast.stores.protocol import Change
    from standfast.workflows.records import WorkerPresence
    from standfast.workflows.runtime import Runtime

MOST_LAST: Final = 20
"""How many changes of its own fit into the commit that ends a run, besides those of its lines."""


async def leave_lines(
    activation: Activation, state: RunState, last: tuple[Change, ...], over: Mapping[RecordKey, bytes | None]
) -> Commit | Conflict:
    """End a run and leave its lines, so that the next one has its turn, in one commit."""
    runtime, claim = activation.runtime, activation.claim
    if claim is None:
        return Conflict(runtime.now(), {})
    if len(last) > min(MOST_LAST, runtime.space.at_most(100) // 4):
        written = await runtime.space.commit(Check(claim.key, claim.fence), *last)
        if isinstance(written, Conflict):
            activation.drop(written)
            return written
        last = ()
    ending = _Ending(activation, claim, state, last, over)
    try:
        answered = await ending.leave()
    except _EndRefusedError as refused:
        activation.drop(refused.conflict)
        return refused.conflict
    runtime.saw(answered.sight.at)
    return Commit(answered.sight.at, answered.sight.versions)


async def leave_all(runtime: Runtime, run_id: str, header: Header) -> None:
    """Let a run leave all its lines, whether it holds or waits there. Doing it again changes nothing."""
    if header.lines:
        await LineEntries(runtime.lines).leave_all(
            [_leaving(runtime, run_id, each, look=True) for each in header.lines]
        )


def _leaving(runtime: Runtime, run_id: str, standing: Standing, *, look: bool = False) -> LeaveRequest:
    entry_id = entry_id_of(run_id, standing)
    line = None if look else LineEntries(runtime.lines).last_seen(standing.address)
    holder = None if line is None else line.holder(entry_id)
    slot = None if holder is None else holder.slot
    if holder is None and line is not None and line.unseen:
        slot = OUT_OF_SIGHT  # it holds, since it is driven here
    return LeaveRequest(standing.address, spec_of(standing), entry_id, slot)


class _EndRefusedError(Exception):
    """Another worker drives the run by now, or its history is not what it is taken for here."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__(conflict)
        self.conflict = conflict


@final
class _Ending:
    """The commit that ends a run which stands in lines."""

    def __init__(
        self,
        activation: Activation,
        claim: Claim,
        state: RunState,
        last: tuple[Change, ...],
        over: Mapping[RecordKey, bytes | None],
    ) -> None:
        self._runtime, self._keys, self._header = activation.runtime, activation.keys, activation.header
        self._claim, self._state, self._last, self._over = claim, state, last, over
        self._listed: Final = self._keys.listed(state, self._header)
        self._next: Final = _next_in(self._runtime, self._header.lines[-1])

    async def leave(self) -> Answered:
        """Leave; the one that comes next is driven here, if it can be."""
        lines = [_leaving(self._runtime, self._keys.id, each) for each in reversed(self._header.lines)]
        keys: list[RecordKey] = [self._claim.key, self._keys.state, *self._over, *self._listed]
        keys += [change.key for change in self._last]
        entries, following = LineEntries(self._runtime.lines), self._next
        if following is None:
            return await entries.leave_all(lines, extra_changes=ExtraChanges(tuple(keys), self._decide))
        endings = self._runtime.endings
        endings.claiming.add(following.run_id)
        try:
            answered = await self._leave_known(entries, lines, following)
            if answered is None:
                await following.prepare()
                extra_changes = ExtraChanges((*keys, *following.keys), self._decide_with_next, following.on_grant)
                answered = await entries.leave_all(lines, extra_changes=extra_changes)
            following.take(answered)
        except (CancelledError, StoreError):
            self._runtime.dropped.add(
                following.run_id
            )  # if it was claimed all the same, no task here is about to load it
            raise
        finally:
            endings.end_claim(following.run_id)
        return answered

    async def _leave_known(
        self, entries: LineEntries, lines: Sequence[LeaveRequest], following: _Successor
    ) -> Answered | None:
        """Leave without a look at anything, if the next run was started here; None: it has to be looked at."""
        if len(lines) > 1 or self._over or not following.is_known:
            return None
        claim = self._claim
        changes: tuple[Change, ...] = (
            Delete(claim.key, claim.fence),
            Put(self._keys.state, RUN_STATES.encode_own(self._state), claim.state_version),
            *(Put(key, value) for key, value in self._listed.items()),
            *self._last,
        )
        extra_changes = ExtraChanges((), _refuse, following.on_known_grant, guarded=changes)
        return await entries.leave_known(lines[0], extra_changes)

    def _decide_with_next(self, answer: Answer, seen: Snapshot) -> Sequence[Change]:
        if self._next is not None:
            self._next.look(seen)
        return self._decide(answer, seen)

    def _decide(self, _: Answer, seen: Snapshot) -> Sequence[Change]:
        keys, claim, state = self._keys, self._claim, self._state
        guards = {claim.key: claim.fence, **{change.key: change.expected for change in self._last}}
        wrong = {key: seen.get(key) for key, expected in guards.items() if seen.version(key) != expected}
        if wrong:
            raise _EndRefusedError(Conflict(seen.at, wrong))
        if not seen.version(keys.state):
            raise _EndRefusedError(Conflict(seen.at, {claim.key: seen.get(claim.key)}))
        record = seen.records[keys.state]
        if record.version != claim.state_version:
            state = structs.replace(state, cancel=state.cancel or RUN_STATES.decode(record.value).cancel)
        changes: list[Change] = [
            Delete(claim.key, claim.fence),
            Put(keys.state, RUN_STATES.encode_own(state), record.version),
            *(Put(key, value, seen.version(key)) for key, value in self._listed.items()),
        ]
        for key, value in self._over.items():
            if value is not None:
                changes.append(Put(key, value, seen.version(key)))
            elif seen.version(key):
                changes.append(Delete(key, seen.version(key)))
        return (*changes, *self._last)


def _refuse(_: Answer, seen: Snapshot) -> NoReturn:
    raise _EndRefusedError(Conflict(seen.at, {}))  # what is guarded is known before, and nothing else is asked


def _next_in(runtime: Runtime, standing: Standing) -> _Successor | None:
    """Return the run that comes next in a line, if this engine could drive it and nothing else happens in the line."""
    entries = LineEntries(runtime.lines)
    line = entries.last_seen(standing.address)
    waiters = () if line is None else line.waiters
    if not waiters or runtime.worker is None or not runtime.has_room() or not entries.is_idle(standing.address):
        return None
    run_id = waiters[0].entry.id
    return None if run_id in runtime.loaded else _Successor(runtime, run_id, standing, runtime.worker)


@final
class _Successor:
    """The run that comes next in a line: the commit that grants it a place claims it as well."""

    def __init__(self, runtime: Runtime, run_id: str, standing: Standing, worker: WorkerPresence) -> None:
        self._runtime, self._standing, self._worker = runtime, standing, worker
        self._run: Final = RunKeys(runtime.space, run_id)
        self._own: Final = self._run.own(worker.presence)
        self._known: Final = runtime.queued.pop(run_id, None)
        self._taken: tuple[Header, RunState, RunState] | None = None
        self._has_messages = False
        self._gone: frozenset[RecordKey] = frozenset()

    @property
    def run_id(self) -> str:
        """The run."""
        return self._run.id

    @property
    def is_known(self) -> bool:
        """Whether it was started here, so that nothing has to be looked up to claim it."""
        return self._known is not None

    @property
    def keys(self) -> tuple[RecordKey, ...]:
        """All that it takes to claim it."""
        run = self._run
        return run.state, run.header, run.ready, run.counter, self._own, self._worker.guard.key, *self._gone

    def on_known_grant(
        self, granted: tuple[Holder, ...], seen: Snapshot
    ) -> tuple[tuple[Change, ...], tuple[RecordKey, ...]]:
        """Return what claims the run, if it is as it was started: then no news of it has been looked at, either."""
        self._taken, self._has_messages = None, False
        if self._known is None:
            return (), ()
        header, state, version = self._known
        run, guard = self._run, self._worker.guard
        listed = (*run.listed(state, header), *(() if state.until is None else (run.timer(state.until),)))
        records = {key: Record(key, b"", version) for key in (run.state, *listed)}
        records[guard.key] = Record(guard.key, b"", guard.expected)
        return self._claiming(state, header, granted, Snapshot(seen.at, records))

    async def prepare(self) -> None:
        """See where it is listed now: a read costs less than a commit that finds out that it lacks those keys."""
        self._gone = self._records_to_remove(await self._runtime.space.read(self._run.state, self._run.header))

    def look(self, seen: Snapshot) -> None:
        """See where it is listed, and how long it would have waited: those records go as well."""
        self._taken = None
        if missing := self._records_to_remove(seen) - given_in(seen):
            raise MissingKeysError(missing)

    def _records_to_remove(self, seen: Snapshot) -> frozenset[RecordKey]:
        record, header = seen.get(self._run.state), seen.get(self._run.header)
        if record is None or header is None:
            return frozenset()
        state = RUN_STATES.decode(record.value)
        listed = self._run.listed(state, HEADERS.decode(header.value))
        return frozenset(listed if state.until is None else (*listed, self._run.timer(state.until)))

    def on_grant(self, granted: tuple[Holder, ...], seen: Snapshot) -> tuple[tuple[Change, ...], tuple[RecordKey, ...]]:
        """Return what claims the run, if it is the one that has its turn now and nothing speaks against it."""
        state_record, header_record = seen.get(self._run.state), seen.get(self._run.header)
        if state_record is None or header_record is None:
            return (), ()
        state, header = RUN_STATES.decode(state_record.value), HEADERS.decode(header_record.value)
        return self._claiming(state, header, granted, seen)

    def _claiming(
        self, state: RunState, header: Header, granted: tuple[Holder, ...], seen: Snapshot
    ) -> tuple[tuple[Change, ...], tuple[RecordKey, ...]]:
        run, worker = self._run, self._worker
        if all(each.entry.id != run.id for each in granted) or not self._can_take(state, header, seen):
            return (), ()
        after = taken(admitted_state(state, len(header.lines)), worker.presence, seen.at)
        self._taken = header, state, after
        self._has_messages = bool(seen.version(run.ready) or seen.version(run.counter))
        return tuple(taking(run, header, worker, state, after, seen)), (run.ready,)

    def _can_take(self, state: RunState, header: Header, seen: Snapshot) -> bool:
        is_waiting = state.status == "pending" and not state.owner and not state.leased and state.cancel is None
        has_no_history = not state.claims and not header.forked_from
        is_last = state.admitted == len(header.lines) - 1 and header.lines[-1].address == self._standing.address
        is_due = header.begins_at is None or header.begins_at <= seen.at
        is_known = (state.workflow, state.version) in self._runtime.workflows
        may_claim = seen.version(self._worker.guard.key) == self._worker.guard.expected
        return is_waiting and has_no_history and is_last and is_due and is_known and may_claim

    def take(self, answered: Answered) -> None:
        """Drive it, if it was claimed."""
        if self._taken is None:
            return
        runtime, versions, (header, before, state) = self._runtime, answered.sight.versions, self._taken
        presence, is_first = self._worker.presence, not self._has_messages
        right = Claim(self._own, versions[self._own], presence, versions[self._run.state], is_first=is_first)
        workflow = runtime.workflows[state.workflow, state.version]
        runtime.emit_moved(self._run.id, state, right.fence, before, header)
        runtime.execute(Activation(runtime, self._run, workflow, header, state, right, ()))
