"""Replay: a run's recorded marks, handed to the code that asks for them, in the order in which they were made.

Marks of all branches share one order. A mark is taken when its branch resumes with it, and the next one only after
that; so what the code does between its operations is interleaved just as it was when the marks were made, and plain
variables that branches share have the same values again. No I/O and no clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import msgspec
from msgspec import Raw, Struct

from standfast.errors import DuplicateStepIdError, InvalidWorkflowError, LeaseLostError
from standfast.workflows.control import Unload, cancel_of, is_of_run, told_again
from standfast.workflows.failures import describe, restore
from standfast.workflows.records import Mark

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence

    from standfast.clock import Instant
    from standfast.stores.protocol import Conflict
    from standfast.workflows.activation import Activation
    from standfast.workflows.control import RunCancelled
    from standfast.workflows.failures import Failure
    from standfast.workflows.journal import Held
    from standfast.workflows.records import Life


# --- locks that a run has lost: those who rely on them are told at their next operation, and that is recorded there
# ---


def note_lost(activation: Activation, conflict: Conflict) -> bool:
    """Tell the branches whose locks were in the way of a commit; tell whether any was."""
    holds = {} if activation.journal is None else activation.journal.holds
    found = False
    for key, held in tuple(holds.items()):
        is_over = held.ends_at is not None and held.ends_at <= conflict.at
        if is_over or key in conflict.current:
            del holds[key]
            found = True
            _tell(activation, held, "its max_hold is over" if is_over else "it was released by force")
    return found


def _tell(activation: Activation, held: Held, reason: str) -> None:
    for branch in activation.branches:
        if is_within(branch.path, held.path):
            branch.lost = branch.lost or LeaseLostError(held.name, held.fence, reason)


def is_within(path: str, other: str) -> bool:
    """Tell whether a branch is another one, or was started by it or by one that it started."""
    return not other or path == other or path.startswith(f"{other}/")


def raise_lost(activation: Activation, branch: Branch, operation_id: str) -> NoReturn:
    """Raise that a lock is lost, and record that it was raised here."""
    lost, branch.lost = branch.lost, None
    if lost is None or activation.is_unloading:
        raise Unload
    failure = describe(lost, activation.host.known)
    activation.note(Mark("lost", operation_id, activation.host.now(), failure=failure))
    raise lost


def lost_again(activation: Activation, mark: Mark) -> Exception:
    """Return what was raised, and rely on that lock no longer."""
    if mark.failure is None:
        return LeaseLostError("a lock", 0, "no reason was recorded")
    lost = restore(mark.failure, activation.host.known)
    if isinstance(lost, LeaseLostError) and activation.journal is not None:
        holds = activation.journal.holds
        for key in [key for key, held in holds.items() if (held.name, held.fence) == (lost.key, lost.fence)]:
            del holds[key]
    return lost


# --- the branches of a run: the main one, and those that ``ctx.gather`` and ``ctx.race`` start ---------------------

LONGEST_ID: Final = 200


@final
class Wait:
    """What a branch waits for.

    Attributes:
        what: In words, for people.
        until: When it is over at the latest; then its result is :data:`OVER`.
        look: Finds out whether it has come true, and then sets its result; called when there is news for the run.
        predicate: Tells whether it has come true; asked after each update.
        line: The address of the line to look after meanwhile, if it waits in one.
        as_of: How often news had been looked for when the store was asked whether there is anything to wait for. None:
            it was not asked. What has come since was not for this wait, which was not there yet.
        future: Its result.
    """

    __slots__ = ("as_of", "future", "line", "look", "predicate", "until", "what")

    def __init__(
        self,
        what: str,
        until: Instant | None = None,
        look: Callable[[Wait], Awaitable[None]] | None = None,
        *,
        predicate: Callable[[], object] | None = None,
        line: tuple[str, ...] = (),
        as_of: int | None = None,
    ) -> None:
        self.what, self.until, self.look, self.predicate, self.line = what, until, look, predicate, line
        self.as_of = as_of
        self.future: Final[asyncio.Future[Any]] = asyncio.get_running_loop().create_future()

    def settle(self, result: object) -> None:
        """End the wait."""
        if not self.future.done():
            self.future.set_result(result)

    def interrupt(self, problem: BaseException) -> None:
        """End the wait by an exception."""
        if not self.future.done():
            self.future.set_exception(problem)
            self.future.exception()  # whoever waits for it may have gone


def is_due(predicate: Callable[[], object]) -> bool:
    """Tell whether a predicate is true, or raises."""
    try:
        return bool(predicate())
    except Exception:  # noqa: BLE001 -- whatever it raises, it does so again where the code waits for it
        return True


class Over:
    """The result of a wait whose time is over."""


OVER: Final = Over()


@final
class Branch:
    """One line of execution of a run.

    Attributes:
        path: Tells it from the others, whatever order they run in; empty for the main one.
        task: The task that runs it.
        children: How many branches it waits for; while there are any it does nothing itself.
        wait: What it waits for.
        is_in_effect: It runs a step at the moment.
        step: The id of the step that it runs, or has run last.
        is_interrupted: Its step was told to stop.
        cancel: What is to be raised at its next operation.
        is_told: It was told that the run is cancelled, and cleans up.
        lost_in: The paths of the groups in which it was told that another branch has ended first.
        lost: That a lock is gone which it relies on; raised at its next operation.
    """

    __slots__ = (
        "_groups",
        "_ids",
        "_names",
        "cancel",
        "children",
        "is_in_effect",
        "is_interrupted",
        "is_told",
        "lost",
        "lost_in",
        "path",
        "step",
        "task",
        "wait",
    )

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self.task: asyncio.Task[Any] | None = None
        self.children = 0
        self.wait: Wait | None = None
        self.is_in_effect = self.is_interrupted = self.is_told = False
        self.step = ""
        self.cancel: RunCancelled | None = None
        self.lost: LeaseLostError | None = None
        self.lost_in: Final[set[str]] = set()
        self._names: Final[dict[str, int]] = {}
        self._ids: Final[set[str]] = set()
        self._groups = 0

    def next_id(self, name: str) -> str:
        """Return the id of the next operation with that name: ``charge``, then ``charge#2``."""
        count = self._names[name] = self._names.get(name, 0) + 1
        return self.placed(name if count == 1 else f"{name}#{count}")

    def explicit_id(self, step_id: str) -> str:
        """Return the id of an operation that the user has named; a second one of that name is refused."""
        if not step_id or len(step_id) > LONGEST_ID or "/" in step_id or "#" in step_id:
            problem = f"a step id is 1 to {LONGEST_ID} characters without / and #"
            raise InvalidWorkflowError(f"step id {step_id!r:.220}", problem)
        if step_id in self._ids or step_id in self._names:
            raise DuplicateStepIdError(step_id)
        self._ids.add(step_id)
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


