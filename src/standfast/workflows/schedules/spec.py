"""What a schedule is: how users write it, and how it is stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import islice, pairwise
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    TypeAlias,
    TypedDict,
    TypeVarTuple,
    Unpack,
    final,
    get_args,
    overload,
)

from msgspec import Raw, Struct, structs
from msgspec.structs import replace

from standfast.clock import MICROSECONDS, Instant
from standfast.codec import Codec
from standfast.durations import DAY, Duration, seconds
from standfast.errors import DeclarationError, InvalidArgumentError, MissingExtraError
from standfast.keys import RecordKey
from standfast.stores.protocol import Conflict, Delete, Put
from standfast.workflows.records import NO_DUE, timer_key
from standfast.workflows.schedules.cron import check_cron, ticks, zone_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Commit
    from standfast.workflows.definition import Bound, Workflow


# --- what a schedule is: how users write it, and how it is stored --------------------------------------------------

Ts = TypeVarTuple("Ts")

Overlap: TypeAlias = Literal["skip", "queue", "cancel_running", "allow"]
"""What a tick does while a run of the same schedule is unfinished."""

OVERLAPS: Final[tuple[str, ...]] = get_args(Overlap)
SHORTEST_PERIOD: Final = 1.0
MOST_BACKFILLED: Final = 100
LONGEST_ID: Final = 200
"""In bytes of UTF-8."""

_BACKFILL_LIMIT: Final = 10_000
_SAMPLE: Final = 100
_SAMPLE_FROM: Final = Instant(1_704_067_200_000_000)  # 2024, a leap year
_UNBOUND: Final = Raw(b"null")


class TickOptions(TypedDict, total=False):
    """When a schedule fires, and what happens when ticks were missed.

    Attributes:
        cron: Minute, hour, day of month, month and day of week: ``"0 9 * * mon-fri"``; with a sixth field in front,
            seconds. ``@hourly``, ``@daily``, ``@weekly``, ``@monthly`` and ``@yearly`` as well.
        zone: The time zone of ``cron``, like ``"Europe/Berlin"``; by default UTC.
        every: The time between two ticks, from one second on. The first is one period after the schedule was made.
        backfill: Whether missed ticks are made up for, one after another. By default a tick that is more than a second
            late is left out and counted as missed.
        most_backfilled: How many missed ticks are made up for at most, the oldest first; the rest is counted as missed.
        jitter: Each tick fires up to that much later, always by the same amount for the same tick. Keeps many schedules
            from firing together.
    """

    cron: str | None
    zone: str | None
    every: Duration | None
    backfill: bool
    most_backfilled: int | None
    jitter: Duration | None


class ScheduleOptions(TickOptions, total=False):
    """When a schedule fires, as in :class:`TickOptions`, and what happens when ticks overlap.

    Attributes:
        overlap: While a run of this schedule is unfinished, a tick is dropped (``"skip"``, the default), waits its turn
            (``"queue"``), cancels the run first (``"cancel_running"``), or starts another one (``"allow"``). A tick
            that ``backfill`` makes up for waits its turn, except with ``"allow"``.
    """

    overlap: Overlap


KNOWN: Final = frozenset(ScheduleOptions.__annotations__)


class ScheduleSpec(Struct, frozen=True, omit_defaults=True):
    """A schedule as it is stored: exactly one of ``cron`` and ``every`` is there; durations are seconds.

    ``version`` is that of the workflow which it was made with. Where only others are, those are started.
    """

    workflow: str
    input: Raw
    cron: str | None = None
    every: float | None = None
    zone: str = "UTC"
    overlap: Overlap = "skip"
    backfill: bool = False
    most_backfilled: int = MOST_BACKFILLED
    jitter: float = 0.0
    version: str | None = None

    def has_times_of(self, other: ScheduleSpec) -> bool:
        """Return True if two schedules tick at the same times."""
        return (self.cron, self.every, self.zone, self.jitter) == (other.cron, other.every, other.zone, other.jitter)


SPECS: Final[Codec[ScheduleSpec]] = Codec(ScheduleSpec, what="a schedule")
"""How a schedule is stored. Reading one asks for no time zone; working out its ticks does."""


@final
class Schedule:
    """A workflow to be started by the clock.

        Schedule(report, "eu", id="daily-report", cron="0 9 * * mon-fri", zone="Europe/Berlin")
        Schedule(sweep, id="sweep", every="5 minutes", overlap="skip", kwargs={"limit": 100})

    Each tick starts one run, however many processes poll the schedule. Times are those of the clock on the wall,
    of the store's server or of the machine that its file lies on. A time of day that is skipped when clocks go forward
    runs at that moment, one that occurs twice runs once; where the hours are ``*`` or ``*/2``, ticks follow the clock
    instead and run whenever it shows a time that matches.

    Args:
        workflow: The workflow; one with its arguments, by :meth:`Workflow.bind`; or its name.
        args: What it is started with.
        id: The name of the schedule, unique in its namespace and tenant.
        kwargs: Arguments to pass by name.
        paused: Whether it begins paused.
        options: When it fires, see :class:`ScheduleOptions`.

    Raises:
        DeclarationError: Something makes no sense; the message names it and says what would.
    """

    __slots__ = ("_unbound", "args", "id", "kwargs", "paused", "workflow")

    @overload
    def __init__(
        self,
        workflow: Callable[[Unpack[Ts]], Coroutine[Any, Any, Any]],
        *args: *Ts,
        id: str,
        paused: bool = False,
        **options: Unpack[ScheduleOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        workflow: Workflow[..., Any],
        *args: object,
        id: str,
        kwargs: Mapping[str, object] | None,
        paused: bool = False,
        **options: Unpack[ScheduleOptions],
    ) -> None: ...
    @overload
    def __init__(
        self, workflow: Bound[Any], *, id: str, paused: bool = False, **options: Unpack[ScheduleOptions]
    ) -> None: ...
    @overload
    def __init__(
        self,
        workflow: str,
        *args: object,
        id: str,
        kwargs: Mapping[str, object] | None = None,
        paused: bool = False,
        **options: Unpack[ScheduleOptions],
    ) -> None: ...
    def __init__(
        self,
        workflow: object,
        *args: object,
        id: str,  # noqa: A002 -- the word that users know
        kwargs: Mapping[str, object] | None = None,
        paused: bool = False,
        **options: Unpack[ScheduleOptions],
    ) -> None:
        self.workflow: Final = workflow
        self.args: Final = args
        self.kwargs: Final[dict[str, object]] = dict(kwargs or {})
        self.id: Final = check_id(id)
        self.paused: Final = check_flag("paused", paused)
        self._unbound: Final = check_spec("", _UNBOUND, **options)

    def spec(self, workflow: str, packed: Raw, version: str | None = None) -> ScheduleSpec:
        """Return what to store, with the workflow's name and version, and its packed arguments."""
        return replace(self._unbound, workflow=workflow, input=packed, version=version)

    def __repr__(self) -> str:
        when = self._unbound.cron or f"every {self._unbound.every:g} s"
        return f"<schedule {self.id}: {when}>"


