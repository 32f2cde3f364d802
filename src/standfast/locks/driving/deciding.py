"""What one step of a line comes to, as a pure function of a snapshot: the answers, and everything that is committed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, final

from msgspec import Struct, structs

from standfast.clock import later
from standfast.errors import InvalidChangeError
from standfast.keys import RecordKey
from standfast.locks.algebra.entries import Holder, OfRun
from standfast.locks.algebra.line import Line, Rules, Waiting
from standfast.locks.driving.quick_step import quick_step
from standfast.locks.driving.readying import runs_to_tell
from standfast.locks.driving.records import Facts, Head, LineKeys, Site, View
from standfast.locks.driving.requests import (
    Along,
    Answer,
    Enter,
    Lacks,
    Leave,
    Poke,
    Renew,
    Request,
    Resize,
    Shown,
    WrongKind,
    along_of,
    step,
)
from standfast.locks.driving.waits_for import KEPT_FOR, MARKERS, Marker
from standfast.stores.protocol import Capabilities, Check, Decision, Delete, Put
from standfast.stores.rules import check_decision

if TYPE_CHECKING:
    from collections.abc import Iterator

    from standfast.locks.driving.quick_queue import QuickStep
    from standfast.stores.protocol import Change, Snapshot, Wake

FEW_FENCES: Final = 16
"""The most fences of earlier grants that are read in one step; the rest follows in the next look."""

_NO_CHANGE: Final = Check(RecordKey("none"), 1)

Outcome: TypeAlias = Answer | Exception
"""What becomes of a request: its answer, or what its own function has raised."""


class Asked(Struct, frozen=True):
    """All that a step is a function of, but for the snapshot.

    Attributes:
        given: The keys of which the snapshot is taken.
        interest: The entries whose fences are to be told when they hold.
        own: Where wakes for this process are sent: whoever waits in it is told by the step itself.
    """

    keys: LineKeys
    requests: Sequence[Request]
    site: Site
    given: frozenset[RecordKey]
    facts: Facts
    interest: Collection[str]
    own: RecordKey
    limits: Capabilities


class Step(Struct, frozen=True):
    """What one step of a line came to, or the keys that it lacked.

    ``outcomes`` are those of the first so many requests: the others share a key with them that both change, and need a
    step of their own.
    """

    head: Head
    outcomes: tuple[Outcome, ...] = ()
    line: Line = Line(Rules())
    fences: dict[str, int] = {}
    granted: tuple[Holder, ...] = ()
    missing: frozenset[RecordKey] = frozenset()
    disagrees: bool = False


def decide_step(asked: Asked, seen: Snapshot) -> Decision[Step]:
    """Take one step: answer the requests in order, and say what is to be committed."""
    if len(asked.requests) == 1 and (found := _decide_quickly(asked, seen)):
        return found
    view = View(asked.keys, seen, asked.given, asked.site, asked.facts)
    served, problems = len(asked.requests), dict[int, Exception]()
    while not view.missing:
        beside = _Beside(asked, seen, served, problems)
        found = _decide(asked, view, beside)
        if found is not None:
            return found
        served = beside.served
        view.missing.update(beside.lacking)
    return Decision(Step(view.head, missing=frozenset(view.missing)))


def _decide_quickly(asked: Asked, seen: Snapshot) -> Decision[Step] | None:
    request = asked.requests[0]
    quick = quick_step(asked.keys, seen, asked.given, asked.site, asked.facts, request)
    if quick is None or (type(quick.answer) is Waiting and _holds_unknown(asked, quick.head)):
        return None
    found = Step(quick.head, (quick.answer,), quick.line, granted=quick.granted)
    wakes = _wakes_of(asked, quick)
    if not _brings_something(request):
        return Decision(found, (*quick.changes, *quick.ready), wake=wakes)
    beside = _Beside(asked, seen, 1, {})
    if not beside.add((quick.answer,), quick.changes, quick.ready, quick.granted):
        return Decision(Step(quick.head, missing=beside.lacking)) if beside.lacking else None
    return Decision(found, beside.with_those(quick.changes), wake=(*wakes, *beside.wakes))


def _wakes_of(asked: Asked, quick: QuickStep) -> tuple[Wake, ...]:
    """Return whom to wake; a holder only where knowing that somebody waits spares it a round trip."""
    if not quick.wakes or (type(quick.answer) is Waiting and asked.limits.reach != "network"):
        return ()
    return tuple([wake for wake in quick.wakes if not wake.to.startswith(asked.own)])


def _holds_unknown(asked: Asked, head: Head) -> bool:
    """Tell whether somebody holds who is to be told its fence, which only the long way looks up."""
    return any(holder.entry.id in asked.interest for holder in head.holders)


def _decide(asked: Asked, view: View, beside: _Beside) -> Decision[Step] | None:
    """Take the step with the requests that are left; None: it lacks keys, or one request less is left now."""
    requests, at = beside.requests, beside.seen.at
    if not requests:
        return Decision(Step(view.head, beside.outcomes(()), view.line))
    conflict = _kind_conflict(view.head, asked.site)
    taken = _unless_pinned(requests, view.head) if conflict is None else [_unless_refused(each) for each in requests]
    line, answers = step(view.line, taken, at, view.is_alive)
    if conflict is not None:
        pairs = zip(requests, answers, strict=True)
        answers = tuple([conflict if isinstance(each, Enter | Resize) else answer for each, answer in pairs])
    changes = view.changes(line, pinned=_pinned(taken))
    ready = view.ready(runs_to_tell(view.line, line, requests, answers))
    fences, granted = _fences(asked, view, line, requests)
    if view.missing or not beside.add(answers, changes, ready, granted):
        return None
    disagrees = conflict is None and _disagrees(view.head, asked.site, requests)
    answered = Step(view.head, beside.outcomes(answers), line, fences, granted, disagrees=disagrees)
    return Decision(answered, beside.with_those(changes), wake=(*_wakes(asked, view, line, requests), *beside.wakes))


@final
class _Beside:
    """What requests bring along into their step. Who says no to its answer is left out, and the step is taken anew."""

    __slots__ = ("_asked", "_at", "_changes", "_markers", "_problems", "lacking", "requests", "seen", "served", "wakes")

    def __init__(self, asked: Asked, seen: Snapshot, served: int, problems: dict[int, Exception]) -> None:
        self._asked, self.seen, self._problems = asked, seen, problems
        self.served = served
        self._at: Final = [at for at in range(served) if at not in problems]
        self.requests: Final = [asked.requests[at] for at in self._at]
        self._markers: Final[list[Change]] = []
        self._changes: Final[dict[RecordKey, Change]] = {}
        self.wakes: Final[list[Wake]] = []
        self.lacking: frozenset[RecordKey] = frozenset()

    def add(
        self,
        answers: Sequence[Answer],
        changes: Sequence[Change],
        ready: Sequence[Change] = (),
        granted: tuple[Holder, ...] = (),
    ) -> bool:
        """Ask each what it brings along; tell whether all of it fits into one commit."""
        if any(map(_brings_something, self.requests)) and not self._ask(answers, changes):
            return False
        self._changes.update((change.key, change) for change in ready)  # whoever says otherwise: a look does no harm
        if granted and len(self.requests) == 1:
            self._welcome(along_of(self.requests[0]), granted)
        return True

    def _welcome(self, along: Along | None, granted: tuple[Holder, ...]) -> None:
        if along is None or along.welcome is None:
            return
        changes, know = along.welcome(granted, self.seen)
        check_decision(Decision(None, changes), self.seen, tuple(self._asked.given), self._asked.limits)
        for key in know:
            self._changes.pop(key, None)
        self._changes.update((change.key, change) for change in changes)

    def _ask(self, answers: Sequence[Answer], changes: Sequence[Change]) -> bool:
        self._markers.extend(_markers(self._asked.keys, self.requests, answers, self.seen))
        taken = {change.key for change in (*changes, *self._markers)}
        for at, request, answer in zip(self._at, self.requests, answers, strict=True):
            along = along_of(request)
            if along is None:
                continue
            if self._has_changed(along.keys):  # it has to see what the others make of them
                self.served = at
                return False
            try:
                self._add(along, answer, taken)
            except Exception as problem:  # noqa: BLE001 -- whoever asked gets it
                self._problems[at] = problem
                return False
            if self.lacking:
                return False
        return True

    def _has_changed(self, keys: Sequence[RecordKey]) -> bool:
        return any(not isinstance(self._changes.get(key, _NO_CHANGE), Check) for key in keys)

    def _add(self, along: Along, answer: Answer, taken: Collection[RecordKey]) -> None:
        seen = self.seen
        found = along.decide(answer, Shown(seen.at, seen.records, seen.more, self._asked.given))
        if isinstance(found, Lacks):
            self.lacking = found.keys - self._asked.given
            if not self.lacking:
                raise InvalidChangeError("what comes along lacks keys that it was given")
            return
        changes, wakes = found
        check_decision(Decision(None, changes, wake=wakes), self.seen, tuple(self._asked.given), self._asked.limits)
        for change in changes:
            if change.key not in taken:
                self._changes[change.key] = change
            elif not isinstance(change, Check):  # the step itself guards the key at the same version
                raise InvalidChangeError(f"{change.key} is a record of the line itself")
        self.wakes.extend(wakes)

    def with_those(self, changes: Sequence[Change]) -> tuple[Change, ...]:
        """Return the changes of the line together with all that is brought along."""
        return (*changes, *self._markers, *self._changes.values())

    def outcomes(self, answers: Sequence[Answer]) -> tuple[Outcome, ...]:
        """Return what becomes of each request that this step has dealt with."""
        found: dict[int, Outcome] = {**self._problems, **dict(zip(self._at, answers, strict=True))}
        return tuple([found[at] for at in range(self.served)])


def _brings_something(request: Request) -> bool:
    return along_of(request) is not None or (isinstance(request, Enter | Leave) and request.marker is not None)


def _markers(
    keys: LineKeys, requests: Sequence[Request], answers: Sequence[Answer], seen: Snapshot
) -> Iterator[Change]:
    """Note where somebody waits who may be part of a circle, for as long as it waits."""
    found: dict[RecordKey, Put | None] = {}
    for request, answer in zip(requests, answers, strict=True):
        if not isinstance(request, Enter | Leave) or request.marker is None:
            continue
        found[request.marker] = None
        if isinstance(request, Enter) and isinstance(answer, Waiting):
            marker = MARKERS.encode(Marker(keys.address, answer.ticket, request.entry.id))
            expires_at = None if isinstance(request.entry.anchor, OfRun) else later(seen.at, KEPT_FOR)
            found[request.marker] = Put(request.marker, marker, seen.version(request.marker), expires_at)
    for key, put in found.items():
        if put is not None:
            yield put
        elif key in seen.records:
            yield Delete(key, seen.version(key))


def _fences(
    asked: Asked, view: View, line: Line, requests: Sequence[Request]
) -> tuple[dict[str, int], tuple[Holder, ...]]:
    """Return the fences of holders from before, and the holders whose fence this very commit makes."""
    before = {(holder.entry.id, holder.granted_at) for holder in view.line.holders}
    granted = tuple(holder for holder in line.holders if (holder.entry.id, holder.granted_at) not in before)
    told = {_told_fence(each) for each in requests}
    wanted = [
        holder
        for holder in line.holders
        if (holder.entry.id in asked.interest or holder.entry.id in told) and holder not in granted
    ]
    wanted.sort(key=lambda holder: holder.entry.id not in told)
    return {holder.entry.id: view.fence_of(holder) for holder in wanted[:FEW_FENCES]}, granted


def _told_fence(request: Request) -> str | None:
    """Return the entry that a request leases or a run enters: it is told its fence, though nobody waits for it."""
    if isinstance(request, Renew):
        return request.entry_id
    if not isinstance(request, Enter):
        return None
    return request.entry.id if request.lease is not None or isinstance(request.entry.anchor, OfRun) else None


def _wakes(asked: Asked, view: View, line: Line, requests: Sequence[Request]) -> Iterator[Wake]:
    # Whoever waits in this process, or leaves of its own accord, is told by the step itself.
    left = [each.entry_id for each in requests if isinstance(each, Leave) and not each.by_force]
    yield from dict.fromkeys(wake for wake in view.wakes(line, left) if not wake.to.startswith(asked.own))


def _unless_pinned(requests: Sequence[Request], head: Head) -> Sequence[Request]:
    """Return the requests without the permits that they would give a line whose permits were set on purpose."""
    if not any(isinstance(each, Enter) and each.permits is not None for each in requests):
        return requests
    is_pinned = _pinned(requests)
    if not (head.pinned if is_pinned is None else is_pinned):
        return requests
    return [structs.replace(each, permits=None) if isinstance(each, Enter) else each for each in requests]


def _unless_refused(request: Request) -> Request:
    """Return what is left of a request to a line of another kind."""
    return Poke() if isinstance(request, Enter | Resize) else request


def _kind_conflict(head: Head, site: Site) -> WrongKind | None:
    if head.kind == site.kind and head.rules.alone == site.rules.alone:
        return None
    return WrongKind(head.kind if head.kind != site.kind else f"{head.kind} with other modes")


def _disagrees(head: Head, site: Site, requests: Sequence[Request]) -> bool:
    # A number that was set on purpose is meant to differ.
    return head.rules != site.rules and not head.pinned and any(isinstance(each, Enter) for each in requests)


def _pinned(requests: Sequence[Request]) -> bool | None:
    found: bool | None = None
    for request in requests:
        if isinstance(request, Resize):
            found = request.pinned
    return found
