"""Replay: the recorded events of a run, handed to the code that asks for them, in the order in which they were made.

Events of all branches share one order. An event is taken when its branch resumes with it, and the next one only after
that; so what the code does between its operations is interleaved just as it was when the events were made, and plain
variables that branches share have the same values again. Where a history may be cut, so that a run resumes from there,
is decided here too. No I/O and no clock.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from msgspec import Raw, Struct

from standfast.errors import DeclarationError, DuplicateStepIdError, LeaseLostError
from standfast.exits import FAILURES, failure_of
from standfast.workflows.control import is_of_run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence

    from standfast.clock import Instant
    from standfast.workflows.control import RunCancelled
    from standfast.workflows.failures import Failure
    from standfast.workflows.records import HistoryEvent, RunState


def is_within(path: str, other: str) -> bool:
    """Return True if a branch is another one, or was started by it or by one that it started."""
    return not other or path == other or path.startswith(f"{other}/")


# --- the branches of a run: the main one, and those that ``ctx.gather`` and ``ctx.race`` start ---------------------

LONGEST_ID: Final = 200
NOWHERE: Final[frozenset[str]] = frozenset()


@final
class Wait:
    """What a branch waits for.

    Attributes:
        what: In words, for people.
        until: When it is over at the latest; then its result is :data:`OVER`.
        poll: Finds out whether it has come true, and then sets its result; called when there is news for the run.
        predicate: Returns True if it has come true; called after each update.
        signal: The name of the signal that it waits for.
        child: The id of the child whose end it waits for.
        line: The address of the line to reap meanwhile, if it waits in one.
        as_of: How often news had been looked for when the store was asked whether there is anything to wait for. None:
            it was not asked. What has come since was not for this wait, which was not there yet.
        future: Its result.
    """

    __slots__ = ("as_of", "branches", "child", "future", "line", "poll", "predicate", "signal", "until", "what")

    def __init__(
        self,
        what: str,
        until: Instant | None = None,
        poll: Callable[[Wait], Awaitable[None]] | None = None,
        *,
        predicate: Callable[[], object] | None = None,
        signal: str | None = None,
        child: str | None = None,
        line: tuple[str, ...] = (),
        as_of: int | None = None,
    ) -> None:
        self.what, self.until, self.poll, self.predicate, self.line = what, until, poll, predicate, line
        self.signal, self.child, self.as_of = signal, child, as_of
        self.branches: Branches | None = None  # those among which it is counted as waiting
        self.future: Final[asyncio.Future[Any]] = asyncio.get_running_loop().create_future()

    @property
    def is_turn(self) -> bool:
        """Whether it waits for its turn in a line."""
        return self.as_of is not None and self.child is None

    def settle(self, result: object) -> None:
        """End the wait."""
        if not self.future.done():
            self.future.set_result(result)
            self.uncount()

    def interrupt(self, problem: BaseException) -> None:
        """End the wait by an exception."""
        if not self.future.done():
            self.future.set_exception(problem)
            self.future.exception()  # the branch that waits for it may have gone
            self.uncount()

    def uncount(self) -> None:
        """Count its branch as one that is at work again."""
        if self.branches is not None:
            self.branches.active += 1
            self.branches = None


def is_due(predicate: Callable[[], object]) -> bool:
    """Return True if a predicate is true, or raises."""
    try:
        return bool(predicate())
    except FAILURES as raised:  # whatever it raises, it does so again where the code waits for it
        failure_of(raised)
        return True


class Over:
    """The result of a wait whose time is over."""


OVER: Final = Over()

FEW: Final = 64
"""How many waits that have ended are kept in mind, whatever the number of branches."""


@final
class Branch:
    """One line of execution of a run.

    Attributes:
        path: Tells it from the others, whatever order they run in; empty for the main one.
        task: The task that runs it.
        children: How many branches it waits for; while there are any it does nothing itself.
        wait: What it waits for.
        is_beginning: It is being noted that a step begins that runs at most once: from then on it must run here.
        is_in_effect: It runs a step at the moment.
        step: The id of the step that it runs, or has run last.
        is_interrupted: Its step was told to stop.
        cancel: What is to be raised at its next operation.
        is_told: It was told that the run is cancelled, and cleans up.
        lost_in: The paths of the groups in which it was told that another branch has ended first.
        lost: That a lock is gone which it relies on; raised at its next operation.
        refused: How often it was told that the run is taken off, and asked for something all the same.
    """

    __slots__ = (
        "_groups",
        "_names",
        "cancel",
        "children",
        "is_beginning",
        "is_in_effect",
        "is_interrupted",
        "is_told",
        "lost",
        "lost_in",
        "path",
        "refused",
        "step",
        "task",
        "wait",
    )

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self.refused = 0
        self.task: asyncio.Task[Any] | None = None
        self.children = 0
        self.wait: Wait | None = None
        self.is_beginning = self.is_in_effect = self.is_interrupted = self.is_told = False
        self.step = ""
        self.cancel: RunCancelled | None = None
        self.lost: LeaseLostError | None = None
        # Not a set of its own, which is mostly empty: ten thousand of them hold up the collector of garbage.
        self.lost_in: frozenset[str] = NOWHERE
        self._names: Final[dict[str, int]] = {}
        self._groups = 0

    def next_id(self, name: str) -> str:
        """Return the id of the next operation with that name: ``charge``, then ``charge#2``."""
        count = self._names[name] = self._names.get(name, 0) + 1
        step_id = name if count == 1 else f"{name}#{count}"
        return self.placed(step_id) if self.path or "/" in name or "%" in name else step_id

    def explicit_id(self, step_id: str) -> str:
        """Return the id of an operation that the user has named; a second one of that name is refused."""
        if not step_id or len(step_id) > LONGEST_ID or "/" in step_id or "#" in step_id:
            problem = f"a step id is 1 to {LONGEST_ID} characters without / and #"
            raise DeclarationError(f"step id {step_id!r:.220}", problem)
        if step_id in self._names:
            raise DuplicateStepIdError(step_id)
        self._names[step_id] = 1
        return self.placed(step_id)

    def next_group(self) -> str:
        """Return the path of a group of branches that start here."""
        self._groups += 1
        return self.placed(f"g{self._groups}")

    def placed(self, name: str) -> str:
        """Return an id with this branch's path in front of it, which ends at the last slash."""
        name = name.replace("%", "%25").replace("/", "%2F") if "/" in name or "%" in name else name
        return f"{self.path}/{name}" if self.path else name

    def interrupt(self) -> None:
        """Tell the step that it runs to stop."""
        if self.is_in_effect and not self.is_interrupted and self.task is not None:
            self.is_interrupted = True
            self.task.cancel()