def check_spec(workflow: str, packed: Raw, **options: Unpack[ScheduleOptions]) -> ScheduleSpec:
    """Return a schedule that is ready to be stored.

    Raises:
        DeclarationError: Something makes no sense; the message names it and says what would.
    """
    for name in options.keys() - KNOWN:
        raise DeclarationError("the option of a schedule", f"it must be one of {', '.join(sorted(KNOWN))}", repr(name))
    cron, every, zone = _check_when(options.get("cron"), options.get("every"), options.get("zone"))
    backfill = check_flag("backfill", options.get("backfill", False))
    overlap = options.get("overlap", "skip")
    if overlap not in OVERLAPS:
        raise DeclarationError("the overlap of a schedule", f"it must be one of {', '.join(OVERLAPS)}", _shown(overlap))
    spec = ScheduleSpec(
        workflow,
        packed,
        cron=cron,
        every=every,
        zone=zone,
        overlap=overlap,
        backfill=backfill,
        most_backfilled=_check_most(options.get("most_backfilled"), backfill=backfill),
    )
    return replace(spec, jitter=_check_jitter(options.get("jitter"), spec))


def check_id(schedule_id: str) -> str:
    """Return the id of a schedule; refuse what cannot be one."""
    is_text = type(schedule_id) is str and schedule_id.isprintable() and not schedule_id.startswith("@")
    if is_text and 0 < len(schedule_id.encode()) <= LONGEST_ID:
        return schedule_id
    problem = f"it must be printable text of 1 to {LONGEST_ID} bytes that does not begin with @"
    raise DeclarationError("the id of a schedule", problem, _shown(schedule_id))


