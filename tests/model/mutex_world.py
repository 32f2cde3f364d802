"""A small world around the records of a mutex: each step is one commit of one process, and others come in between.

What a store does between the alternatives of one call, and what it lets pass between a read and the commit that was
decided on it, is up to the explorer: each alternative is a step of its own, and so is each read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class Grant(NamedTuple):
    """Who holds, and the version of the record."""

    who: int
    fence: int


class Ticket(NamedTuple):
    """Who waits, and its number."""

    number: int
    who: int


class Process(NamedTuple):
    """One process: what it is about to do, and what it knows.

    ``phase``: idle; enters (the first alternative); joins (the second); waits; holds; frees (the second alternative of
    leaving); has looked (the general way: it has read the first ticket, and commits on that); has seen it over (it has
    read that the hold is over, and the first ticket, before it joined). ``known``: the ticket after the
    first one when it last looked, unless it has handed over to it since.
    """

    phase: str = "idle"
    turn: int = 0
    fence: int = 0
    seen: Ticket | None = None
    known: tuple[Ticket, ...] = ()
    is_up: bool = True
    is_evicted: bool = False


class World(NamedTuple):
    """The records of one mutex, the processes, and a reaper that has looked at a grant and at the first ticket.

    ``is_over``: the time of the hold is over (``max_hold``). ``ends``: how many more holds end so.
    """

    processes: tuple[Process, ...]
    head: bool = False
    grant: Grant | None = None
    tickets: tuple[Ticket, ...] = ()
    last_version: int = 0
    reaper: tuple[Grant, Ticket | None] | None = None
    is_over: bool = False
    ends: int = 0


class Guards(NamedTuple):
    """What the commits look at; a mutant has one of them wrong."""

    joins_if_held: bool = True
    frees_if_empty: bool = True
    moves_first: bool = True
    checks_grant: bool = True
    takes_over_if_empty: bool = True
    known_if_there: bool = True


class MutexModel(NamedTuple):
    """Every step that can be taken by so many processes, each of which enters so often."""

    processes: int
    turns: int
    guards: Guards = Guards()
    ends: int = 0

    def start(self) -> World:
        """Return the world in which the mutex is free."""
        return World((Process(),) * self.processes, ends=self.ends)

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Yield every step out of ``world``."""
        for number, process in enumerate(world.processes):
            if process.is_up:
                yield from self._own_steps(world, number, process)
                yield f"{number} crashes", _with(world, number, process._replace(is_up=False))
            elif any(each.who == number for each in world.tickets):
                tickets = tuple(each for each in world.tickets if each.who != number)
                yield f"the ticket of {number} is removed", world._replace(tickets=tickets)
        if world.grant is not None and world.ends and not world.is_over:
            yield "the time of the hold is over", world._replace(is_over=True, ends=world.ends - 1)
        yield from self._reaps(world)

    def _own_steps(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        steps = {
            "idle": self._begins,
            "enters": self._creates,
            "joins": self._appends,
            "waits": self._waits,
            "holds": self._leaves,
            "frees": self._frees,
            "has looked": self._commits,
            "has seen it over": self._takes_over,
        }
        yield from steps[process.phase](world, number, process)

    def _begins(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        if process.turn < self.turns:
            yield f"{number} asks", _with(world, number, process._replace(phase="enters", turn=process.turn + 1))

    def _creates(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        if world.head:
            yield f"{number} finds it held", _with(world, number, process._replace(phase="joins"))
            if world.is_over and world.grant is not None:
                first = world.tickets[0] if world.tickets else None
                seen = process._replace(phase="has seen it over", fence=world.grant.fence, seen=first)
                yield f"{number} sees that the hold is over", _with(world, number, seen)
            return
        version = world.last_version + 1
        taken = world._replace(head=True, grant=Grant(number, version), last_version=version)
        yield f"{number} takes it", _with(taken, number, process._replace(phase="holds", fence=version))

    def _takes_over(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        """Hand what is over to the one that waits, and then join; if none waits, take it."""
        again, grant = process._replace(phase="enters", fence=0, seen=None), world.grant
        is_overtaken = grant is None or grant.fence != process.fence
        if process.seen is None:
            is_overtaken = is_overtaken or (self.guards.takes_over_if_empty and bool(world.tickets))
        else:
            is_overtaken = is_overtaken or process.seen not in world.tickets
        if is_overtaken or grant is None:
            yield f"{number} was overtaken", _with(world, number, again)
            return
        lost = _with(world, grant.who, world.processes[grant.who]._replace(is_evicted=True))
        if process.seen is not None:
            yield f"{number} hands over what is over", _with(_moved(lost, process.seen), number, again)
            return
        version = world.last_version + 1
        taken = lost._replace(grant=Grant(number, version), last_version=version, is_over=False)
        yield f"{number} takes over", _with(taken, number, process._replace(phase="holds", fence=version))

    def _appends(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        if self.guards.joins_if_held and not world.head:
            yield f"{number} finds it free", _with(world, number, process._replace(phase="enters"))
            return
        ticket = Ticket(world.last_version + 1, number)
        joined = world._replace(tickets=(*world.tickets, ticket), last_version=ticket.number)
        yield f"{number} joins", _with(joined, number, process._replace(phase="waits"))

    def _waits(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        if process.is_evicted and all(each.who != number for each in world.tickets):
            yield f"{number} finds that it was evicted", _with(world, number, Process("idle", process.turn))
        if world.grant is not None and world.grant.who == number:
            holds = process._replace(phase="holds", fence=world.grant.fence, is_evicted=False)
            yield f"{number} is told that it holds", _with(world, number, holds)
        if any(each.who == number for each in world.tickets):
            left = world._replace(tickets=tuple(each for each in world.tickets if each.who != number))
            yield f"{number} withdraws", _with(left, number, process._replace(phase="idle"))

    def _leaves(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        mine = Grant(number, process.fence)
        if self.guards.checks_grant and world.grant != mine:
            lost = process._replace(phase="idle", is_evicted=False)
            yield f"{number} finds it lost", _with(world, number, lost)
            return
        if world.tickets:
            ticket = world.tickets[0 if self.guards.moves_first else -1]
            yield (
                f"{number} hands over to {ticket.who}",
                _with(_moved(world, ticket), number, process._replace(phase="idle", is_evicted=False)),
            )
        else:
            yield f"{number} finds no ticket", _with(world, number, process._replace(phase="frees"))
        if process.known:
            yield from self._hands_over_to_known(world, number, process)
        first = world.tickets[0] if world.tickets else None
        looks = process._replace(phase="has looked", seen=first, known=world.tickets[1:2])
        yield f"{number} looks", _with(world, number, looks)

    def _hands_over_to_known(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        """Hand over to the first that it knows, without a look: the commit finds out if that has gone."""
        [ticket] = process.known
        if self.guards.known_if_there and ticket not in world.tickets:
            yield f"{number} knew one that has gone", _with(world, number, process._replace(known=()))
            return
        left = process._replace(phase="idle", is_evicted=False, known=())
        yield f"{number} hands over to {ticket.who}, which it knows", _with(_moved(world, ticket), number, left)

    def _frees(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        if world.grant != Grant(number, process.fence) or (self.guards.frees_if_empty and world.tickets):
            yield f"{number} cannot free it", _with(world, number, process._replace(phase="holds"))
            return
        free = world._replace(head=False, grant=None, is_over=False)
        yield f"{number} frees it", _with(free, number, process._replace(phase="idle", is_evicted=False))

    def _commits(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        after = self._general(world, Grant(number, process.fence), process.seen)
        if after is None:
            yield f"{number} was overtaken", _with(world, number, process._replace(phase="holds", seen=None))
        else:
            known = process.known if process.turn < self.turns else ()
            left = process._replace(phase="idle", seen=None, is_evicted=False, known=known)
            yield f"{number} leaves as it decided", _with(after, number, left)

    def _general(self, world: World, grant: Grant, seen: Ticket | None) -> World | None:
        """Take the holder out that was read; hand over to the ticket that was read. None: a guard does not hold."""
        if self.guards.checks_grant and world.grant != grant:
            return None
        if seen is not None:
            return _moved(world, seen) if seen in world.tickets else None
        if self.guards.frees_if_empty and world.tickets:
            return None
        return world._replace(head=False, grant=None, is_over=False)

    def _reaps(self, world: World) -> Iterator[tuple[str, World]]:
        """Take the mutex from its holder, dead or evicted by an operator: look first, then commit what was decided."""
        if world.reaper is not None:
            after = self._general(world, *world.reaper)
            if after is not None:
                who = world.reaper[0].who
                after = _with(after, who, after.processes[who]._replace(is_evicted=True))
            yield "the reaper commits", (world if after is None else after)._replace(reaper=None)
        elif world.grant is not None:
            living = [each for each in world.tickets if world.processes[each.who].is_up]
            if len(living) == len(world.tickets):  # tickets of the dead are removed first
                yield "the reaper looks", world._replace(reaper=(world.grant, living[0] if living else None))


def _moved(world: World, ticket: Ticket) -> World:
    version = world.last_version + 1
    tickets = tuple(each for each in world.tickets if each != ticket)
    return world._replace(grant=Grant(ticket.who, version), tickets=tickets, last_version=version, is_over=False)


def _with(world: World, number: int, process: Process) -> World:
    return world._replace(processes=(*world.processes[:number], process, *world.processes[number + 1 :]))


def canonical(world: World) -> World:
    """Return the world that stands for all in which versions differ but not their order."""
    versions = {0, *(each.number for each in world.tickets), *(each.fence for each in world.processes)}
    versions |= {each.seen.number for each in world.processes if each.seen is not None}
    versions |= {world.grant.fence} if world.grant is not None else set()
    if world.reaper is not None:
        versions |= {world.reaper[0].fence} | ({world.reaper[1].number} if world.reaper[1] is not None else set())
    rank = {version: place for place, version in enumerate(sorted(versions))}
    tickets = {each: Ticket(rank[each.number], each.who) for each in world.tickets}

    def ticket(each: Ticket | None) -> Ticket | None:
        return None if each is None else Ticket(rank[each.number], each.who)

    def grant(each: Grant) -> Grant:
        return Grant(each.who, rank[each.fence])

    def known(each: Process) -> tuple[Ticket, ...]:
        gone = (one._replace(number=0) if one not in world.tickets else one for one in each.known)
        return tuple(Ticket(rank[one.number], one.who) for one in gone if each.is_up)

    processes = tuple(
        each._replace(fence=rank[each.fence], seen=ticket(each.seen), known=known(each)) for each in world.processes
    )
    return world._replace(
        processes=processes,
        grant=None if world.grant is None else grant(world.grant),
        tickets=tuple(tickets.values()),
        last_version=len(rank),
        reaper=None if world.reaper is None else (grant(world.reaper[0]), ticket(world.reaper[1])),
    )
