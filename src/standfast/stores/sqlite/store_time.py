"""The store's time: a clock that all processes on the file share, and that nobody can step.

It runs on the time since boot and follows the time of day slowly, by a plan in the file that every process reads. While
the file is open somewhere, the store's time never jumps: it runs up to 5 % faster until it has caught up, which is half
of what a holder leaves unused of its lease, or at half speed until the time of day has. So a stepped wall clock ends no
lease early, and none lasts longer than twice its length. The first to open the file when no other process has it open
takes the time of day as it is, as after a reboot. Time never falls behind what any commit has carried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

from standfast.clock import MICROSECONDS, Clock, Instant
from standfast.stores.sqlite.driver import transaction

if TYPE_CHECKING:
    from standfast.stores.sqlite.driver import Connection

FASTER: Final = 5
"""By how many percent the store's time runs faster, at most. Holders stop a tenth of their lease before its end."""

SLOWER: Final = 50
"""By how many percent it runs slower, at most. That only delays: the end of a lease, a timer."""

TOLERANCE: Final = 50_000
"""Microseconds by which the time of day may differ from what the store's time follows."""

LEAD: Final = 3 * MICROSECONDS
"""How long before it begins a plan is written, in microseconds."""

LOOK_EVERY: Final = 1 * MICROSECONDS
"""How old what a handle knows of the plan may be, in microseconds. Less than ``LEAD``, so that all know it in time."""

_ANCHOR: Final = "anchor"
_PLAN: Final = "time"