@final
class Branches:
    """The branches of a run that have not ended, in the order in which they began, and what they wait for.

    Everything is kept as it changes, so that no question costs more because there are more branches.

    Attributes:
        leaves: How many wait for no other branch.
        active: How many wait for nothing.
        polled: The waits that are polled when there is news, each by itself.
        predicates: Those for a predicate.
        signals: Those for a signal, by its name.
        children: Those for the end of a child, by its id.
    """

    __slots__ = ("_all", "_dues", "_number", "active", "children", "leaves", "polled", "predicates", "signals")

    def __init__(self) -> None:
        self._all: Final[dict[Branch, None]] = {}
        self._dues: Final[list[tuple[Instant, int, Wait]]] = []
        self._number = self.leaves = self.active = 0
        self.polled: Final[dict[Wait, None]] = {}
        self.predicates: Final[dict[Wait, None]] = {}
        self.signals: Final[dict[str, dict[Wait, None]]] = {}
        self.children: Final[dict[str, Wait]] = {}

    def __iter__(self) -> Iterator[Branch]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, branch: Branch) -> bool:
        return branch in self._all

    def add(self, branch: Branch) -> None:
        """Add one that begins."""
        self._all[branch] = None
        self.leaves += 1
        self.active += 1

    def remove(self, branch: Branch) -> None:
        """Take one out that has ended."""
        del self._all[branch]
        if not branch.children:
            self.leaves -= 1
            self.active -= 1

    def begin_group(self, parent: Branch, members: Sequence[Branch]) -> None:
        """Add branches that another one starts, and waits for."""
        if not parent.children:
            self.leaves -= 1
            self.active -= 1
        parent.children += len(members)
        for member in members:
            self.add(member)

    def end_member(self, parent: Branch, member: Branch) -> None:
        """Take one out that has ended; the last of its group lets the parent go on."""
        self.remove(member)
        parent.children -= 1
        if not parent.children and parent in self._all:
            self.leaves += 1
            self.active += 1

    def begin_wait(self, branch: Branch, wait: Wait) -> None:
        """Take note that a branch waits."""
        branch.wait = wait
        if not wait.future.done():
            self.active -= 1
            wait.branches = self
        if wait.until is not None:
            self._number += 1
            heapq.heappush(self._dues, (wait.until, self._number, wait))
            if len(self._dues) > FEW and len(self._dues) > 2 * len(self._all):  # most ended before their time
                self._dues[:] = [each for each in self._dues if not each[2].future.done()]
                heapq.heapify(self._dues)
        if wait.poll is not None:
            self.polled[wait] = None
        if wait.predicate is not None:
            self.predicates[wait] = None
        if wait.signal is not None:
            self.signals.setdefault(wait.signal, {})[wait] = None
        if wait.child is not None:
            self.children[wait.child] = wait

    def end_wait(self, branch: Branch, wait: Wait) -> None:
        """Take note that a branch waits no longer."""
        branch.wait = None
        wait.uncount()
        self.polled.pop(wait, None)
        self.predicates.pop(wait, None)
        if wait.signal is not None and (same := self.signals.get(wait.signal)) is not None:
            same.pop(wait, None)
            if not same:
                del self.signals[wait.signal]
        if wait.child is not None:
            self.children.pop(wait.child, None)

    @property
    def waits(self) -> list[Wait]:
        """Everything that branches wait for."""
        return [branch.wait for branch in self._all if branch.wait is not None]

    def due_at(self) -> Instant | None:
        """Return when the first of the waits is over at the latest."""
        while self._dues and self._dues[0][2].future.done():
            heapq.heappop(self._dues)
        return self._dues[0][0] if self._dues else None

    def expire(self, now: Instant, most: int) -> int:
        """End those waits whose time is over, ``most`` of them at the most; return how many it were."""
        count = 0
        while count < most and self._dues and self._dues[0][0] <= now:
            heapq.heappop(self._dues)[2].settle(OVER)
            count += 1
        return count