CURRENT: Final[ContextVar[Branch | None]] = ContextVar("standfast_branch", default=None)
"""The branch whose code is running."""


# --- replay: a run's recorded marks, handed to the code that asks for them, in the order in which they were made ---

BY_THE_WAY: Final = frozenset({"update"})
"""Marks that no operation asks for: what came from outside."""

ANYWHERE: Final = "lost"
"""The kind of mark that any operation may have: that it raised the loss of a lock instead."""


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
    """The marks of a history, and how far they were replayed."""

    __slots__ = ("_by_branch", "_marks", "_position")

    def __init__(self, marks: Iterable[Mark]) -> None:
        self._marks: Final = tuple(marks)
        self._position = 0
        self._by_branch: Final[dict[str, deque[int]]] = {}
        for position, mark in enumerate(self._marks):
            if mark.kind not in BY_THE_WAY:
                self._by_branch.setdefault(branch_of(mark.id), deque()).append(position)

    @property
    def is_over(self) -> bool:
        """Whether everything recorded was replayed."""
        return self._position == len(self._marks)

    @property
    def by_the_way(self) -> Mark | None:
        """The mark whose turn it is, if it is one that no operation asks for; see :meth:`pass_by`."""
        if self._position < len(self._marks) and self._marks[self._position].kind in BY_THE_WAY:
            return self._marks[self._position]
        return None

    def pass_by(self) -> None:
        """Go past the mark that no operation asks for."""
        self._position += 1

    def ask(self, branch: str, kinds: Collection[str], operation_id: str) -> Mark | Later | Live | Mismatch:
        """Ask for the next mark of a branch. A mark that is returned was taken.

        Args:
            branch: The path of the branch that asks.
            kinds: The kinds of marks that the operation makes.
            operation_id: Its id, with the path.
        """
        waiting = self._by_branch.get(branch)
        if not waiting:
            return LIVE if self._position == len(self._marks) else LATER
        mark = self._marks[waiting[0]]
        if mark.id != operation_id or (mark.kind not in kinds and mark.kind != ANYWHERE):
            return Mismatch(show(mark.kind, mark.id), show(next(iter(kinds)), operation_id))
        if waiting[0] != self._position:
            return LATER
        waiting.popleft()
        self._position += 1
        return mark

    def has(self, operation_id: str) -> bool:
        """Tell whether an operation is the next one that is recorded in its branch."""
        waiting = self._by_branch.get(branch_of(operation_id))
        return waiting is not None and bool(waiting) and self._marks[waiting[0]].id == operation_id

    def is_live(self, branch: str) -> bool:
        """Tell whether everything that a branch has recorded was replayed."""
        return not self._by_branch.get(branch)

    def left_over(self) -> str:
        """Say which mark comes next, for an error."""
        return show(self._marks[self._position].kind, self._marks[self._position].id) if not self.is_over else ""

    @property
    def next_branch(self) -> str | None:
        """The branch whose turn it is; None if it is nobody's."""
        if self.is_over or self._marks[self._position].kind in BY_THE_WAY:
            return None
        return branch_of(self._marks[self._position].id)


