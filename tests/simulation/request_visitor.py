"""One request of a simulation: it asks for its turn, works by it, commits, and is cancelled at times."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final, final

from standfast.errors import FlowError, RequestCancelledError, RequestSupersededError, StandfastError, StoreError
from standfast.flows.arbiter.protocol import Ask, JoinsError, Stop, queue_rules_of
from standfast.locks.entry import ExtraChanges
from standfast.policies import Join, Latest, Queue, Reject, Restart
from standfast.stores.protocol import Put
from tests.simulation.request_watch import Visit

if TYPE_CHECKING:
    from standfast.flows.arbiter.protocol import QueueRules, RequestTurn
    from standfast.stores.protocol import Change, Snapshot
    from tests.simulation.request_world import Site, World


@final
class Visitor:
    """One request."""

    def __init__(self, world: World, site: Site, name: str) -> None:
        self.world, self.site, self.name = world, site, name
        self.chance: Final = random.Random(world.chance.random())
        self.task: asyncio.Task[None] | None = None
        self.stopping: asyncio.Task[None] | None = None
        self.key: Final = self.chance.choice(world.keys)
        self.address: Final = ("request", "acme", "session", self.key)

    async def run(self) -> None:
        """Ask for a turn after a while, and note how that went."""
        await asyncio.sleep(self.chance.uniform(0, 3))
        visit = self._visit()
        if self.chance.random() < 0.15:
            asyncio.get_running_loop().call_later(self.chance.uniform(0, 3), self._give_up)
        if self.chance.random() < 0.1:
            self.stopping = self.site.process.start(self._stop())
        try:
            await self._ask_for_turn(visit)
        except JoinsError as joined:
            other = self.world.watch.visits[joined.who.id]
            self.world.watch.demand(other.action == visit.action, f"join: {self.name} joined {other.id}")
            visit.ending = "joined"
        except StandfastError as problem:
            visit.ending = type(problem).__name__
            self._check_stop(visit, problem)
            expected = isinstance(problem, FlowError | StoreError)
            self.world.watch.demand(expected, f"error: {self.name} was told {problem!r}")
        except BaseException:
            visit.ending = "cancelled"
            raise
        finally:
            visit.is_inside = False
            self.world.watch.ended(visit)

    def _check_stop(self, visit: Visit, problem: StandfastError) -> None:
        if isinstance(problem, RequestSupersededError):
            self.world.watch.superseded(visit, problem.by)
        elif isinstance(problem, RequestCancelledError):
            self.world.watch.cancelled(visit)

    def _visit(self) -> Visit:
        action = self.chance.choice(("respond", "respond", "append"))
        visit = Visit(self.name, self.key, action, self.site.process, self._manner())
        self.world.watch.visits[self.name] = visit
        return visit

    def _manner(self) -> QueueRules:
        budget = self.chance.choice((None, self.chance.uniform(0.1, 4)))
        choices = (
            Queue(timeout=budget, max_waiting=self.chance.choice((1, 2, 100))),
            Reject(),
            Restart(grace=self.chance.uniform(0.02, 1)),
            Restart(grace=self.chance.uniform(0.02, 1)),
            Join(),
            Latest(),
        )
        return queue_rules_of(self.chance.choice(choices))

    def _give_up(self) -> None:
        if self.task is not None and not self.site.process.is_dead:
            self.task.cancel()

    async def _stop(self) -> None:
        """Ask some request of the same key to stop, from this process."""
        await asyncio.sleep(self.chance.uniform(0, 2))
        others = [each for each in self.world.watch.visits.values() if each.key == self.key]
        other = self.chance.choice(others)
        other.was_stopped = True
        try:
            await self.site.arbiter.stop(self.address, other.id, Stop(reason="enough"))
        except StandfastError:
            return

    # --- its turn ------------------------------------------------------------------------------------------------

    async def _ask_for_turn(self, visit: Visit) -> None:
        asked = Ask(
            id=self.name,
            address=self.address,
            action=visit.action,
            rules=visit.rules,
            extra_changes=self._writes("first") if self.chance.random() < 0.5 else None,
            on_stop=lambda _: self._hears(visit),
        )
        async with self.site.arbiter.hold(asked) as turn:
            visit.turn = turn
            if self.site.process.is_dead:
                await self.site.process.awake()
            self.world.watch.begins(visit)
            try:
                await self._work(turn)
                visit.is_inside = False  # its work is done; the commit that says so hands its turn on
                await turn.finish(self._writes("last"))
                visit.ending = "completed"
            finally:
                visit.is_inside = False

    def _hears(self, visit: Visit) -> None:
        visit.is_to_stop = True

    async def _work(self, turn: RequestTurn) -> None:
        is_stubborn = self.chance.random() < 0.3
        for number in range(self.chance.randint(1, 3)):
            try:
                await asyncio.sleep(self.chance.choice((0.0, self.chance.uniform(0, 1.5))))
                await self._look_up()
                if number:
                    await turn.update(self._writes(f"step {number}"))
            except asyncio.CancelledError:
                if not is_stubborn:
                    raise
                is_stubborn = False
                await asyncio.sleep(self.chance.uniform(0, 2))
            except StoreError:
                continue

    async def _look_up(self) -> None:
        process = self.site.process
        if process.is_dead or self.chance.random() < 0.5:
            await process.awake()  # not only its wire stands still, but all of it

    def _writes(self, what: str) -> ExtraChanges[int]:
        kind = "record" if what == "first" else "effect"
        key = self.site.space.key(kind, self.key, self.name, what)

        def decide(_: int, seen: Snapshot) -> tuple[Change, ...]:
            return (Put(key, b"", seen.version(key)),)

        return ExtraChanges((key,), decide)