CURRENT: Final[ContextVar[Branch | None]] = ContextVar("standfast_branch", default=None)
"""The branch whose code is running."""


# --- replay: a run's recorded events, handed to the code that asks for them, in the order in which they were made ---

FROM_OUTSIDE: Final = frozenset({"update"})
"""Events that no operation asks for: what came from outside."""

ANYWHERE: Final = "lost"
"""The kind of event that any operation may have: that it raised the loss of a lock instead."""


class Mismatch(Struct, frozen=True):
    """The code asks for something else than what is recorded there. Either may be empty: nothing at all."""

    recorded: str
    asked: str


class Later(Struct, frozen=True):
    """It is not this operation's turn: another branch resumes first."""


class Live(Struct, frozen=True):
    """Everything recorded was replayed, and this operation is not among it."""


LATER: Final = Later()
LIVE: Final = Live()


@final
class Replay:
    """The events of a history, and how far they were replayed."""

    __slots__ = ("_by_branch", "_events", "_position")

    def __init__(self, events: Iterable[HistoryEvent]) -> None:
        self._events: Final = tuple(events)
        self._position = 0
        self._by_branch: Final[dict[str, deque[int]]] = {}
        for position, event in enumerate(self._events):
            if event.kind not in FROM_OUTSIDE:
                self._by_branch.setdefault(branch_of(event.id), deque()).append(position)

    @property
    def is_over(self) -> bool:
        """Whether everything recorded was replayed."""
        return self._position == len(self._events)

    @property
    def from_outside(self) -> HistoryEvent | None:
        """The event whose turn it is, if it is one that no operation asks for; see :meth:`pass_by`."""
        if self._position < len(self._events) and self._events[self._position].kind in FROM_OUTSIDE:
            return self._events[self._position]
        return None

    def pass_by(self) -> None:
        """Go past the event that no operation asks for."""
        self._position += 1

    def ask(self, branch: str, kinds: Collection[str], operation_id: str) -> HistoryEvent | Later | Live | Mismatch:
        """Ask for the next event of a branch. An event that is returned was taken.

        Args:
            branch: The path of the branch that asks.
            kinds: The kinds of events that the operation makes.
            operation_id: Its id, with the path.
        """
        waiting = self._by_branch.get(branch)
        if not waiting:
            return LIVE if self._position == len(self._events) else LATER
        event = self._events[waiting[0]]
        if event.id != operation_id or (event.kind not in kinds and event.kind != ANYWHERE):
            return Mismatch(show(event.kind, event.id), show(next(iter(kinds)), operation_id))
        if waiting[0] != self._position:
            return LATER
        waiting.popleft()
        self._position += 1
        return event

    def has(self, operation_id: str) -> bool:
        """Return True if an operation is the next one that is recorded in its branch."""
        waiting = self._by_branch.get(branch_of(operation_id))
        return waiting is not None and bool(waiting) and self._events[waiting[0]].id == operation_id

    def is_live(self, branch: str) -> bool:
        """Return True if everything that a branch has recorded was replayed."""
        return not self._by_branch.get(branch)

    def left_over(self) -> str:
        """Say which event comes next, for an error."""
        return show(self._events[self._position].kind, self._events[self._position].id) if not self.is_over else ""

    @property
    def next_branch(self) -> str | None:
        """The branch whose turn it is; None if it is that of none."""
        if self.is_over or self._events[self._position].kind in FROM_OUTSIDE:
            return None
        return branch_of(self._events[self._position].id)