def branch_of(operation_id: str) -> str:
    """Return the path of the branch in which an operation was asked for."""
    return operation_id.rpartition("/")[0]


def show(kind: str, operation_id: str) -> str:
    """Show an operation in an error."""
    return f"{kind} {operation_id!r}"


# --- where a history may be cut, so that a run can go on from there. Pure functions of marks -----------------------

MOST_MARKS: Final = 200
MOST_BYTES: Final = 80_000

OPEN: Final = {"child": ("child_done",), "lock": ("held", "released"), "began": ("step", "transaction")}
"""Marks of operations that have begun, and those by which they are seen to be done."""


def cut_at(run_id: str, marks: Sequence[Mark], step: str, *, fork: bool = True) -> list[Mark]:
    """Return what was recorded before a step. Refused if there is no such step, or a lock was held there.

    Everything that was recorded after it goes too, in other branches as well: what remains is how the history was at
    that moment, so that a run can go on from it as after a crash.
    """
    place = next((number for number, mark in enumerate(marks) if mark.id == step and mark.kind != "update"), None)
    if place is None:
        known = ", ".join(dict.fromkeys(mark.id for mark in marks if mark.kind == "step")) or "none"
        raise InvalidWorkflowError(
            f"step {step!r:.200} of the run {run_id!r}", f"it is not recorded; there are {known:.500}"
        )
    kept = list(marks[:place])
    _check_locks(f"step {step!r:.200} of the run {run_id!r}", marks, kept)
    return _without_open(kept, tuple(OPEN) if fork else ("lock",))


def cut_for_retry(run_id: str, life: Life, marks: Sequence[Mark]) -> list[Mark]:
    """Return what a run that has ended goes on from: what was recorded before that which ended it.

    Of the operation that failed nothing is kept, so that it has all its attempts again; a child's start is kept, and so
    is what branches beside it went on to do until they were told to stop. Refused if a lock was held there.
    """
    place = _cause(life, marks)
    if place == len(marks):
        _check_locks(f"the run {run_id!r}", marks, marks)
        return _without_open(list(marks), ("lock",))
    cause = marks[place]
    before, beside = marks[:place], list(_beside(branch_of(cause.id), marks[place + 1 :]))
    # With the marks of the operation itself: if it is the end of a lock, what was done inside goes with the lock.
    _check_locks(f"step {cause.id!r:.200} of the run {run_id!r}", marks, (*before, *beside))
    kept = [mark for mark in before if mark.id != cause.id or mark.kind == "child"]
    return _without_open([*kept, *beside], ("lock",))