def check_flag(what: str, value: object) -> bool:
    """Return True or False; refuse anything that merely looks like it."""
    if type(value) is not bool:
        raise DeclarationError(f"the {what} of a schedule", "it must be True or False", _shown(value))
    return value


def _check_when(cron: str | None, every: Duration | None, zone: str | None) -> tuple[str | None, float | None, str]:
    if cron is not None and every is None:
        return check_cron(cron), None, _check_zone(zone)
    if cron is not None or every is None:
        given = "nothing" if cron is None else f"cron={_shown(cron)} with every={_shown(every)}"
        raise DeclarationError(
            "the time of a schedule", 'give either cron="0 9 * * mon-fri" or every="5 minutes"', given
        )
    if zone is not None:
        raise DeclarationError(
            "the zone of a schedule", "a zone goes with cron; a period is the same everywhere", _shown(zone)
        )
    return None, _length("every", every, SHORTEST_PERIOD), "UTC"


def _check_zone(zone: str | None) -> str:
    if zone is None:
        return "UTC"
    if type(zone) is not str:
        raise DeclarationError(
            "the zone of a schedule", 'it must be the name of a time zone, like "Europe/Berlin"', _shown(zone)
        )
    try:
        zone_of(zone)
    except MissingExtraError:
        problem = 'this machine knows no such time zone; write one like "Europe/Berlin", or install tzdata'
        raise DeclarationError("the zone of a schedule", problem, _shown(zone)) from None
    return zone


def _check_most(most: int | None, *, backfill: bool) -> int:
    if most is None:
        return MOST_BACKFILLED
    if not backfill:
        raise DeclarationError("the most_backfilled of a schedule", "it goes with backfill=True", _shown(most))
    if type(most) is not int or not 1 <= most <= _BACKFILL_LIMIT:
        problem = f"it must be a whole number from 1 to {_BACKFILL_LIMIT:,}"
        raise DeclarationError("the most_backfilled of a schedule", problem, _shown(most))
    return most


def _check_jitter(jitter: Duration | None, spec: ScheduleSpec) -> float:
    if jitter is None:
        return 0.0
    length = _length("jitter", jitter, 0.0)
    if length and length >= (shortest := _shortest_gap(spec)):
        problem = f"it must be shorter than the {shortest:g} s between two ticks"
        raise DeclarationError("the jitter of a schedule", problem, _shown(jitter))
    return length


def _shortest_gap(spec: ScheduleSpec) -> float:
    """Return the shortest time between ticks, in seconds; of a cron expression, among its first hundred."""
    if spec.cron is None:
        return spec.every or 0.0
    sample = islice(ticks(spec.cron, spec.zone, _SAMPLE_FROM), _SAMPLE)
    return min(end - start for start, end in pairwise(sample)) / MICROSECONDS


def _length(what: str, value: Duration, minimum: float) -> float:
    try:
        return seconds(value, what=what, minimum=minimum, maximum_bare=DAY)
    except InvalidArgumentError as error:
        raise DeclarationError(f"the {what} of a schedule", error.problem, error.given) from None


def _shown(value: object) -> str:
    return ascii(value)[:60] if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"


# --- which ticks of a schedule are due, and when to look again: functions of values --------------------------------
#
# A tick has a **nominal** time, which the schedule names. It fires at its nominal time or, with jitter, a little later.
# What the state keeps as ``next_at`` is always nominal and only ever grows, so no tick is handled twice, also if the
# clock is set back; a commit of the next state together with the runs of its ticks makes exactly one run for each.

GRACE: Final = 1_000_000
"""Microseconds by which a tick may be late and still counts as on time."""

