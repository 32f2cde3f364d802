"""One seed of flows: servers that die, stall and mishear, every policy, and what must be true at the end."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final, Literal, cast, final

import standfast as sf
from standfast.errors import ResultTimeoutError, StandfastError
from standfast.flows.dispatcher import Dispatcher
from standfast.flows.records import REQUESTS, RequestKeys
from standfast.keys import RecordKey
from standfast.stores.memory import MemoryRecords
from standfast.testing import VirtualClock
from standfast.workflows.engine import Engine
from standfast.workflows.records import HEADERS, RUN_STATES
from tests.simulation.flow_ends import check_ends
from tests.simulation.flow_letters import Sender, chosen_actions
from tests.simulation.flow_stage import ANN, IN_TURN, Stage, policies_of
from tests.simulation.flow_watch import FlowWatch
from tests.simulation.lock_process import CALM, Process, Roster
from tests.simulation.workflow_watch import LISTED, listings_of
from tests.simulation.worlds import play, settle_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.testing import SimulatedLoop

PATIENCE: Final = 120.0
"""Seconds after the last fault by which every request has ended."""

KEPT: Final = {
    *("request", "event", "session", "idempotency", "owner", "sharer", "onced", "burst", "collecting", "chain-secret"),
    *("run", "life", "step", "once", "counter", "answer", "schedule", "mail", "inbox", "outlived"),
    *("stop", "superseded", "turned-out", "past", "indexed", "runs", "tagged", "begun", "begun-tagged", "requests"),
}
"""What stays in the store after all have ended."""


@final
class Site:
    """One process with its dispatcher."""

    def __init__(self, world: World, number: int, *, is_calm: bool) -> None:
        self._world: Final = world
        self.process: Final = settle_in(world, number, world.saw)
        if is_calm:
            self.process.calm_down()
        if self.process.faults is not CALM:
            world.watch.shaken.add(self.process.name)
        self.space: Final = self.process.open(world.lease)
        self._stage: Final = Stage(world.watch, self.process, world.policies, world.chance.randrange(2**32))
        self._made: Dispatcher | None = None
        self.is_open = self.is_leaving = False
        self.opening: asyncio.Task[None] | None = None

    @property
    def dispatcher(self) -> Dispatcher:
        """Takes requests on."""
        assert self._made is not None
        return self._made

    async def open(self) -> None:
        """Open it; try again while the store has faults, or another is the sole server."""
        world, options = self._world, dict[str, Any]()
        if world.overlap is not None:
            options["schedules"] = [self._stage.schedule(world.overlap, world.sessions[0])]
        while True:
            engine = Engine(self.space, worker=sf.admin.WorkerLimits(linger=0.05, quarantine_after=1_000))
            self._made = Dispatcher(engine, [self._stage.flow], arbiter=world.kind, **options)
            try:
                await self._made.open()
            except StandfastError:
                if self.process.is_dead:
                    return
                await asyncio.sleep(0.3)
            else:
                self.is_open = True
                return

    async def leave(self) -> None:
        """Close the dispatcher and the space, as far as the store lets it."""
        self.is_open, self.is_leaving = False, True
        if self.opening is not None:
            self.opening.cancel()
            await asyncio.wait({self.opening})
        if self._made is not None:
            with contextlib.suppress(StandfastError):
                await self._made.aclose(grace=0.1)
        with contextlib.suppress(StandfastError):
            await self.space.aclose()


@final
class World:
    """Everything that one seed decides."""

    def __init__(self, seed: int, kind: Literal["shared", "local"]) -> None:
        chance = self.chance = random.Random(seed)
        self.kind: Final = kind
        loop = cast("SimulatedLoop", asyncio.get_running_loop())
        self.memory: Final = MemoryRecords(clock=VirtualClock(loop))
        self.watch: Final = FlowWatch(self.memory)
        self.watch.on_claim = self._claimed
        self.watch.has_unwritten = kind == "local"
        self.roster: Final = Roster(loop)
        self.lease: Final = chance.uniform(0.5, 1.5)
        self.sees_deaths: Final = chance.random() < 0.3
        self.liveness_tokens: Final[dict[str, Process]] = {}
        policies, self.actions = policies_of(chance), chosen_actions(chance)
        self.policies: Final = {each: policies[each] for each in dict.fromkeys((*self.actions, "retried", "ticked"))}
        self.watch.free = tuple(name for name, policy in policies.items() if policy.name == "allow")
        self.watch.patient = tuple(each for each in IN_TURN if getattr(policies[each], "timeout", 0) is None)
        self.overlap: Final[Any] = chance.choice((None, None, None, None, "skip", "allow", "queue", "restart"))
        self.watch.overlap = self.overlap or ""
        self.sessions: Final = [f"s-{number}" for number in range(chance.choice((1, 1, 2)))]
        self._deadly: Final = chance.choice((0.0, 0.0, 0.05, 0.2))
        self._commits_left: Final[dict[str, int]] = {}
        self.sites: Final = [self._site(number) for number in range(chance.choice((2, 2, 3)))]
        self.senders: Final = [Sender(self, f"r{number}") for number in range(chance.randint(2, 8))]

    def _site(self, number: int) -> Site:
        site = Site(self, number, is_calm=self.chance.random() < 0.5)
        if self.chance.random() < 0.2:
            self._commits_left[site.process.name] = self.chance.randint(1, 80)
        return site

    def living(self) -> list[Site]:
        """Return the processes that have not died."""
        return [site for site in self.sites if not site.process.is_dead and not site.is_leaving]

    async def somebody(self, chance: random.Random) -> Site:
        """Return a server that is open."""
        while not (ready := [site for site in self.living() if site.is_open]):  # noqa: ASYNC110 -- virtual time
            await asyncio.sleep(0.1)
        return chance.choice(ready)

    # --- what goes wrong -----------------------------------------------------------------------------------------

    def saw(self, process: Process, applied: Any) -> None:
        """Look at a commit; it may be the last of its process."""
        self.watch.saw(process, applied)
        left = self._commits_left[process.name] = self._commits_left.get(process.name, 10**9) - 1
        if left == 0:
            self._kill(process)

    def _claimed(self, process: Process) -> None:
        """A run is taken up, such as that of a burst that fires: a worker may die at this very moment."""
        if self.chance.random() < self._deadly:
            self._kill(process)

    def _kill(self, process: Process) -> None:
        if len(self.living()) > 1 and not process.is_dead:
            process.die()

    async def trouble(self) -> None:
        """Let a few things happen, one after the other."""
        for _ in range(self.chance.choice((0, 1, 1, 2, 3))):
            await asyncio.sleep(self.chance.uniform(0, 1.5))
            await self.chance.choice((self._death, self._stall, self._departure))()

    async def _death(self) -> None:
        self._kill(self.chance.choice(self.living()).process)

    async def _stall(self) -> None:
        """Let nothing of a process through for a while: its presence may lapse."""
        process = self.chance.choice(self.living()).process
        self.watch.shaken.add(process.name)
        await process.stall_for(self.lease * self.chance.uniform(0.2, 2.5))

    async def _departure(self) -> None:
        """Stop a process in good order: it hands its runs back."""
        if len(self.living()) > 1:
            site = self.chance.choice(self.living())
            self.watch.shaken.add(site.process.name)  # what takes too long is cut short
            site.is_leaving = True
            leaving = site.process.start(site.leave())
            await asyncio.wait({leaving}, timeout=3 * self.lease)

    def calm_down(self) -> None:
        """Let nothing go wrong any more."""
        self._commits_left.clear()
        self.watch.on_claim = lambda _: None
        for site in self.sites:
            site.process.calm_down()

    # --- from the first to the last ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Let everybody ask while things go wrong, then let the faults stop, and look at what has become of it."""
        for site in self.sites:
            site.opening = site.process.start(site.open())
        sending = [asyncio.ensure_future(sender.run()) for sender in self.senders]
        await self.trouble()
        await asyncio.wait(sending, timeout=3.0)
        self.calm_down()
        if self.overlap is not None:
            await (await self.somebody(self.chance)).dispatcher.engine.schedules.pause("clock")
        await self._answered(sending)
        await self._ended()
        if not self.watch.problems:
            await self._rest()

    async def _answered(self, sending: Iterable[asyncio.Task[None]]) -> None:
        """Nobody who asked is left without an answer."""
        _, late = await asyncio.wait(sending, timeout=PATIENCE)
        told = [task for sender in self.senders for site, task in sender.tasks if not site.process.is_dead]
        if told:
            _, stuck = await asyncio.wait(told, timeout=PATIENCE)
            late |= stuck
        self.watch.demand(not late, f"liveness: {len(late)} callers have no answer")
        for task in told:
            if task.done() and not task.cancelled() and (problem := task.exception()) is not None:
                raise problem

    async def _ended(self) -> None:
        """Whatever was taken on comes to an end that others can see."""
        site = await self.somebody(self.chance)
        ids = [each for each, record in self.watch.records.items() if not record.has_ended]
        for request_id in ids:
            principal = sf.Principal("acme", self.watch.records[request_id].user)
            try:
                await (await site.dispatcher.find(principal, request_id)).result(timeout=PATIENCE)
            except ResultTimeoutError:
                record = self.watch.records[request_id]
                self.watch.demand(False, f"liveness: {request_id} ({record.action}) has no end")
            except StandfastError:
                continue

    async def _rest(self) -> None:
        """Every key is free again, and nothing is left of those who live."""
        for site in self.living():
            await site.process.start(site.leave())
        await asyncio.sleep(2 * self.lease)
        self.watch.demand(not self.roster.left(), f"rest: tasks are left: {self.roster.left()}")
        last = Site(self, 99, is_calm=True)
        await last.open()
        for session in self.sessions:
            arrival = sf.Call(flow="chat", action="retried", inputs={"name": "last"}, principal=ANN, session=session)
            try:
                await (await last.dispatcher.dispatch(arrival)).result(timeout=PATIENCE)
            except StandfastError as problem:
                stumbled = type(problem.__cause__) is ConnectionError
                self.watch.demand(stumbled, f"liveness: {session} is not free at the end: {problem!r}")
        check_ends(self.watch, [sender.letter for sender in self.senders])
        await asyncio.sleep(2 * self.lease)  # workers look for the dead among them now and then
        await last.leave()
        await asyncio.sleep(2 * self.lease)
        rows = [str(key) for key in self.memory._records if key.parts[2] not in KEPT and self._is_there(key)]
        self.watch.demand(not rows, f"rest: records are left: {rows[:5]}")
        self._check_index()

    def _check_index(self) -> None:
        """Each run is listed where its state says, and no other is."""
        records = self.memory._records
        found = {key.parts[2:] for key in records if key.parts[2] in LISTED and self._is_there(key)}
        wanted: set[tuple[str, ...]] = set()
        for key in [each for each in records if each.parts[2] == "life" and self._is_there(each)]:
            (namespace, tenant), run = key.parts[:2], key.parts[-1]
            header = HEADERS.decode(records[RecordKey(namespace, tenant, "run", run)].value)
            wanted |= listings_of(run, RUN_STATES.decode(records[key].value), header)
        self.watch.demand(found == wanted, f"index: listed are {sorted(found - wanted)}, not {sorted(wanted - found)}")
        self._check_requests()

    def _check_requests(self) -> None:
        """Each request is listed where its record says, and no other is."""
        records, space = self.memory._records, self.sites[0].space
        found = {key for key in records if key.parts[2] == "requests" and self._is_there(key)}
        wanted: set[RecordKey] = set()
        for key in [each for each in records if each.parts[2] == "request" and self._is_there(each)]:
            wanted.update(RequestKeys(space, *key.parts[-2:]).listed(REQUESTS.decode(records[key].value)))
        odd, missing = sorted(map(str, found - wanted)), sorted(map(str, wanted - found))
        self.watch.demand(found == wanted, f"index of requests: listed are {odd}, not {missing}")

    def _is_there(self, key: Any) -> bool:
        return not self.memory._records[key].is_expired(self.memory.now())

    async def discard(self) -> None:
        """Let the tasks of the dead end: no simulation should leave any behind."""
        for site in self.sites:
            if site.process.is_dead:
                site.space._lines.is_closing = True
                site.process.discard()
        tasks = [task for sender in self.senders for _, task in sender.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def serve(seed: int, kind: Literal["shared", "local"]) -> str:
    """Run one seed, and fail with what was wrong; return what tells its steps from those of another."""
    return await play(World(seed, kind))
