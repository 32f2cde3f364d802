"""Leaving lines: the commit that ends a run gives its places back, and takes up whoever has them then."""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Final, final

from msgspec import structs

from standfast.errors import StoreError
from standfast.locks.driving.leaving_together import Leaving
from standfast.locks.driving.requests import Along, Lacks
from standfast.locks.driving.run_entries import RunEntries
from standfast.stores.protocol import Check, Commit, Conflict, Delete, Put
from standfast.workflows.limiting.admitting import taken, taking
from standfast.workflows.limiting.standing import entry_id_of, site_of
from standfast.workflows.limiting.waiting import admitted_life
from standfast.workflows.running.activation import Activation
from standfast.workflows.running.journal import Claim
from standfast.workflows.storing.records import HEADERS, LIVES, RunKeys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from standfast.keys import RecordKey
    from standfast.locks.algebra.entries import Holder
    from standfast.locks.driving.driver import Answered
    from standfast.locks.driving.requests import Answer, Shown
    from standfast.stores.protocol import Change, Snapshot, Wake
    from standfast.workflows.running.host import Attendance, Host
    from standfast.workflows.storing.records import Header, Life, Standing

MOST_LAST: Final = 20
"""How many changes of its own fit into the commit that ends a run, besides those of its lines."""


async def leave_lines(
    activation: Activation, life: Life, last: tuple[Change, ...], over: Mapping[RecordKey, bytes | None]
) -> Commit | Conflict:
    """End a run and leave its lines, so that the next one has its turn, in one commit."""
    host, claim = activation.host, activation.claim
    if claim is None:
        return Conflict(host.now(), {})
    if len(last) > min(MOST_LAST, host.space.at_most(100) // 4):
        written = await host.space.commit(Check(claim.key, claim.fence), *last)
        if isinstance(written, Conflict):
            activation.drop(written)
            return written
        last = ()
    ending = _Ending(activation, claim, life, last, over)
    try:
        answered = await ending.leave()
    except _RefusedError as refused:
        activation.drop(refused.conflict)
        return refused.conflict
    host.saw(answered.sight.at)
    return Commit(answered.sight.at, answered.sight.versions)


async def leave_all(host: Host, run_id: str, header: Header) -> None:
    """Let a run leave all its lines, whether it holds or waits there. Doing it again changes nothing."""
    if header.lines:
        await RunEntries(host.lines).leave_all([_leaving(host, run_id, each, look=True) for each in header.lines])


def _leaving(host: Host, run_id: str, standing: Standing, *, look: bool = False) -> Leaving:
    entry_id = entry_id_of(run_id, standing)
    sight = None if look else host.lines.line(standing.address).last
    holder = None if sight is None else sight.line.holder(entry_id)
    slot = None if holder is None else holder.slot
    return Leaving(standing.address, site_of(standing), entry_id, slot)


class _RefusedError(Exception):
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
        life: Life,
        last: tuple[Change, ...],
        over: Mapping[RecordKey, bytes | None],
    ) -> None:
        self._host, self._keys, self._header = activation.host, activation.keys, activation.header
        self._claim, self._life, self._last, self._over = claim, life, last, over
        self._next: Final = _next_in(self._host, self._header.lines[-1])

    async def leave(self) -> Answered:
        """Leave; the one that comes next is driven here, if it can be."""
        lines = [_leaving(self._host, self._keys.id, each) for each in reversed(self._header.lines)]
        keys: list[RecordKey] = [self._claim.key, self._keys.life, *self._over]
        keys += [change.key for change in self._last]
        entries, following = RunEntries(self._host.lines), self._next
        if following is None:
            return await entries.leave_all(lines, along=Along(tuple(keys), self._decide))
        along = Along((*keys, *following.keys), self._decide_with_next, following.welcome)
        try:
            answered = await entries.leave_all(lines, along=along)
        except (CancelledError, StoreError):
            self._host.dropped.add(following.run_id)  # if it was claimed all the same, nobody here is about to load it
            raise
        following.take(answered)
        return answered

    def _decide_with_next(self, answer: Answer, seen: Shown) -> tuple[tuple[Change, ...], tuple[Wake, ...]] | Lacks:
        lacks = None if self._next is None else self._next.look(seen)
        return lacks or self._decide(answer, seen)

    def _decide(self, _: Answer, seen: Snapshot) -> tuple[tuple[Change, ...], tuple[Wake, ...]]:
        keys, claim, life = self._keys, self._claim, self._life
        guards = {claim.key: claim.fence, **{change.key: change.expected for change in self._last}}
        wrong = {key: seen.get(key) for key, expected in guards.items() if seen.version(key) != expected}
        if wrong:
            raise _RefusedError(Conflict(seen.at, wrong))
        if not seen.version(keys.life):
            raise _RefusedError(Conflict(seen.at, {claim.key: seen.get(claim.key)}))
        record = seen.records[keys.life]
        if record.version != claim.life_version:
            life = structs.replace(life, cancel=life.cancel or LIVES.decode(record.value).cancel)
        changes: list[Change] = [Delete(claim.key, claim.fence), Put(keys.life, LIVES.encode_own(life), record.version)]
        for key, value in self._over.items():
            if value is not None:
                changes.append(Put(key, value, seen.version(key)))
            elif seen.version(key):
                changes.append(Delete(key, seen.version(key)))
        return (*changes, *self._last), ()