MOST_COUNTED: Final = 10_000
"""How many missed ticks of a cron expression are counted at a time; periods are counted by arithmetic."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HASH_BITS: Final = 64


class ScheduleState(Struct, frozen=True, omit_defaults=True):
    """Where a schedule is. Points in time are nominal.

    Attributes:
        next_at: The next tick to handle; every earlier one has been.
        anchor: When the schedule was made or last changed; periods count from here.
        fired: How many ticks have fired.
        missed: How many were left out because they were late.
        uncounted: Whether more were missed than ``missed`` says, as there were too many to count.
        last_fired_at: The latest tick that fired.
        last_missed_at: The latest that was missed.
        backfilled: How many late ticks were made up for since it was last on time.
        paused: Whether it fires at all.
    """

    next_at: Instant
    anchor: Instant
    fired: int = 0
    missed: int = 0
    uncounted: bool = False
    last_fired_at: Instant | None = None
    last_missed_at: Instant | None = None
    backfilled: int = 0
    paused: bool = False


class DueTicks(Struct, frozen=True):
    """What is to be done now.

    Attributes:
        fire: The nominal times of the ticks to start a run for, oldest first.
        missed: How many ticks are left out because they are late.
        state: The state to store in the commit that starts the runs.
        wake_at: When to ask again; None while paused. It is not after now if ``most`` kept ticks back.
        late: How many of those to fire are made up for; they come first.
    """

    fire: tuple[Instant, ...]
    missed: int
    state: ScheduleState
    wake_at: Instant | None
    late: int = 0


# --- the next tick --------------------------------------------------------------------------------------------------


def first_after(spec: ScheduleSpec, anchor: Instant, at: Instant) -> Instant:
    """Return the nominal time of the first tick after ``at``.

    Ticks of a period lie whole periods after ``anchor``, the first of them one period after it.

    Raises:
        MissingExtraError: This machine does not know the zone of the schedule.
    """
    if spec.cron is not None:
        return next(ticks(spec.cron, spec.zone, at))
    period = _period(spec)
    return Instant(anchor + max(1, (at - anchor) // period + 1) * period)


def fires_at(spec: ScheduleSpec, schedule_id: str, nominal: Instant) -> Instant:
    """Return when a tick fires: its nominal time and its share of the jitter, at least 0 and less than all of it.

    That is the same for ever, and in whole numbers, so that every machine finds the same.
    """
    if not spec.jitter:
        return nominal
    digest = blake2b(f"{nominal}:{schedule_id}".encode(), digest_size=_HASH_BITS // 8).digest()
    return Instant(nominal + (int.from_bytes(digest) * round(spec.jitter * MICROSECONDS) >> _HASH_BITS))


def run_id_of(schedule_id: str, nominal: Instant) -> str:
    """Return the id of the run that a tick starts: ``daily-report@2024-03-31T07:00:00Z``.

    No two ticks have the same: what follows the last ``@`` is the nominal time in UTC.
    """
    moment = (_EPOCH + timedelta(microseconds=nominal)).replace(tzinfo=None)
    return f"{schedule_id}@{moment.isoformat()}Z"


def _period(spec: ScheduleSpec) -> int:
    if not spec.every:
        raise DeclarationError("the time of a schedule", "it has neither cron nor every", "nothing")
    return round(spec.every * MICROSECONDS)


# --- the state ------------------------------------------------------------------------------------------------------


def new_state(spec: ScheduleSpec, created_at: Instant, *, paused: bool = False) -> ScheduleState:
    """Return the state of a schedule that is made now."""
    return ScheduleState(first_after(spec, created_at, created_at), created_at, paused=paused)


def pause(state: ScheduleState) -> ScheduleState:
    """Return the state of a schedule that no longer fires."""
    return replace(state, paused=True)


def resume(spec: ScheduleSpec, state: ScheduleState, now: Instant) -> ScheduleState:
    """Return the state of a schedule that fires again, from its first tick after now on.

    Ticks that fell into the pause are neither made up for nor counted as missed.
    """
    handled_until = Instant(max(now, state.next_at - 1))
    return replace(state, paused=False, next_at=first_after(spec, state.anchor, handled_until), backfilled=0)


def change(spec: ScheduleSpec, state: ScheduleState, now: Instant) -> ScheduleState:
    """Return the state of a schedule that is replaced by ``spec`` now; its counts stay, a period counts from now.

    What has fired does not fire again, also if the clock was set back since.
    """
    handled_until = max(now, state.last_fired_at or now, state.last_missed_at or now)
    return replace(state, anchor=now, next_at=first_after(spec, now, handled_until), backfilled=0)


# --- what is due ----------------------------------------------------------------------------------------------------


def due(
    spec: ScheduleSpec, schedule_id: str, state: ScheduleState, now: Instant, *, most: int | None = None
) -> DueTicks:
    """Return which ticks to fire now, which are missed, and the state after that.

    A tick that is more than a second late is missed, unless the schedule backfills: then up to ``most_backfilled``
    late ticks fire, the oldest first, and the rest is missed. The work is bounded however long no worker was there.

    Args:
        spec: The schedule.
        schedule_id: Its id.
        state: Its stored state.
        now: The present, by the clock of the store.
        most: How many ticks to fire at once; the others stay due.

    Raises:
        MissingExtraError: This machine does not know the zone of the schedule.
    """
    if state.paused:
        return DueTicks((), 0, state, None)
    fire: list[Instant] = []
    made_up = 0
    after, wake_at = state, _wake_at(spec, schedule_id, state)
    while wake_at <= now and (most is None or len(fire) < most):
        late = wake_at < now - GRACE
        if late and not (spec.backfill and after.backfilled < spec.most_backfilled):
            after = _pass_over(spec, after, Instant(now - GRACE - round(spec.jitter * MICROSECONDS)))
            wake_at = _wake_at(spec, schedule_id, after)
        else:
            fire.append(after.next_at)
            made_up += late
            after = replace(
                after,
                next_at=first_after(spec, after.anchor, after.next_at),
                fired=after.fired + 1,
                last_fired_at=after.next_at,
                backfilled=after.backfilled + late,
            )
            wake_at = max(wake_at, _wake_at(spec, schedule_id, after))
    if wake_at > now and after.backfilled:
        after = replace(after, backfilled=0)
    return DueTicks(tuple(fire), after.missed - state.missed, after, wake_at, made_up)


def _wake_at(spec: ScheduleSpec, schedule_id: str, state: ScheduleState) -> Instant:
    """Return when the next tick fires: never before the one that fired last, however they were shifted."""
    own = fires_at(spec, schedule_id, state.next_at)
    return own if state.last_fired_at is None else max(own, fires_at(spec, schedule_id, state.last_fired_at))


class _Passed(Struct, frozen=True):
    """Ticks that are left out: how many, the last of them, the first after them."""

    count: int
    last: Instant
    following: Instant
    exact: bool = True


def _pass_over(spec: ScheduleSpec, state: ScheduleState, until: Instant) -> ScheduleState:
    """Leave out the next tick, and all others before ``until``."""
    passed = (_passed_periods if spec.cron is None else _passed_cron)(spec, state.next_at, until)
    return replace(
        state,
        next_at=passed.following,
        missed=state.missed + passed.count,
        uncounted=state.uncounted or not passed.exact,
        last_missed_at=passed.last,
    )


def _passed_periods(spec: ScheduleSpec, first: Instant, until: Instant) -> _Passed:
    period = _period(spec)
    more = max(0, (until - 1 - first) // period)
    last = first + more * period
    return _Passed(more + 1, Instant(last), Instant(last + period))


def _passed_cron(spec: ScheduleSpec, first: Instant, until: Instant) -> _Passed:
    """Count tick by tick; of too many, count the first, and name the last of those."""
    last = first
    for count, following in enumerate(ticks(spec.cron or "", spec.zone, first), start=1):
        if following >= until:
            return _Passed(count, last, following)
        if count == MOST_COUNTED:
            break
        last = following
    return _Passed(MOST_COUNTED, last, first_after(spec, first, Instant(until - 1)), exact=False)


# --- how a schedule lies in a store: one record with all of it, and one in the timer index for when it is looked at
# ---

PAGE: Final = 100
TIMER: Final = "@"
"""What the name of a schedule begins with in the timer index. No run's id does."""


