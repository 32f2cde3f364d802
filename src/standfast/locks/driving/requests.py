"""What can be asked of a line, what is answered, and one step of it as a pure function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct, structs

from standfast.clock import Instant, later
from standfast.keys import RecordKey
from standfast.locks.algebra.entries import Entry, Holder, Until
from standfast.locks.algebra.line import Granted, Line, TooHeavy, Waiting, advance, enter, leave, renew, resize, sweep
from standfast.stores.protocol import Change, Snapshot, Wake

if TYPE_CHECKING:
    from collections.abc import Sequence


MOST_FALLING: Final = 16
"""The most holders that fall in one step: each needs a key or two, and a step names only so many."""


class Lacks(Struct, frozen=True):
    """It cannot be decided without these keys. The step is taken again, with them in the snapshot."""

    keys: frozenset[RecordKey]


class Shown(Snapshot, frozen=True):
    """The records before a step, and of which keys they are: those that are not ``given`` were not looked at."""

    given: frozenset[RecordKey] = frozenset()


class Along(Struct, frozen=True):
    """Changes of one's own, in the same commit as the step that answers a request.

    ``decide`` is a pure function of the answer and of the records as they were before the step. It returns changes of
    ``keys`` and wakes; whatever it is answered, also if it is refused. It may run several times, on another thread. It
    may also name keys that it :class:`Lacks`.

    If it raises, the request has not happened: nothing of it is in the line or in any record, and its caller alone
    gets the exception. It is there to say no: to a run that exists already, or to a driver that has lost its run.

    Attributes:
        keys: All that it looks at or changes, none of it a record of the line; some forty at most.
        decide: What to do, given what was answered.
        welcome: For a request that is alone in its step: what to do for those whom the step grants, given who they are.
            It returns changes, and which ready records are not needed because their runs know already.
    """

    keys: tuple[RecordKey, ...]
    decide: Callable[[Answer, Shown], tuple[tuple[Change, ...], tuple[Wake, ...]] | Lacks]
    welcome: Callable[[tuple[Holder, ...], Snapshot], tuple[tuple[Change, ...], tuple[RecordKey, ...]]] | None = None


class Enter(Struct, frozen=True):
    """Join the line; without ``waits``, only if that means holding at once.

    ``marker`` is where it is noted that the owner waits here: for those who hold something else meanwhile, and so may
    be part of a circle. ``ticket`` is the place that it had, if it asks again. With a ``lease`` the entry is anchored
    for so many seconds from the step's own time on, whatever its anchor says: the caller's clock has no say in it.
    ``along`` is committed together with the answer, whatever that is. ``permits`` is how many the line has from now on,
    unless an operator has set another number. ``since`` is when it entered, if that is not now: it was there before.
    """

    entry: Entry
    waits: bool = True
    marker: RecordKey | None = None
    ticket: int | None = None
    lease: float | None = None
    along: Along | None = None
    permits: int | None = None
    since: Instant | None = None


class Renew(Struct, frozen=True):
    """Hold for ``lease`` seconds from the step's own time on, for one who holds; for anybody else, do nothing."""

    entry_id: str
    lease: float
    slot: int | None = None


class Leave(Struct, frozen=True):
    """Leave the line, whether holding or waiting. ``slot`` and ``ticket`` say where to look, if that is known.

    ``by_force``: its owner does not ask for it, and has to be told. ``only_waiting``: one that holds by now stays.
    ``marker`` is where it was noted that its owner waits here, and is taken away. ``along`` is committed together with
    the answer.
    """

    entry_id: str
    slot: int | None = None
    ticket: int | None = None
    by_force: bool = False
    only_waiting: bool = False
    marker: RecordKey | None = None
    along: Along | None = None


class Resize(Struct, frozen=True):
    """Set the number of permits, whatever the call sites say; not ``pinned``: until the line is empty."""

    permits: int | None
    pinned: bool = True


class Poke(Struct, frozen=True):
    """Only look: let the dead fall and the front move up. ``along`` is committed with what that comes to."""

    along: Along | None = None