def _beside(path: str, later: Sequence[Mark]) -> Iterator[Mark]:
    """Return what was done later in spite of what happened in a branch: in those beside it, and by updates."""
    stopped: set[str] = set()
    for mark in later:
        branch = branch_of(mark.id)
        if mark.kind == "update":
            yield mark
        elif _is_beside(path, branch) and branch not in stopped:
            if mark.kind == "cancelled":
                stopped.add(branch)
            else:
                yield mark


def _is_beside(path: str, other: str) -> bool:
    """Tell whether a branch belongs to the same gather or race as another one, or as one around that."""
    for mine, his in zip(path.split("/"), other.split("/"), strict=False):
        if mine != his:
            group = mine.rpartition(".")[0]
            return bool(group) and group == his.rpartition(".")[0]
    return False  # the branch itself, one around it, or one within it


def _cause(life: Life, marks: Sequence[Mark]) -> int:
    """Return the place of the mark that ended a run; the end of the history if its code just raised."""
    if life.status in ("cancelled", "timed_out"):
        told = (number for number, mark in enumerate(marks) if mark.kind == "cancelled" and is_of_run(mark))
        return next(told, len(marks))
    for number in range(len(marks) - 1, -1, -1):
        if _is_same(marks[number].failure, life.failure):
            return number
    return len(marks) - 1 if marks and marks[-1].failure is not None else len(marks)


def _is_same(recorded: Failure | None, ended: Failure | None) -> bool:
    if recorded is None or ended is None:
        return False
    return (recorded.type, recorded.message) == (ended.type, ended.message)


def _check_locks(what: str, marks: Sequence[Mark], kept: Sequence[Mark]) -> None:
    """Refuse a cut inside of a lock: it was given back since, and others may have it."""
    if held := _held(kept):
        problem = f"{', '.join(held)} was held there and is not any more; go on from {_outside(marks, held)!r}"
        raise InvalidWorkflowError(what, problem)


def _held(marks: Sequence[Mark]) -> dict[str, None]:
    """Return the locks that are held at the end of a history, in the order in which they were granted."""
    held: dict[str, None] = {}
    for mark in marks:
        if mark.kind == "held":
            held[mark.id] = None
        elif mark.kind == "released":
            held.pop(mark.id, None)
    return held


def _outside(marks: Sequence[Mark], held: Collection[str]) -> str:
    """Return where a history can be cut instead: at the operation that took these locks, or one held around them."""
    while True:
        place = next(number for number, mark in enumerate(marks) if mark.id in held)
        held = _held(marks[:place])
        if not held:
            return marks[place].id


def open_children(marks: Sequence[Mark]) -> list[str]:
    """Return the ids of the children that were started and whose end is not recorded."""
    children = {mark.id: mark for mark in marks if mark.kind == "child" and mark.failure is None}
    for mark in marks:
        if mark.kind == "child_done":
            children.pop(mark.id, None)
    return [msgspec.json.decode(mark.value, type=str) for mark in children.values() if isinstance(mark.value, Raw)]


def _without_open(marks: list[Mark], kinds: Collection[str]) -> list[Mark]:
    """Leave out what had begun and was not done, where nothing of it is left. Each mark is the last of its branch."""
    done = {(mark.kind, mark.id) for mark in marks}
    return [
        mark
        for mark in marks
        if mark.kind not in kinds
        or mark.failure is not None
        or any((kind, mark.id) in done for kind in OPEN[mark.kind])
    ]


def chunks_of(marks: Sequence[Mark]) -> Iterator[tuple[int, list[Mark]]]:
    """Divide a history into chunks that can be stored; each with the position of its first mark."""
    some: list[Mark] = []
    position = size = 0
    for mark in marks:
        weight = len(mark.value) if isinstance(mark.value, Raw) else 0
        if some and (len(some) == MOST_MARKS or size + weight > MOST_BYTES):
            yield position, some
            position, size, some = position + len(some), 0, []
        some.append(mark)
        size += weight
    if some:
        yield position, some