class Stored(Struct, frozen=True, omit_defaults=True):
    """A schedule.

    Attributes:
        spec: What it is.
        state: Where it is.
        created_at: Since when it is there.
        wake_at: When it is to be looked at: the name of its record in the timer index; None: it has none.
        note: Why it is paused.
        lacks: What this schedule could not find when it paused itself; empty: a user has paused it.
        skipped: How many ticks started nothing because of an unfinished run.
        refused: How many started nothing because of a limit, or an error.
        last_skipped_at: The latest tick that started nothing.
        problem: Why it did not.
        last_run: The run of the latest tick that started one.
        declared: A digest of what the code of an engine last said.
        is_emptying: Runs that wait for their turn are to be discarded.
        is_deleted: It is to be removed when that is done.
    """

    spec: ScheduleSpec
    state: ScheduleState
    created_at: Instant
    wake_at: Instant | None = None
    note: str = ""
    lacks: str = ""
    skipped: int = 0
    refused: int = 0
    last_skipped_at: Instant | None = None
    problem: str = ""
    last_run: str = ""
    declared: str = ""
    is_emptying: bool = False
    is_deleted: bool = False


STORED: Final[Codec[Stored]] = Codec(Stored, what="a schedule")


class ScheduleSnapshot(Struct, frozen=True):
    """A schedule as it was found, with the versions that guard a change of it."""

    id: str
    stored: Stored
    at: Instant
    key: RecordKey
    version: int
    timer_version: int


