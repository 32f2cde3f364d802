"""A small world around a line: a few actors that ask, ask again, leave late, crash and lapse, and what must hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from msgspec import structs

from standfast.clock import Instant
from standfast.locks import line as algebra
from standfast.locks.line import (
    OUT_OF_SIGHT,
    Entry,
    Line,
    OfPresence,
    OfRun,
    Rules,
    Until,
    bring_into_sight,
    has_fallen,
    put_out_of_sight,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from standfast.locks.line import Holder


T = TypeVar("T")


class Actor(NamedTuple):
    """How one actor asks: for how much, in which mode, and whether it lives by a lease, its presence, or a run."""

    weight: int = 1
    mode: str = ""
    woken: bool = True
    lease: int | None = None
    is_run: bool = False


class Setup(NamedTuple):
    """What a world starts from, and how far it goes."""

    actors: tuple[Actor, ...]
    permits: int = 1
    alone: tuple[str, ...] = ()
    acquisitions: int = 2
    ticks: int = 3
    sizes: tuple[int, ...] = ()
    forced: bool = False
    reaped: bool = False
    window: int | None = None
    listed: int | None = None


class Step(NamedTuple):
    """One thing that happens, and to whom."""

    kind: str
    who: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.who}".strip()


class World(NamedTuple):
    """Everything that there is, and beside it what a checker remembers: the true permits, and who came when."""

    line: Line
    permits: int
    now: int = 0
    turns: tuple[int, ...] = ()
    up: tuple[bool, ...] = ()
    arrived: tuple[str, ...] = ()
    fences: tuple[tuple[int, int], ...] = ()
    listed: frozenset[str] = frozenset()

    def alive(self, entry: Entry) -> bool:
        """Tell whether an entry's anchor holds."""
        anchor = entry.anchor
        if isinstance(anchor, OfRun):
            return True
        return anchor.at > self.now if isinstance(anchor, Until) else self.up[int(entry.owner)]


class Algebra(NamedTuple):
    """The functions under test; a mutant has one of them exchanged."""

    sweep: Callable[..., Line] = algebra.sweep
    advance: Callable[..., Line] = algebra.advance
    enter: Callable[..., tuple[Line, object]] = algebra.enter
    renew: Callable[..., tuple[Line, object]] = algebra.renew
    leave: Callable[..., Line] = algebra.leave
    resize: Callable[..., Line] = algebra.resize
    fence: Callable[[int, int], int] = lambda last, _now: last + 1
    sweeps_before_renewing: bool = True
    rechecks: bool = True


class Model(NamedTuple):
    """Every step that can be taken in a world of this setup, with these functions."""

    setup: Setup
    functions: Algebra = Algebra()

    def start(self) -> World:
        """Return the world in which nobody has asked yet."""
        count = len(self.setup.actors)
        line = Line(Rules(self.setup.permits, self.setup.alone), listed=self.setup.listed)
        return World(line, self.setup.permits, turns=(0,) * count, up=(True,) * count)

    def steps(self, world: World) -> Iterator[tuple[Step, World]]:
        """Yield every step out of ``world``."""
        for number, actor in enumerate(self.setup.actors):
            if world.up[number]:
                yield from self._own_steps(world, number, actor)
                yield Step("crash", str(number)), world._replace(up=_put(world.up, number, value=False))
        if world.now < self.setup.ticks:
            yield Step("tick"), world._replace(now=world.now + 1)
        yield self._commit(world, Step("poke"), lambda line: line)
        yield from self._operator_steps(world)

    def _own_steps(self, world: World, number: int, actor: Actor) -> Iterator[tuple[Step, World]]:
        turn = world.turns[number]
        if turn < self.setup.acquisitions and f"{number}.{turn}" not in ids(world.line):
            later = world._replace(turns=_put(world.turns, number, value=turn + 1))
            yield self._asks(later, "enter", number, actor, f"{number}.{turn + 1}")
        if turn and (actor.lease is not None or not actor.woken):
            yield self._asks(world, "again", number, actor, f"{number}.{turn}")
        if turn and actor.lease is not None:
            yield self._renews(world, f"{number}.{turn}", actor.lease)
        for old in range(1, turn + 1):
            yield self._leaves(world, "leave", f"{number}.{old}")

    def _leaves(self, world: World, kind: str, entry_id: str) -> tuple[Step, World]:
        return self._commit(world, Step(kind, entry_id), lambda line: self.functions.leave(line, entry_id))

    def _asks(self, world: World, kind: str, number: int, actor: Actor, entry_id: str) -> tuple[Step, World]:
        owner = OfRun(str(number)) if actor.is_run else OfPresence(str(number))
        anchor = owner if actor.lease is None else Until(Instant(world.now + actor.lease))
        entry = Entry(entry_id, str(number), anchor, Instant(0), actor.mode, actor.weight, actor.woken)
        return self._commit(world, Step(kind, entry_id), lambda line: self.functions.enter(line, entry, world.now)[0])

    def _renews(self, world: World, entry_id: str, lease: int) -> tuple[Step, World]:
        anchor = Until(Instant(world.now + lease))
        step = Step("renew", entry_id)
        if self.functions.sweeps_before_renewing:
            return self._commit(world, step, lambda line: self.functions.renew(line, entry_id, anchor)[0])
        return step, self._seen(world, self.functions.renew(world.line, entry_id, anchor)[0])

    def _operator_steps(self, world: World) -> Iterator[tuple[Step, World]]:
        if self.setup.forced:
            for holder in world.line.holders[:1]:
                yield self._leaves(world, "force", holder.entry.id)
        for permits in self.setup.sizes:
            if permits != world.permits:
                yield self._resizes(world, permits)
        if self.setup.reaped:
            over = {each.entry.id for each in world.line.holders if not world.alive(each.entry)}
            yield Step("list the dead"), world._replace(listed=frozenset(over))
            yield self._reaps(world)

    def _resizes(self, world: World, permits: int) -> tuple[Step, World]:
        step, resized = Step("resize", str(permits)), world._replace(permits=permits)
        return self._commit(resized, step, lambda line: self.functions.resize(line, permits))

    def _reaps(self, world: World) -> tuple[Step, World]:
        """Act on a list of the dead that may be old by now."""
        step, listed = Step("reap"), world.listed
        done = world._replace(listed=frozenset())
        if self.functions.rechecks:
            return self._commit(done, step, lambda line: line)
        return self._commit(
            done,
            step,
            lambda line: structs.replace(
                line, holders=tuple(each for each in line.holders if each.entry.id not in listed)
            ),
        )

    def _commit(self, world: World, step: Step, change: Callable[[Line], Line]) -> tuple[Step, World]:
        """Take one step as it is taken in a store: sweep, advance, change, advance; and again if cut off."""
        seen = shown(world.line, self.setup.window, step.who)
        line = self.functions.advance(change(self._swept(world, seen)), world.now)
        whole = merged(world.line, seen, line)
        while line.is_cut_off:
            seen = shown(whole, self.setup.window, "")
            line = self._swept(world, seen)
            whole = merged(whole, seen, line)
        return step, self._seen(world, whole)

    def _swept(self, world: World, line: Line) -> Line:
        return self.functions.advance(self.functions.sweep(line, world.now, world.alive), world.now)

    def _seen(self, world: World, line: Line) -> World:
        """Return the world after a change of the line: fences of new grants, and who waits since when."""
        fences = dict(world.fences)
        for holder in new_grants(world.line, line):
            fences[holder.slot] = self.functions.fence(fences.get(holder.slot, 0), world.now)
        waiting = {waiter.entry.id: waiter.entry for waiter in line.waiters}
        was_alive = {each.entry.id for each in world.line.waiters if world.alive(each.entry)}
        kept = [entry_id for entry_id in world.arrived if entry_id in waiting and entry_id in was_alive]
        arrived = (*kept, *(entry_id for entry_id in waiting if entry_id not in kept))
        return world._replace(line=line, arrived=arrived, fences=tuple(sorted(fences.items())))