NOTHING: Final = Replay(())
"""The replay of a run that has just been started, which has nothing that could change."""


def branch_of(operation_id: str) -> str:
    """Return the path of the branch in which an operation was asked for."""
    return operation_id.rpartition("/")[0]


def show(kind: str, operation_id: str) -> str:
    """Show an operation in an error."""
    return f"{kind} {operation_id!r}"


# --- where a history may be cut, so that a run can go on from there. Pure functions of events -----------------------

MOST_EVENTS: Final = 200
MOST_BYTES: Final = 80_000

OPEN: Final = {"child": ("child_done",), "lock": ("held", "released"), "began": ("step", "transaction")}
"""Events of operations that have begun, and those by which they are seen to be done."""


def cut_at(run_id: str, events: Sequence[HistoryEvent], step: str, *, fork: bool = True) -> list[HistoryEvent]:
    """Return what was recorded before a step. Refused if there is no such step, or a lock was held there.

    Everything that was recorded after it goes too, in other branches as well: what remains is how the history was at
    that moment, so that a run can go on from it as after a crash.
    """
    place = next((number for number, event in enumerate(events) if event.id == step and event.kind != "update"), None)
    if place is None:
        known = ", ".join(dict.fromkeys(event.id for event in events if event.kind == "step")) or "none"
        raise DeclarationError(
            f"step {step!r:.200} of the run {run_id!r}", f"it is not recorded; there are {known:.500}"
        )
    kept = list(events[:place])
    _check_locks(f"step {step!r:.200} of the run {run_id!r}", events, kept)
    return _without_open(kept, tuple(OPEN) if fork else ("lock",))


def cut_for_retry(run_id: str, state: RunState, events: Sequence[HistoryEvent]) -> list[HistoryEvent]:
    """Return what a run that has ended goes on from: what was recorded before that which ended it.

    Of the operation that failed nothing is kept, so that it has all its attempts again; a child's start is kept, and so
    is what branches beside it went on to do until they were told to stop. Refused if a lock was held there.
    """
    place = _cause(state, events)
    if place == len(events):
        _check_locks(f"the run {run_id!r}", events, events)
        return _without_open(list(events), ("lock",))
    cause = events[place]
    before, beside = events[:place], list(_beside(branch_of(cause.id), events[place + 1 :]))
    # With the events of the operation itself: if it is the end of a lock, what was done inside goes with the lock.
    _check_locks(f"step {cause.id!r:.200} of the run {run_id!r}", events, (*before, *beside))
    kept = [event for event in before if event.id != cause.id or event.kind == "child"]
    return _without_open([*kept, *beside], ("lock",))


