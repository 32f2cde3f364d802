"""The history of a line: who held a key before, and how each hold ended.

One record a line holds the latest few, newest first, and expires by itself. A hold that ends by death, eviction or
expiry is always put into it: the step that drops it writes the line anyway, and such ends are rare. A hold that is
released is put into it only for keys whose family asks for that (``sf.KeyFamily(..., history=20)``), since the record
would cost every release a write; see ADR 93.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from msgspec import Struct

from standfast.clock import Instant, later, seconds_between
from standfast.codec import Codec
from standfast.locks.line import OfPresence, Until
from standfast.locks.line_records import Leave, name_of, run_of
from standfast.stores.protocol import Put

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from standfast.locks.line import Holder, Line
    from standfast.locks.line_records import Request, StepView
    from standfast.scope import Scope
    from standfast.stores.protocol import Change

KEPT: Final = 20
"""How many holds are kept of a line whose family does not say it."""

KEPT_FOR: Final = 30 * 86_400.0
"""Seconds for which a hold is kept after its end."""

HoldEnd: TypeAlias = Literal["released", "killed", "lost", "evicted", "expired"]


class PastHold(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A hold that is over.

    Attributes:
        entry: The id of the acquisition.
        owner: For whom it was.
        end: How it ended. ``released``: its holder gave it back. ``killed``: its process was seen to die. ``lost``: its
            process was not heard of any more. ``evicted``: an operator took it away. ``expired``: its lease or its
            ``max_hold`` was over.
        fence: Its fence, which is void.
        since: When it was granted, by the store's time.
        ended_at: When it ended. A process that died was dead before that: a line drops it when another needs the key.
        mode: In which mode; empty for locks without modes.
        weight: How many permits it had.
        note: What its owner said about it.
        run: The run that it was for; None if it was for no run.
    """

    entry: str
    owner: str
    end: HoldEnd
    fence: int
    since: Instant
    ended_at: Instant
    mode: str = ""
    weight: int = 1
    note: str = ""
    run: str | None = None

    @property
    def held_for(self) -> float:
        """For how many seconds it was held."""
        return seconds_between(self.since, self.ended_at)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON-shaped data."""
        found = {each: getattr(self, each) for each in self.__struct_fields__}
        return {**found, "held_for": self.held_for}


class LineHistory(Struct, frozen=True, omit_defaults=True):
    """The record: the latest holds of a line, newest first, and how many are kept."""

    holds: tuple[PastHold, ...] = ()
    most: int = KEPT


HISTORIES: Final[Codec[LineHistory]] = Codec(LineHistory, what="the history of a line")


def history_change(view: StepView, line: Line, requests: Sequence[Request], at: Instant) -> Iterator[Change]:
    """Return what notes the holds that end in a step, of a line that is ``line`` after it."""
    held = {(each.entry.id, each.granted_at) for each in line.holders}
    over = [each for each in view.line.holders if (each.entry.id, each.granted_at) not in held]
    ended: list[tuple[Holder, HoldEnd]]
    ended = [(each, _end_of(each, view, requests, at)) for each in over]
    ended = [(each, end) for each, end in ended if end != "released" or view.history]
    if not ended:
        return
    record = view.get(view.keys.past)
    past = LineHistory() if record is None else HISTORIES.decode(record.value)
    now = [_past(holder, end, view.fence_of(holder), at) for holder, end in ended]
    oldest, most = later(at, -KEPT_FOR), max(past.most, view.history, KEPT)
    holds = [*reversed(now), *(each for each in past.holds if each.ended_at > oldest)][:most]
    version = 0 if record is None else record.version
    yield Put(view.keys.past, HISTORIES.encode_own(LineHistory(tuple(holds), most)), version, later(at, KEPT_FOR))


def _end_of(holder: Holder, view: StepView, requests: Sequence[Request], at: Instant) -> HoldEnd:
    """Return how a hold ended: what is dead or over falls before any request is answered."""
    anchor = holder.entry.anchor
    if isinstance(anchor, OfPresence) and anchor.presence in view.facts.dead:
        return "killed" if anchor.presence in view.facts.killed else "lost"
    if (holder.ends_at is not None and holder.ends_at <= at) or (isinstance(anchor, Until) and anchor.at <= at):
        return "expired"
    leaves = [each for each in requests if type(each) is Leave and each.entry_id == holder.entry.id]
    if any(each.overran for each in leaves):
        return "expired"
    return "evicted" if any(each.by_force for each in leaves) else "released"


def _past(holder: Holder, end: HoldEnd, fence: int, at: Instant) -> PastHold:
    entry = holder.entry
    limits = [each for each in (holder.ends_at, entry.anchor.at if isinstance(entry.anchor, Until) else None) if each]
    return PastHold(
        entry=entry.id,
        owner=entry.owner,
        end=end,
        fence=fence,
        since=holder.granted_at,
        ended_at=min(at, *limits) if end == "expired" else at,
        mode=entry.mode,
        weight=entry.weight,
        note=entry.note,
        run=run_of(entry),
    )


async def read_history(scope: Scope, address: tuple[str, ...]) -> tuple[PastHold, ...]:
    """Return the holds of the line at an address that are over, newest first."""
    key = scope.key("past", *address)
    record = (await scope.read(key)).get(key)
    return () if record is None else HISTORIES.decode(record.value).holds


class LostHold(Struct, frozen=True):
    """A hold that its owner did not give back, and no operator took away: of which key, and how it ended."""

    key: str
    address: tuple[str, ...]
    hold: PastHold


async def lost_holds(scope: Scope, since: Instant, *, most: int) -> list[LostHold]:
    """Return holds that ended by death or expiry since an instant, newest first.

    Args:
        scope: Where.
        since: Those that ended later.
        most: How many lines with a history are looked at.
    """
    page = await scope.scan(*scope.key("past").within(), limit=most)
    found: list[LostHold] = []
    for key, record in page.records.items():
        address, holds = key.parts[3:], HISTORIES.decode(record.value).holds
        lost = [each for each in holds if each.end in ("killed", "lost", "expired") and each.ended_at > since]
        found += [LostHold(name_of(address), address, each) for each in lost]
    return sorted(found, key=lambda each: -each.hold.ended_at)