def key_of(scope: Scope, schedule_id: str) -> RecordKey:
    """Return where a schedule lies."""
    return scope.key("schedule", schedule_id)


def line_of(schedule_id: str) -> tuple[str, ...]:
    """Return where the line of a schedule's runs lies."""
    return ("schedule", schedule_id)


async def find(scope: Scope, schedule_id: str, wake_at: Instant | None = None) -> ScheduleSnapshot | None:
    """Read a schedule, also one that is being deleted; None: there is none. It saves a look to know its ``wake_at``."""
    key = key_of(scope, schedule_id)
    while True:
        timer = None if wake_at is None else timer_key(scope, wake_at, TIMER + schedule_id)
        seen = await scope.read(key) if timer is None else await scope.read(key, timer)
        record = seen.get(key)
        if record is None:
            return None
        stored = STORED.decode(record.value)
        if stored.wake_at == wake_at:
            version = 0 if timer is None else seen.version(timer)
            return ScheduleSnapshot(schedule_id, stored, seen.at, key, record.version, version)
        wake_at = stored.wake_at


async def find_all(scope: Scope) -> list[tuple[str, Stored, Instant]]:
    """Read all schedules, in the order of their ids, and when that was."""
    start, end = scope.key("schedule").within()
    found: list[tuple[str, Stored, Instant]] = []
    while True:
        page = await scope.scan(start, end, limit=PAGE)
        found += [(key.parts[-1], STORED.decode(record.value), page.at) for key, record in page.records.items()]
        if page.more is None:
            return found
        start = page.more


def with_timer(stored: Stored, schedule_id: str) -> Stored:
    """Return a schedule with the time at which it is to be looked at."""
    # Asked for the beginning of time, nothing is due, and the answer is when the next tick fires.
    return structs.replace(stored, wake_at=due(stored.spec, schedule_id, stored.state, Instant(0)).wake_at)


def creating(scope: Scope, schedule_id: str, stored: Stored) -> list[Change]:
    """Return the changes that write a schedule which is not there yet."""
    changes: list[Change] = [Put(key_of(scope, schedule_id), STORED.encode_own(stored))]
    if stored.wake_at is not None:
        changes.append(Put(timer_key(scope, stored.wake_at, TIMER + schedule_id), NO_DUE))
    return changes


def changing(scope: Scope, seen: ScheduleSnapshot, after: Stored | None) -> list[Change]:
    """Return the changes that write a schedule over what was seen, with its timer; None: that remove both."""
    before, now_at = seen.stored.wake_at, None if after is None else after.wake_at
    changes: list[Change] = [
        Delete(seen.key, seen.version) if after is None else Put(seen.key, STORED.encode_own(after), seen.version)
    ]
    if before is not None and before != now_at and seen.timer_version:
        changes.append(Delete(timer_key(scope, before, TIMER + seen.id), seen.timer_version))
    if now_at is not None and (before != now_at or not seen.timer_version):
        changes.append(Put(timer_key(scope, now_at, TIMER + seen.id), NO_DUE))
    return changes


async def commit(scope: Scope, changes: list[Change]) -> bool:
    """Commit; False: another process has changed the schedule."""
    answer: Commit | Conflict = await scope.commit(*changes)
    return not isinstance(answer, Conflict)


def digest_of(spec: ScheduleSpec) -> str:
    """Return a digest of what a schedule is, to notice that its declaration has changed."""
    return blake2b(SPECS.encode(spec), digest_size=16).hexdigest()
