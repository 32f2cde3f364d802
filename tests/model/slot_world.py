"""A small world around the records of a line with slots: each step is one commit of one process, others in between.

An alternative of a call to the store may be done whenever its guards hold, so the order in which a process tries them
does not matter. The general way takes several steps: it looks, then commits what it has decided on that, or closes the
gate in two commits and looks again. One process may want two permits, and an operator may take one permit away.
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


class Line(NamedTuple):
    """The records of the line. ``head`` and ``gate`` are versions; 0: there is none. Permits are in the head."""

    permits: int
    head: int = 0
    gate: int = 0
    slots: tuple[Grant | None, ...] = ()
    tickets: tuple[Ticket, ...] = ()


class Process(NamedTuple):
    """One process, or the operator, who has no turns.

    ``phase``: idle; enters; waits; holds; decides (the general way, on what it has ``seen``); closes (the head has
    another version since it looked, and the gate is to follow). ``wants``: what it does in the general way: enter,
    leave, evict (whom) or resize.
    """

    phase: str = "idle"
    turn: int = 0
    slot: int = 0
    fence: int = 0
    known_gate: int = 0
    wants: str = ""
    whom: int = -1
    seen: Line | None = None
    is_up: bool = True
    is_evicted: bool = False


class World(NamedTuple):
    """The line, the processes, and the operator, who is the last of them."""

    processes: tuple[Process, ...]
    line: Line
    last_version: int = 0
    resizes: int = 0
    evictions: int = 0


class Guards(NamedTuple):
    """What the commits look at; a mutant has one of them wrong."""

    joins_if_full: bool = True
    takes_under_gate: bool = True
    frees_if_empty: bool = True
    moves_first: bool = True
    hands_over_if_open: bool = True
    last_if_alone: bool = True
    closes: bool = True
    closes_head: bool = True
    closed_by_head: bool = True
    leaves_another: bool = True
    frees_if_another: bool = True


class SlotModel(NamedTuple):
    """Every step that can be taken by processes that want so many permits each, of so many that there are."""

    weights: tuple[int, ...]
    permits: int
    turns: int = 1
    guards: Guards = Guards()
    resizes: int = 0
    evictions: int = 0

    def start(self) -> World:
        """Return the world in which all permits are free."""
        line = Line(self.permits, slots=(None,) * self.permits)
        return World((Process(),) * (len(self.weights) + 1), line, resizes=self.resizes, evictions=self.evictions)

    def weight(self, who: int) -> int:
        """Return how many permits a process wants."""
        return self.weights[who]

    def held(self, line: Line) -> int:
        """Return how many permits are held."""
        return sum(self.weight(each.who) for each in line.slots if each is not None)

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Yield every step out of ``world``."""
        for number, process in enumerate(world.processes[:-1]):
            if process.is_up:
                yield from self._own_steps(world, number, process)
                yield f"{number} crashes", _with(world, number, process._replace(is_up=False))
        yield from self._operates(world, len(self.weights), world.processes[-1])

    def _own_steps(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        steps = {
            "idle": self._begins,
            "enters": self._enters,
            "waits": self._waits,
            "holds": self._leaves,
            "decides": self._decides,
            "closes": self._closes,
        }
        yield from steps[process.phase](world, number, process)

    # --- the short ways ----------------------------------------------------------------------------------------------

    def _begins(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        if process.turn < self.turns:
            yield f"{number} asks", _with(world, number, process._replace(phase="enters", turn=process.turn + 1))

    def _enters(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        line, version = world.line, world.last_version + 1
        if self.weight(number) == 1:
            if not line.head:
                begun = line._replace(permits=self.permits, head=version, gate=version)
                yield from self._takes(world, number, process, begun, version)
            elif line.gate or not self.guards.takes_under_gate:
                yield from self._takes(world, number, process, line, line.gate)
            if line.gate and (None not in line.slots or not self.guards.joins_if_full):
                joined = line._replace(tickets=(*line.tickets, Ticket(version, number)))
                waits = process._replace(phase="waits", known_gate=line.gate)
                yield f"{number} joins", _with(world._replace(line=joined, last_version=version), number, waits)
        yield f"{number} looks", self._looks(world, number, process, "enter")

    def _takes(self, world: World, number: int, process: Process, line: Line, gate: int) -> Iterator[tuple[str, World]]:
        version = world.last_version + 1
        for slot, grant in enumerate(line.slots):
            if grant is None:
                taken = world._replace(line=_at(line, slot, Grant(number, version)), last_version=version)
                holds = process._replace(phase="holds", slot=slot, fence=version, known_gate=gate)
                yield f"{number} takes slot {slot}", _with(taken, number, holds)

    def _waits(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        line = world.line
        for slot, grant in enumerate(line.slots):
            if grant is not None and grant.who == number:
                holds = process._replace(phase="holds", slot=slot, fence=grant.fence, is_evicted=False)
                yield f"{number} is told that it holds", _with(world, number, holds)
        mine = [each for each in line.tickets if each.who == number]
        if mine and self.weight(number) == 1:
            left = line._replace(tickets=tuple(each for each in line.tickets if each.who != number))
            yield f"{number} withdraws", _with(world._replace(line=left), number, _idle(process))
        elif mine:
            yield f"{number} looks", self._looks(world, number, process, "leave")
        elif process.is_evicted and all(each is None or each.who != number for each in line.slots):
            yield f"{number} finds that it was evicted", _with(world, number, _idle(process))

    def _leaves(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        line, version = world.line, world.last_version + 1
        if line.slots[process.slot] != Grant(number, process.fence):
            yield f"{number} finds it lost", _with(world, number, _idle(process))
            return
        is_open = line.head == process.known_gate or not self.guards.hands_over_if_open
        if self.weight(number) == 1 and is_open:
            ticket = line.tickets[0 if self.guards.moves_first else -1] if line.tickets else None
            if ticket is not None and self.weight(ticket.who) == 1:
                moved = _at(_without(line, ticket), process.slot, Grant(ticket.who, version))
                after = world._replace(line=moved, last_version=version)
                yield f"{number} hands over to {ticket.who}", _with(after, number, _idle(process))
            if not line.tickets or not self.guards.frees_if_empty:
                yield from self._frees(world, number, process)
        yield f"{number} looks", self._looks(world, number, process, "leave")

    def _frees(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        """Delete the grant: by itself while there is another one, or with head and gate as the last one."""
        freed = _at(world.line, process.slot, None)
        is_last = not any(freed.slots)
        if not is_last or not self.guards.frees_if_another:
            yield f"{number} frees slot {process.slot}", _with(world._replace(line=freed), number, _idle(process))
        if is_last or not self.guards.last_if_alone:
            over = freed._replace(head=0, gate=0)
            yield f"{number} takes the head along", _with(world._replace(line=over), number, _idle(process))

    # --- the general way ---------------------------------------------------------------------------------------------

    def _looks(self, world: World, number: int, process: Process, wants: str, whom: int = -1) -> World:
        decides = process._replace(phase="decides", wants=wants, whom=number if whom < 0 else whom, seen=world.line)
        return _with(world, number, decides)

    def _decides(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        seen, line, version = process.seen, world.line, world.last_version + 1
        assert seen is not None
        target = self._target(seen, process, version)
        is_known = line.head == seen.head
        if seen.head and not seen.gate:
            if is_known or not self.guards.closed_by_head:
                yield from self._commits(world, number, process, seen, target)
            else:
                yield f"{number} was overtaken", _with(world, number, self._again(process))
        elif not seen.head:
            if line.head:
                yield f"{number} was overtaken", _with(world, number, self._again(process))
            else:
                yield from self._commits(world, number, process, seen, target)
        elif seen.gate == seen.head and (self._fits_gate(seen, target) or not self.guards.closes):
            if self._holds_under_gate(world.line, seen, target):
                yield from self._commits(world, number, process, seen, target)
            else:
                yield f"{number} was overtaken", _with(world, number, self._again(process))
        elif seen.gate != seen.head or not self.guards.closes_head:
            yield f"{number} closes", _with(world, number, process._replace(phase="closes"))
        elif is_known:
            bumped = world._replace(line=line._replace(head=version), last_version=version)
            yield f"{number} begins to close", _with(bumped, number, process._replace(phase="closes"))
        else:
            yield f"{number} was overtaken", _with(world, number, self._again(process))

    def _closes(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        seen, line = process.seen, world.line
        is_there = seen is not None and line.gate == seen.gate
        closed = world._replace(line=line._replace(gate=0)) if is_there else world
        yield f"{number} takes the gate away", _with(closed, number, self._again(process))

    def _again(self, process: Process) -> Process:
        """Look again, in a step of its own; the operator gives up."""
        phases = {"enter": "enters", "leave": "holds" if process.fence else "waits"}
        return process._replace(phase=phases.get(process.wants, "idle"), wants="", whom=-1, seen=None)

    def _target(self, seen: Line, process: Process, version: int) -> Line:
        """Return what the pure line makes of what was seen."""
        line, whom = seen, process.whom
        if process.wants == "resize":
            line = line._replace(permits=line.permits - 1)
        elif process.wants == "enter":
            if not line.head:
                line = line._replace(permits=self.permits)
            if not line.tickets and self.held(line) + self.weight(whom) <= line.permits:
                return _at(line, line.slots.index(None), Grant(whom, version))
            return line._replace(tickets=(*line.tickets, Ticket(version, whom)))
        else:
            slots = tuple(None if each is not None and each.who == whom else each for each in line.slots)
            tickets = tuple(each for each in line.tickets if each.who != whom)
            line = line._replace(slots=slots, tickets=tickets)
        while line.tickets and self.held(line) + self.weight(line.tickets[0].who) <= line.permits:
            first = line.tickets[0]
            line = _at(_without(line, first), line.slots.index(None), Grant(first.who, version))
        return line

    def _keeps(self, line: Line) -> bool:
        """Return True if a line may have a gate."""
        held = [(slot, each) for slot, each in enumerate(line.slots) if each is not None]
        if any(slot >= line.permits or self.weight(each.who) != 1 for slot, each in held):
            return False
        return not line.tickets or len(held) == line.permits

    def _fits_gate(self, seen: Line, target: Line) -> bool:
        is_over = not any(target.slots) and not target.tickets
        if target.permits != seen.permits or not (is_over or self._keeps(target)):
            return False
        looks_below = any(was and not now for was, now in zip(seen.slots, target.slots, strict=True))
        looks_below = looks_below or any(each not in seen.tickets for each in target.tickets)
        return not (looks_below and any(each not in target.tickets for each in seen.tickets))

    def _holds_under_gate(self, line: Line, seen: Line, target: Line) -> bool:
        """Return True if the guards of a change under the gate hold."""
        pairs = [*zip(line.slots, seen.slots, target.slots, strict=True)]
        if not line.gate or any(now != was for now, was, after in pairs if was != after):
            return False
        if any(each not in line.tickets for each in seen.tickets if each not in target.tickets):
            return False
        if any(each not in seen.tickets for each in target.tickets):
            return all(now is not None for now, _, _ in pairs[: line.permits])
        is_freed = any(was and not after for _, was, after in pairs)
        if is_freed and line.tickets and self.guards.frees_if_empty:
            return False
        stay = [now for now, was, after in pairs if was is not None and was == after]
        if not any(target.slots):
            is_alone = line.head == seen.head and line.gate == seen.gate
            return is_alone and all(now is None for now, was, _ in pairs if was is None)
        return not is_freed or not stay or stay[0] is not None or not self.guards.leaves_another

    def _commits(
        self, world: World, number: int, process: Process, seen: Line, target: Line
    ) -> Iterator[tuple[str, World]]:
        """Change what is to be changed; all else stays as it is by now."""
        line, version = world.line, world.last_version + 1
        if any(each not in line.tickets for each in seen.tickets if each not in target.tickets) or any(
            now != was for now, was, after in zip(line.slots, seen.slots, target.slots, strict=True) if was != after
        ):
            yield f"{number} was overtaken", _with(world, number, self._again(process))
            return
        pairs = zip(line.slots, seen.slots, target.slots, strict=True)
        slots = tuple(after if was != after else now for now, was, after in pairs)
        gone = [each for each in seen.tickets if each not in target.tickets]
        fresh = [each for each in target.tickets if each not in seen.tickets]
        tickets = (*[each for each in line.tickets if each not in gone], *fresh)
        after = line._replace(permits=target.permits, slots=slots, tickets=tickets)
        if not any(target.slots) and not target.tickets:
            after = after._replace(head=0, gate=0)
        elif not (seen.head and seen.gate):
            after = after._replace(head=version, gate=version if self._keeps(target) else 0)
        done = world._replace(line=after, last_version=version)
        if process.wants == "evict":
            done = _with(done, process.whom, done.processes[process.whom]._replace(is_evicted=True))
        yield f"{number} commits to {process.wants}", _with(done, number, self._after(process, number, after))

    def _after(self, process: Process, number: int, line: Line) -> Process:
        if process.wants != "enter":
            return _idle(process)
        for slot, grant in enumerate(line.slots):
            if grant is not None and grant.who == number:
                done = process._replace(phase="holds", slot=slot, fence=grant.fence, known_gate=line.gate)
                return done._replace(wants="", whom=-1, seen=None)
        return process._replace(phase="waits", known_gate=line.gate, wants="", whom=-1, seen=None)

    def _operates(self, world: World, number: int, process: Process) -> Iterator[tuple[str, World]]:
        """Evict a holder or a waiter, dead or not, or take a permit away."""
        if process.phase == "decides":
            yield from self._decides(world, number, process)
        elif process.phase == "closes":
            yield from self._closes(world, number, process)
        else:
            line = world.line
            held = [each.who for each in line.slots if each is not None]
            for whom in {*held, *(each.who for each in line.tickets)}:
                if not world.processes[whom].is_up or world.evictions:
                    left = world.evictions - world.processes[whom].is_up
                    yield (
                        f"a look at {whom}",
                        self._looks(world._replace(evictions=left), number, process, "evict", whom),
                    )
            if world.resizes and line.head and line.permits > 1:
                resized = world._replace(resizes=world.resizes - 1)
                yield "a look at the permits", self._looks(resized, number, process, "resize")


def _idle(process: Process) -> Process:
    return Process(turn=process.turn, is_up=process.is_up)


def _at(line: Line, slot: int, grant: Grant | None) -> Line:
    return line._replace(slots=(*line.slots[:slot], grant, *line.slots[slot + 1 :]))


def _without(line: Line, ticket: Ticket) -> Line:
    return line._replace(tickets=tuple(each for each in line.tickets if each != ticket))


def _with(world: World, number: int, process: Process) -> World:
    return world._replace(processes=(*world.processes[:number], process, *world.processes[number + 1 :]))


def canonical(world: World) -> World:
    """Return the world that stands for all in which versions differ but not their order."""
    lines = [world.line, *(each.seen for each in world.processes if each.seen is not None)]
    versions = {0, *(each.fence for each in world.processes), *(each.known_gate for each in world.processes)}
    for line in lines:
        versions |= {line.head, line.gate, *(each.number for each in line.tickets)}
        versions |= {each.fence for each in line.slots if each is not None}
    rank = {version: place for place, version in enumerate(sorted(versions))}

    def ranked(line: Line) -> Line:
        slots = tuple(None if each is None else Grant(each.who, rank[each.fence]) for each in line.slots)
        tickets = tuple(Ticket(rank[each.number], each.who) for each in line.tickets)
        return line._replace(head=rank[line.head], gate=rank[line.gate], slots=slots, tickets=tickets)

    def kept(each: Process) -> Process:
        if not each.is_up:
            return Process(is_up=False, turn=each.turn)
        seen = None if each.seen is None else ranked(each.seen)
        return each._replace(fence=rank[each.fence], known_gate=rank[each.known_gate], seen=seen)

    return world._replace(processes=tuple(map(kept, world.processes)), line=ranked(world.line), last_version=len(rank))