def canonical(world: World) -> World:
    """Return the world that stands for all that differ only in what has been counted: time, tickets and fences."""
    tickets = {waiter.ticket: number for number, waiter in enumerate(world.line.waiters)}
    holders = tuple(
        structs.replace(each, entry=_shifted(each.entry, world.now), granted_at=Instant(-1))
        for each in world.line.holders
    )
    waiters = tuple(
        structs.replace(each, entry=_shifted(each.entry, world.now), ticket=tickets[each.ticket])
        for each in world.line.waiters
    )
    line = structs.replace(world.line, holders=holders, waiters=waiters, next_ticket=len(waiters))
    return world._replace(line=line, now=0, fences=())


def _shifted(entry: Entry, now: int) -> Entry:
    if not isinstance(entry.anchor, Until):
        return entry
    return structs.replace(entry, anchor=Until(Instant(max(0, entry.anchor.at - now))))


def ids(line: Line) -> list[str]:
    """Return the ids of everyone in a line."""
    return [*(each.entry.id for each in line.holders), *(each.entry.id for each in line.waiters)]


def _put(values: tuple[T, ...], place: int, *, value: T) -> tuple[T, ...]:
    return (*values[:place], value, *values[place + 1 :])


def shown(line: Line, window: int | None, also: str) -> Line:
    """Return the line as a step sees it: the first waiters, the holders that it lists, and the one that it is about."""
    if line.listed is not None:
        about = tuple(each for each in line.holders if each.slot == OUT_OF_SIGHT and each.entry.id == also)
        line = bring_into_sight(put_out_of_sight(line), about)
    if window is None or len(line.waiters) <= window:
        return line
    seen = (*line.waiters[:window], *(each for each in line.waiters[window:] if each.entry.id == also))
    return structs.replace(line, waiters=seen, horizon=line.waiters[window].ticket)


def merged(before: Line, seen: Line, after: Line) -> Line:
    """Put those who were out of sight back."""
    in_sight = {each.entry.id for each in seen.holders}
    hidden_holders = [each for each in before.holders if each.entry.id not in in_sight]
    counted = [each for each in hidden_holders if not has_fallen(each, dict(after.unseen_of))]
    if len(counted) != after.unseen:
        raise AssertionError(f"{len(counted)} hold out of sight, and {after.unseen} are counted")
    after = structs.replace(after, holders=(*counted, *after.holders), unseen=0, unseen_of=(), fallen=())
    known = {each.ticket for each in seen.waiters}
    hidden = [each for each in before.waiters if each.ticket not in known]
    waiters = tuple(sorted((*after.waiters, *hidden), key=lambda each: each.ticket))
    return structs.replace(after, waiters=waiters, horizon=None)


def new_grants(before: Line, after: Line) -> list[Holder]:
    """Return the grants that are new: of another entry, or of the same one at another time."""
    old = {(each.entry.id, each.granted_at, each.slot) for each in before.holders}
    return [each for each in after.holders if (each.entry.id, each.granted_at, each.slot) not in old]