Request: TypeAlias = Enter | Renew | Leave | Resize | Poke


def along_of(request: Request) -> Along | None:
    """Return what is to be committed together with the answer to a request."""
    return None if isinstance(request, Renew | Resize) else request.along


class Refused(Struct, frozen=True):
    """It would have had to wait, and did not want to; or does not hold what it wanted to renew. ``line`` shows who."""

    line: Line


class WaitsForItself(Struct, frozen=True):
    """It would wait for its own owner, for ever. It is not in the line."""

    line: Line


class WrongKind(Struct, frozen=True):
    """The key is in use as another kind of lock. It is not in the line."""

    kind: str


class Left(Struct, frozen=True):
    """What the entry was when it left: holding, waiting, or not there at all."""

    was_holding: bool
    was_waiting: bool


class Done(Struct, frozen=True):
    """The line after a request that has no answer of its own."""

    line: Line


Answer: TypeAlias = Granted | Waiting | TooHeavy | Refused | WaitsForItself | WrongKind | Left | Done


def step(
    line: Line, requests: Sequence[Request], now: Instant, alive: Callable[[Entry], bool]
) -> tuple[Line, tuple[Answer, ...]]:
    """Take one step: let the dead fall, then answer each request in order, the front moving up after each."""
    line = advance(_let_fall(line, requests, now, alive), now)
    answers: list[Answer] = []
    for request in requests:
        line, answer = _answer(line, request, now)
        line = advance(line, now)
        answers.append(answer)
    return line, tuple(answers)


def _let_fall(line: Line, requests: Sequence[Request], now: Instant, alive: Callable[[Entry], bool]) -> Line:
    """Sweep, but leave some of a large crowd of dead holders to the next step; never one that is asked for."""
    swept = sweep(line, now, alive)
    if len(line.holders) - len(swept.holders) <= MOST_FALLING:
        return swept
    asked = {each.entry_id for each in requests if isinstance(each, Leave | Renew)}
    asked |= {each.entry.id for each in requests if isinstance(each, Enter)}
    stand = {holder.entry.id for holder in swept.holders}
    dead = [holder.entry.id for holder in line.holders if holder.entry.id not in stand]
    fall = set(sorted(dead, key=lambda each: each not in asked)[:MOST_FALLING])
    return structs.replace(swept, holders=tuple(each for each in line.holders if each.entry.id not in fall))


def _answer(line: Line, request: Request, now: Instant) -> tuple[Line, Answer]:
    if isinstance(request, Enter):
        return _enter(line, request, now)
    if isinstance(request, Renew):
        line, granted = renew(line, request.entry_id, Until(later(now, request.lease)))
        return line, granted or Refused(line)
    if isinstance(request, Leave):
        left = Left(line.holder(request.entry_id) is not None, line.waiter(request.entry_id) is not None)
        stays = request.only_waiting and left.was_holding
        return (line if stays else leave(line, request.entry_id)), left
    if isinstance(request, Resize):
        line = resize(line, request.permits)
    return line, Done(line)


def _enter(line: Line, request: Enter, now: Instant) -> tuple[Line, Answer]:
    anchor = request.entry.anchor if request.lease is None else Until(later(now, request.lease))
    entry = structs.replace(request.entry, entered_at=now if request.since is None else request.since, anchor=anchor)
    if request.permits is not None and request.permits != line.rules.permits:
        line = advance(resize(line, request.permits), now)
    entered, answer = enter(line, entry, now)
    if not isinstance(answer, Waiting) or line.waiter(entry.id) is not None:
        return entered, answer
    if _waits_for_itself(line, entry):
        return line, WaitsForItself(line)
    return (entered, answer) if request.waits else (line, Refused(line))


def _waits_for_itself(line: Line, entry: Entry) -> bool:
    """Tell whether what the owner holds here already keeps the entry, or someone in front of it, out for ever."""
    own = [holder for holder in line.holders if holder.entry.owner == entry.owner]
    in_front = (waiter.entry for waiter in line.waiters)
    return bool(own) and not all(line.rules.admit(own, each) for each in (entry, *in_front))
