"""An operator among simulated workers: does to runs, locks and limits whatever an operator may, at any moment.

It works through the public face of an engine: one of its own, which may stall, lose replies or die half-way, or that of
a worker. What it is about to do is written down before, so that those who check know what may have come of it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, final

from standfast.errors import DecodeError, StandfastError
from standfast.workflows.engine import is_open
from tests.simulation.workflow_programs import HEAVIEST, POOL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.locks import Explanation
    from standfast.locks.locks import DurableLock
    from standfast.workflows.engine import Engine
    from tests.simulation.workflow_world import Site, World

    Verb = Callable[[Engine], Awaitable[object]]

LOCKS: Final = ("shared", "shared", "shared", "bounded", "pool", "page", "turn 0", "turn 1", "turns")
"""The keys that programs lock, by how often an operator looks at them."""

MOST_PERMITS: Final = 3


@final
class Operator:
    """Does a few things, one after the other or several at once."""

    def __init__(self, world: World, site: Site) -> None:
        self._world, self._chance, self._watch = world, world.chance, world.watch
        self._site: Final = site
        self._made = 0
        self.doing: Final[set[asyncio.Task[Any]]] = set()

    async def act(self) -> None:
        """Open its engine, and do something now and then."""
        await asyncio.wait({self._site.process.start(self._site.open())}, timeout=2 * self._world.lease)
        for _ in range(self._chance.choice((1, 2, 3, 5, 8))):
            await asyncio.sleep(self._chance.choice((0.0, 0.05, 0.3, 0.8)) * self._chance.random())
            verbs: tuple[Callable[[], Verb | None], ...] = (
                self._cancel, self._end, self._end, self._retry, self._retry, self._retry, self._retry_from,
                self._restart,
                self._fork, self._fork, self._resume, self._sweep, self._purge, self._purge_by_force, self._release,
                self._release, self._release, self._release, self._withdraw, self._withdraw, self._set_limit,
                self._clear_limit, self._resize,
            )  # fmt: skip
            verb = self._chance.choice(verbs)()
            if verb is not None:
                await self._do(verb)

    async def _do(self, verb: Verb) -> None:
        """Ask an engine to do it; go on after a while, whatever has become of it."""
        site = self._site
        if site.process.is_dead or not is_open(site.engine) or self._chance.random() < 0.3:
            site = self._chance.choice(self._world.living())
        task = site.process.start(self._tried(verb, site))
        self.doing.add(task)
        task.add_done_callback(self.doing.discard)
        await asyncio.wait({task}, timeout=self._chance.choice((0.0, 0.1, 2 * self._world.lease)))

    async def _tried(self, verb: Verb, site: Site) -> None:
        try:
            await verb(site.engine)
        except DecodeError as problem:
            self._watch.demand(False, f"operator: {problem}")
        except StandfastError:
            return  # refused, or the store has faults
        except Exception as problem:  # noqa: BLE001 -- whatever it is, no operator should see it
            self._watch.demand(False, f"operator: {type(problem).__name__}: {problem}")

    # --- runs ----------------------------------------------------------------------------------------------------

    def _run(self, *, ended: bool | None = None) -> str | None:
        """Choose a run; if there are any, one that has ended or has not."""
        states = self._watch.states
        chosen = [run for run, state in states.items() if ended is None or state.has_ended == ended] or list(states)
        return self._chance.choice(sorted(chosen)) if chosen else None

    def _meant(self, verb: str, *, ended: bool | None = None) -> str | None:
        run = self._run(ended=ended)
        if run is not None:
            self._watch.operated(run, verb)
        return run

    def _new_id(self, kind: str) -> str:
        self._made += 1
        return f"{kind}-{self._site.process.name.rpartition(' ')[2]}-{self._made}"

    def _cancel(self) -> Verb | None:
        run = self._meant("cancel", ended=False)
        return None if run is None else lambda engine: engine.cancel(run, "no more")

    def _end(self) -> Verb | None:
        run = self._meant("end", ended=False)
        return None if run is None else lambda engine: engine.cancel(run, "at once", force=True)

    def _stopped(self) -> str | None:
        """Choose a run that can be retried, if there are any; else any."""
        states = self._watch.states
        chosen = [run for run, state in states.items() if state.has_ended and state.status != "completed"]
        return self._chance.choice(sorted(chosen)) if chosen else self._run(ended=True)

    def _retry(self) -> Verb | None:
        run = self._stopped()
        if run is not None:
            self._watch.operated(run, "retry")
        return None if run is None else lambda engine: engine.retry(run)

    def _step_of(self, run: str) -> str | None:
        steps = [event.id for event in self._watch.events.get(run, ()) if event.kind in ("step", "tried", "child")]
        return self._chance.choice(steps) if steps else None

    def _retry_from(self) -> Verb | None:
        run = self._stopped()
        step = None if run is None else self._step_of(run)
        if run is None or step is None:
            return None
        self._watch.operated(run, "retry")
        return lambda engine: engine.retry(run, step=step)

    def _restart(self) -> Verb | None:
        run, new = self._run(), self._new_id("again")
        return None if run is None else lambda engine: engine.restart(run, id=new)

    def _fork(self) -> Verb | None:
        run = self._run()
        step, new = None if run is None else self._step_of(run), self._new_id("fork")
        if run is None or step is None:
            return None
        self._watch.operated(new, "fork")
        return lambda engine: engine.fork(run, step, id=new)

    def _resume(self) -> Verb | None:
        run = self._run(ended=False)
        return None if run is None else lambda engine: engine.resume(run)

    def _sweep(self) -> Verb:
        return (lambda engine: engine.sweep()) if self._chance.random() < 0.5 else lambda engine: engine.recover_all()

    def _purge(self) -> Verb | None:
        run = self._meant("purge", ended=True)
        return None if run is None else lambda engine: engine.purge(run)

    def _purge_by_force(self) -> Verb | None:
        run = self._meant("purge")
        return None if run is None else lambda engine: engine.purge(run, force=True)

    # --- locks and limits ----------------------------------------------------------------------------------------

    def _release(self) -> Verb:
        """Release whoever holds a lock, and perhaps those that it is handed over to, before they notice."""
        key, most = self._chance.choice(LOCKS), self._chance.choice((0, 0, 1, 1, 2))

        async def release(engine: Engine) -> None:
            lock = engine.space.mutex(key)
            told: Explanation = await lock.explain()
            for each in (*told.holders, *told.waiters[:most]):
                self._watch.operated(each.run or "", "release")
                await lock.force_release(each.entry)

        return release

    def _withdraw(self) -> Verb:
        """Turn out one who waits, whether or not it holds by then."""
        key, number = self._chance.choice(LOCKS), self._chance.randrange(4)

        async def withdraw(engine: Engine) -> None:
            lock: DurableLock = engine.space.mutex(key)
            told: Explanation = await lock.explain()
            if told.waiters:
                waiter = told.waiters[number % len(told.waiters)]
                self._watch.operated(waiter.run or "", "withdraw")
                await (lock.withdraw if number % 2 else lock.force_release)(waiter.entry)

        return withdraw

    def _set_limit(self) -> Verb:
        permits = self._chance.randint(1, MOST_PERMITS)
        lasts = self._chance.choice([None, 0.5, 5.0, 60.0])
        place, workflow = self._world.limited
        self._watch.allow(place, permits)
        return lambda engine: engine.set_limit(workflow, permits, lasts=lasts)

    def _clear_limit(self) -> Verb:
        _, workflow = self._world.limited
        return lambda engine: engine.clear_limit(workflow)

    def _resize(self) -> Verb:
        """Change the permits of the semaphore, to no fewer than the heaviest run asks for: that one would fail."""
        permits = self._chance.randint(HEAVIEST, POOL)
        return lambda engine: engine.space.semaphore("pool", permits=POOL).resize(permits)