def _beside(path: str, later: Sequence[HistoryEvent]) -> Iterator[HistoryEvent]:
    """Return what was done later in spite of what happened in a branch: in those beside it, and by updates."""
    stopped: set[str] = set()
    for event in later:
        branch = branch_of(event.id)
        if event.kind == "update":
            yield event
        elif _is_beside(path, branch) and branch not in stopped:
            if event.kind == "cancelled":
                stopped.add(branch)
            else:
                yield event


def _is_beside(path: str, other: str) -> bool:
    """Return True if a branch belongs to the same gather or race as another one, or as one around that."""
    for mine, his in zip(path.split("/"), other.split("/"), strict=False):
        if mine != his:
            group = mine.rpartition(".")[0]
            return bool(group) and group == his.rpartition(".")[0]
    return False  # the branch itself, one around it, or one within it


def _cause(state: RunState, events: Sequence[HistoryEvent]) -> int:
    """Return the place of the event that ended a run; the end of the history if its code just raised."""
    if state.status in ("cancelled", "timed_out"):
        told = (number for number, event in enumerate(events) if event.kind == "cancelled" and is_of_run(event))
        return next(told, len(events))
    for number in range(len(events) - 1, -1, -1):
        if _is_same(events[number].failure, state.failure):
            return number
    return len(events) - 1 if events and events[-1].failure is not None else len(events)


def _is_same(recorded: Failure | None, ended: Failure | None) -> bool:
    if recorded is None or ended is None:
        return False
    return (recorded.type, recorded.message) == (ended.type, ended.message)


def _check_locks(what: str, events: Sequence[HistoryEvent], kept: Sequence[HistoryEvent]) -> None:
    """Refuse a cut inside of a lock: it was given back since, and others may have it."""
    if held := _held(kept):
        problem = f"{', '.join(held)} was held there and is not any more; resume from {_outside(events, held)!r}"
        raise DeclarationError(what, problem)


def _held(events: Sequence[HistoryEvent]) -> dict[str, None]:
    """Return the locks that are held at the end of a history, in the order in which they were granted."""
    held: dict[str, None] = {}
    for event in events:
        if event.kind == "held":
            held[event.id] = None
        elif event.kind == "released":
            held.pop(event.id, None)
    return held


def _outside(events: Sequence[HistoryEvent], held: Collection[str]) -> str:
    """Return where a history can be cut instead: at the operation that took these locks, or one held around them."""
    while True:
        place = next(number for number, event in enumerate(events) if event.id in held)
        held = _held(events[:place])
        if not held:
            return events[place].id


def open_children(events: Sequence[HistoryEvent]) -> list[str]:
    """Return the ids of the children that were started and whose end is not recorded."""
    children = {event.id: event for event in events if event.kind == "child" and event.failure is None}
    for event in events:
        if event.kind == "child_done":
            children.pop(event.id, None)
    return [msgspec.json.decode(event.value, type=str) for event in children.values() if isinstance(event.value, Raw)]


def _without_open(events: list[HistoryEvent], kinds: Collection[str]) -> list[HistoryEvent]:
    """Leave out what had begun and was not done, where nothing of it is left. Each event is the last of its branch."""
    done = {(event.kind, event.id) for event in events}
    return [
        event
        for event in events
        if event.kind not in kinds
        or event.failure is not None
        or any((kind, event.id) in done for kind in OPEN[event.kind])
    ]


def chunks_of(events: Sequence[HistoryEvent]) -> Iterator[tuple[int, list[HistoryEvent]]]:
    """Divide a history into chunks that can be stored; each with the position of its first event."""
    some: list[HistoryEvent] = []
    position = size = 0
    for event in events:
        weight = len(event.value) if isinstance(event.value, Raw) else 0
        if some and (len(some) == MOST_EVENTS or size + weight > MOST_BYTES):
            yield position, some
            position, size, some = position + len(some), 0, []
        some.append(event)
        size += weight
    if some:
        yield position, some


def told_again(branch: Branch, cancel: RunCancelled) -> RunCancelled:
    """Return a cancellation that was recorded; it is what the branch was about to be told again by the replay."""
    if branch.cancel is not None and (cancel.of_run or not branch.cancel.of_run):
        branch.cancel = None
    branch.is_told = branch.is_told or cancel.of_run
    branch.lost_in |= {cancel.group}
    return cancel