# --- turns: each branch of a run gets its recorded marks in the order in which they were made ----------------------


@final
class Turns:
    """Who of a run's branches waits for its turn to resume."""

    __slots__ = ("_activation", "_waiting")

    def __init__(self, activation: Activation) -> None:
        self._activation: Final = activation
        self._waiting: Final[dict[str, asyncio.Future[None]]] = {}

    async def take(
        self, branch: Branch, kinds: Collection[str], operation_id: str, *, is_leaving: bool = False
    ) -> Mark | None:
        """Return the mark of an operation when it is its turn to be replayed; None if it is to be done now.

        A branch that is leaving something does so whatever it is to be told; it is told at its next operation.
        """
        activation = self._activation
        while True:
            if activation.is_unloading:
                raise Unload
            if activation.ending and not activation.replay.is_over:
                await asyncio.sleep(0)  # what the mark before led to comes before this one, as it did when it was made
                continue
            found = activation.replay.ask(branch.path, kinds, operation_id)
            if type(found) is Mark:
                self.go_on()
                return self._taken(branch, found)
            if found is LIVE:
                if activation.is_stopping or activation.claim is None:
                    raise Unload
                if not is_leaving:
                    self._tell(branch, operation_id)
                return None
            if type(found) is Mismatch:
                activation.differ(found.recorded, found.asked)
                raise Unload
            await self._wait(branch, operation_id)

    def _taken(self, branch: Branch, mark: Mark) -> Mark:
        """Return a mark, or raise what it says that was raised there."""
        if mark.kind == "cancelled":
            raise told_again(branch, cancel_of(mark))
        if mark.kind == ANYWHERE:
            raise lost_again(self._activation, mark)
        return mark

    def _tell(self, branch: Branch, operation_id: str) -> None:
        """Raise what a branch is to be told where it begins an operation."""
        if branch.cancel is not None:
            self._activation.raise_cancel(branch, operation_id)
        if branch.lost is not None:
            raise_lost(self._activation, branch, operation_id)

    async def _wait(self, branch: Branch, operation_id: str) -> None:
        activation, loop = self._activation, asyncio.get_running_loop()
        future = self._waiting[branch.path] = loop.create_future()
        try:
            if activation.replay.by_the_way is not None:
                loop.call_soon(self.pass_by)
            if self._is_stalled():
                activation.differ(activation.replay.left_over(), f"nothing there, but {operation_id!r}")
                raise Unload
            await future
        finally:
            self._waiting.pop(branch.path, None)

    def _is_stalled(self) -> bool:
        """Tell whether nobody is left who could take the mark whose turn it is."""
        replay, waiting = self._activation.replay, self._waiting
        if replay.is_over or replay.by_the_way is not None or replay.next_branch in waiting:
            return False
        return all(branch.path in waiting for branch in self._activation.branches if not branch.children)

    def someone_ended(self) -> None:
        """A branch has ended: those that are left may all be waiting now."""
        if self._waiting and self._is_stalled():
            self._activation.differ(self._activation.replay.left_over(), "nothing there: the branch has ended")

    def go_on(self) -> None:
        """A mark was taken: let whoever is next have its turn, once the code that took this one waits again."""
        replay = self._activation.replay
        if replay.by_the_way is not None:
            asyncio.get_running_loop().call_soon(self.pass_by)
        elif replay.is_over:
            for future in self._waiting.values():
                _release(future)
            if self._activation.mail.has_updates:
                self._activation.poke()
        elif (next_one := self._waiting.get(replay.next_branch or "")) is not None:
            _release(next_one)

    def pass_by(self) -> None:
        """Do again what came from outside at this place of the history."""
        activation = self._activation
        mark = activation.replay.by_the_way
        if mark is not None and not activation.is_unloading:
            activation.mail.replay_update(mark)
            activation.replay.pass_by()
            self.go_on()
            activation.check_predicates()

    def unload(self) -> None:
        """Let those who wait know that the run is taken off."""
        for future in tuple(self._waiting.values()):
            if not future.done():
                future.set_exception(Unload())
                future.exception()  # whoever waits for it may have gone


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
