"""What a schedule is: how users write it, and how it is stored."""

from __future__ import annotations

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
    cast,
    final,
    get_args,
    overload,
)

from msgspec import Raw, Struct
from msgspec.structs import replace

from standfast.clock import MICROSECONDS, Instant
from standfast.codec import Codec
from standfast.durations import DAY, Duration, seconds
from standfast.errors import InvalidDurationError, InvalidScheduleError, UnknownZoneError
from standfast.workflows.schedules.cron import check_cron, ticks, zone_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from standfast.workflows.declaring.definition import Bound, Workflow

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
        """Tell whether two schedules tick at the same times."""
        return (self.cron, self.every, self.zone, self.jitter) == (other.cron, other.every, other.zone, other.jitter)


SPECS: Final[Codec[ScheduleSpec]] = Codec(ScheduleSpec, what="a schedule")
"""How a schedule is stored. Reading one asks for no time zone; working out its ticks does."""


@final
class Schedule:
    """A workflow to be started by the clock.

        Schedule(report, "eu", id="daily-report", cron="0 9 * * mon-fri", zone="Europe/Berlin")
        Schedule(sweep, id="sweep", every="5 minutes", overlap="skip", kwargs={"limit": 100})

    Each tick starts one run, however many processes look after the schedule. Times are those of the clock on the wall,
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
        InvalidScheduleError: Something makes no sense; the message names it and says what would.
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
        InvalidScheduleError: Something makes no sense; the message names it and says what would.
    """
    for name in options.keys() - KNOWN:
        raise InvalidScheduleError("option", repr(name), f"it must be one of {', '.join(sorted(KNOWN))}")
    cron, every, zone = _check_when(options.get("cron"), options.get("every"), options.get("zone"))
    backfill = check_flag("backfill", options.get("backfill", False))
    spec = ScheduleSpec(
        workflow,
        packed,
        cron=cron,
        every=every,
        zone=zone,
        overlap=_check_overlap(options.get("overlap", "skip")),
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
    raise InvalidScheduleError("id", _shown(schedule_id), problem)


def check_flag(what: str, value: object) -> bool:
    """Return True or False; refuse anything that merely looks like it."""
    if type(value) is not bool:
        raise InvalidScheduleError(what, _shown(value), "it must be True or False")
    return value


def _check_when(cron: str | None, every: Duration | None, zone: str | None) -> tuple[str | None, float | None, str]:
    if cron is not None and every is None:
        return check_cron(cron), None, _check_zone(zone)
    if cron is not None or every is None:
        given = "nothing" if cron is None else f"cron={_shown(cron)} with every={_shown(every)}"
        raise InvalidScheduleError("time", given, 'give either cron="0 9 * * mon-fri" or every="5 minutes"')
    if zone is not None:
        raise InvalidScheduleError("zone", _shown(zone), "a zone goes with cron; a period is the same everywhere")
    return None, _length("every", every, SHORTEST_PERIOD), "UTC"


def _check_zone(zone: str | None) -> str:
    if zone is None:
        return "UTC"
    if type(zone) is not str:
        raise InvalidScheduleError("zone", _shown(zone), 'it must be the name of a time zone, like "Europe/Berlin"')
    try:
        zone_of(zone)
    except UnknownZoneError:
        problem = 'this machine knows no such time zone; write one like "Europe/Berlin", or install tzdata'
        raise InvalidScheduleError("zone", _shown(zone), problem) from None
    return zone


def _check_overlap(overlap: str) -> Overlap:
    if overlap not in OVERLAPS:
        raise InvalidScheduleError("overlap", _shown(overlap), f"it must be one of {', '.join(OVERLAPS)}")
    return cast("Overlap", overlap)


def _check_most(most: int | None, *, backfill: bool) -> int:
    if most is None:
        return MOST_BACKFILLED
    if not backfill:
        raise InvalidScheduleError("most_backfilled", _shown(most), "it goes with backfill=True")
    if type(most) is not int or not 1 <= most <= _BACKFILL_LIMIT:
        problem = f"it must be a whole number from 1 to {_BACKFILL_LIMIT:,}"
        raise InvalidScheduleError("most_backfilled", _shown(most), problem)
    return most


def _check_jitter(jitter: Duration | None, spec: ScheduleSpec) -> float:
    if jitter is None:
        return 0.0
    length = _length("jitter", jitter, 0.0)
    if length and length >= (shortest := _shortest_gap(spec)):
        problem = f"it must be shorter than the {shortest:g} s between two ticks"
        raise InvalidScheduleError("jitter", _shown(jitter), problem)
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
    except InvalidDurationError as error:
        problem = f'{error.problem}; write "5 minutes", a timedelta or a number of seconds'
        raise InvalidScheduleError(what, error.given, problem) from None


def _shown(value: object) -> str:
    return ascii(value)[:60] if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