def _next_in(host: Host, standing: Standing) -> _Next | None:
    """Return the run that comes next in a line, if this engine could drive it and nothing else happens in the line."""
    line = host.lines.line(standing.address)
    waiters = () if line.last is None else line.last.line.waiters
    if not waiters or host.worker is None or not host.has_room() or not line.driver.is_idle:
        return None
    run_id = waiters[0].entry.id
    return None if run_id in host.loaded else _Next(host, run_id, standing, host.worker)


@final
class _Next:
    """The run that comes next in a line: the commit that grants it a place claims it as well."""

    def __init__(self, host: Host, run_id: str, standing: Standing, worker: Attendance) -> None:
        self._host, self._standing, self._worker = host, standing, worker
        self._run: Final = RunKeys(host.space, run_id)
        self._own: Final = self._run.own(worker.presence)
        self._taken: tuple[Header, Life] | None = None
        self._has_news = False

    @property
    def run_id(self) -> str:
        """The run."""
        return self._run.id

    @property
    def keys(self) -> tuple[RecordKey, ...]:
        """All that it takes to claim it."""
        run = self._run
        return run.life, run.header, run.ready, run.counter, self._own, self._worker.guard.key

    def look(self, seen: Shown) -> Lacks | None:
        """See how long it would have waited: then its timer goes as well."""
        self._taken = None
        record = seen.get(self._run.life)
        until = None if record is None else LIVES.decode(record.value).until
        timer = None if until is None else self._run.timer(until)
        return None if timer is None or timer in seen.given else Lacks(frozenset({timer}))

    def welcome(self, granted: tuple[Holder, ...], seen: Snapshot) -> tuple[tuple[Change, ...], tuple[RecordKey, ...]]:
        """Return what claims the run, if it is the one that has its turn now and nothing speaks against it."""
        run, worker = self._run, self._worker
        life_record, header_record = seen.get(run.life), seen.get(run.header)
        if life_record is None or header_record is None or all(each.entry.id != run.id for each in granted):
            return (), ()
        life, header = LIVES.decode(life_record.value), HEADERS.decode(header_record.value)
        if not self._can_take(life, header, seen):
            return (), ()
        after = taken(admitted_life(life, len(header.lines)), worker.presence, seen.at)
        self._taken = header, after
        self._has_news = bool(seen.version(run.ready) or seen.version(run.counter))
        return tuple(taking(run, worker, life, after, seen)), (run.ready,)

    def _can_take(self, life: Life, header: Header, seen: Snapshot) -> bool:
        is_waiting = life.status == "pending" and not life.owner and not life.leased and life.cancel is None
        has_no_history = not life.claims and not header.forked_from
        is_last = life.admitted == len(header.lines) - 1 and header.lines[-1].address == self._standing.address
        is_due = header.begins_at is None or header.begins_at <= seen.at
        is_known = (life.workflow, life.version) in self._host.workflows
        may_claim = seen.version(self._worker.guard.key) == self._worker.guard.expected
        return is_waiting and has_no_history and is_last and is_due and is_known and may_claim

    def take(self, answered: Answered) -> None:
        """Drive it, if it was claimed."""
        if self._taken is None:
            return
        host, versions, (header, life) = self._host, answered.sight.versions, self._taken
        presence, is_first = self._worker.presence, not self._has_news
        right = Claim(self._own, versions[self._own], presence, versions[self._run.life], is_first=is_first)
        workflow = host.workflows[life.workflow, life.version]
        host.emit_moved(self._run.id, life, right.fence, header.started_at, header.lines)
        host.take(Activation(host, self._run, workflow, header, life, right, ()))