class Slew(Struct, frozen=True, gc=False):
    """How far the store's time is ahead of the time since boot: ``offset`` at ``since``, on its way to ``target``."""

    since: int
    offset: int
    target: int

    def offset_at(self, elapsed: int) -> int:
        """Return how far it is ahead at a time since boot."""
        passed = max(0, elapsed - self.since)
        if self.target >= self.offset:
            return min(self.target, self.offset + passed * FASTER // 100)
        return max(self.target, self.offset - passed * SLOWER // 100)

    def settles_in(self) -> float:
        """Return the seconds from ``since`` until it is there."""
        gap = self.target - self.offset
        return abs(gap) * 100 / (FASTER if gap > 0 else SLOWER) / MICROSECONDS


class Plan(Struct, frozen=True, gc=False):
    """The slew that holds, and the one that follows it."""

    present: Slew
    following: Slew

    @classmethod
    def level(cls, offset: int) -> Plan:
        """Return the plan of a time that has nothing to follow."""
        slew = Slew(0, offset, offset)
        return cls(slew, slew)

    def slew_at(self, elapsed: int) -> Slew:
        """Return the slew that holds at a time since boot."""
        return self.following if elapsed >= self.following.since else self.present

    def at(self, elapsed: int) -> int:
        """Return the store's time."""
        return elapsed + self.slew_at(elapsed).offset_at(elapsed)

    def follow(self, elapsed: int, wall: int) -> Plan | None:
        """Return the plan that follows the time of day from soon on; None: it is followed already.

        Ask only when ``following`` has begun: what is known to all is not taken back.
        """
        target, present = wall - elapsed, self.slew_at(elapsed)
        if abs(target - present.target) <= TOLERANCE:
            return None
        start = elapsed + LEAD
        return Plan(present, Slew(start, present.offset_at(start), target))


class ClockStep(Struct, frozen=True):
    """That the time of day was not what the store's time follows.

    Attributes:
        seconds: By how much the time of day is ahead of the store's time; negative: behind.
        settles_in: After how many seconds the two agree.
    """

    seconds: float
    settles_in: float


@final
class StoreTime:
    """Store time for one handle."""

    __slots__ = ("_clock", "_last", "_look_at", "_plan")

    def __init__(self, clock: Clock, plan: Plan) -> None:
        self._clock, self._plan = clock, plan
        self._last = Instant(0)
        self._look_at = clock.elapsed() + LOOK_EVERY

    def now(self, at_least: int = 0) -> Instant:
        """Return the store's time, never earlier than ``at_least`` nor than any time returned before."""
        now = self._plan.at(self._clock.elapsed())
        if now < at_least or now < self._last:
            now = max(at_least, self._last)
        self._last = last = Instant(now)
        return last

    def look(self, connection: Connection) -> None:
        """Read the plan again if it was read a while ago. Call it before :meth:`now`, inside of SQLite."""
        elapsed = self._clock.elapsed()
        if elapsed >= self._look_at:
            self._plan = read_plan(connection, self._clock) or self._plan
            self._look_at = elapsed + LOOK_EVERY

    def wall_ahead(self) -> int:
        """Return how far the time of day is ahead of the time since boot."""
        return self._clock.wall() - self._clock.elapsed()

    def follow(self, connection: Connection) -> tuple[bool, ClockStep | None]:
        """Let all processes follow the time of day as it is here, with the turn.

        Return False if another change has to begin first, and what was changed.
        """
        elapsed, wall = self._clock.elapsed(), self._clock.wall()
        with transaction(connection):
            plan = read_plan(connection, self._clock) or self._plan
            if elapsed < plan.following.since:
                return False, None
            changed = plan.follow(elapsed, wall)
            if changed is None:
                return True, None
            _write_plan(connection, self._clock, changed)
        self._look_at = elapsed
        slew = changed.following
        return True, ClockStep((slew.target - slew.offset) / MICROSECONDS, slew.settles_in() + LEAD / MICROSECONDS)


def read_plan(connection: Connection, clock: Clock) -> Plan | None:
    """Return the plan of this boot; None if nobody has made one yet."""
    boot, numbers = _read(connection, _PLAN)
    if boot == clock.boot() and len(numbers) == 6:  # noqa: PLR2004 -- three for each slew
        return Plan(Slew(*numbers[:3]), Slew(*numbers[3:]))
    boot, numbers = _read(connection, _ANCHOR)  # of a version that knew no plans
    return Plan.level(numbers[0]) if boot == clock.boot() and len(numbers) == 1 else None


def _read(connection: Connection, name: str) -> tuple[str, tuple[int, ...]]:
    stored = connection.execute("SELECT value FROM main.facts WHERE name = ?", (name,)).get
    boot, *numbers = str(stored or "").split(" ")
    return boot, tuple(map(int, numbers))


def _write_plan(connection: Connection, clock: Clock, plan: Plan) -> None:
    slews = (plan.present, plan.following)
    numbers = (number for slew in slews for number in (slew.since, slew.offset, slew.target))
    value = " ".join((clock.boot(), *map(str, numbers)))
    connection.execute("INSERT OR REPLACE INTO main.facts VALUES (?, ?)", (_PLAN, value))


def read_anchor(connection: Connection, clock: Clock) -> StoreTime | None:
    """Return the time as anchored since this boot; None if nobody has anchored it yet."""
    plan = read_plan(connection, clock)
    return None if plan is None else StoreTime(clock, plan)


def is_off(time: StoreTime, clock: Clock) -> bool:
    """Return True if a time differs from the time of day."""
    return abs(time.now() - clock.wall()) > TOLERANCE


def write_anchor(connection: Connection, clock: Clock, *, alone: bool) -> tuple[StoreTime, ClockStep | None]:
    """Anchor the time of this boot at the time of day, unless somebody has. Call it with the turn to write.

    ``alone`` says that no other handle is open on the file, so nothing can rely on a lease: then it is anchored anew.
    """
    with transaction(connection):
        present = read_anchor(connection, clock)
        if present is not None and not (alone and is_off(present, clock)):
            return present, None
        last_at = connection.execute("SELECT at FROM main.counters WHERE handle = ''").get
        elapsed, wall = clock.elapsed(), clock.wall()
        offset = max(wall, last_at) - elapsed
        slew = Slew(elapsed, offset, wall - elapsed)
        _write_plan(connection, clock, Plan(slew, slew))
        connection.execute("INSERT OR REPLACE INTO main.facts VALUES (?, ?)", (_ANCHOR, f"{clock.boot()} {offset}"))
        # A process that opens the file right now may have read the time as it was; its commits go by this one.
        connection.execute("UPDATE main.counters SET at = ? WHERE handle = '' AND at < ?", (elapsed + offset,) * 2)
    before = elapsed + offset if present is None else present.now()
    step = None if wall == before else ClockStep((wall - before) / MICROSECONDS, slew.settles_in())
    return StoreTime(clock, Plan(slew, slew)), step
