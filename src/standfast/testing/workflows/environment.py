"""An engine for tests: on a store of its own, with a clock that skips the time in which nothing happens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar, TypeVarTuple, Unpack, final, overload

from standfast.clock import MICROSECONDS, Instant, later
from standfast.durations import seconds
from standfast.errors import DeclarationError, RunStuckError
from standfast.ids import new_id
from standfast.stores.url import open_store
from standfast.testing.simulation import SimulatedLoop, VirtualClock
from standfast.testing.workflows.effects import Effects
from standfast.testing.workflows.process import Process, Setup
from standfast.workflows.capacity import LINGER
from standfast.workflows.control import next_id
from standfast.workflows.definition import unbound
from standfast.workflows.records import RUN_STATES, RunKeys, state_in, timer_key
from standfast.workflows.run import Run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from standfast.clock import Clock
    from standfast.durations import Duration
    from standfast.events import Hook
    from standfast.stores.protocol import Store
    from standfast.testing.workflows.mortal_store import Mortality
    from standfast.workflows.definition import Bound, Step, Workflow
    from standfast.workflows.engine import Engine
    from standfast.workflows.steps import CurrentStep

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")

TURNS: Final = 25
"""For how many turns of the loop nothing must have happened before everything counts as settled."""

AT_ONCE: Final = 2_000
"""After how many turns a little real time is given to what needs some, such as a store on a disk."""

MOST_HOPS: Final = 100_000
"""How often :meth:`WorkflowEnvironment.result` lets time pass before it gives up."""


@final
class WorkflowEnvironment:
    """Runs workflows in a test, with time that passes when the test says so, and processes that can be killed.

        async def test_a_reminder_is_sent_after_two_days():
            async with WorkflowEnvironment(workflows=[remind]) as env:
                run = await env.start(remind, "kim@example.com")
                await env.advance("2 days")
                assert await run.result() == "sent"

    Runs are driven by one process, which :meth:`crash` kills as ``kill -9`` would and :meth:`restart` replaces. What a
    test asks through the handles that :meth:`start` returns comes from outside of it, and survives that.

    Only Standfast's time is skipped: the sleeps, time-outs and retries of workflows. What a step does, its own
    ``timeout`` included, takes the time that it takes.

    Args:
        workflows: What can be run, children included.
        steps: Steps that workflows call by name.
        errors: Exceptions that come back as themselves.
        store: Where everything is kept: a URL, by default memory; or an open store that is on ``clock``, which stays
            open.
        clock: Whose time is skipped, by default a new one. On a :class:`~standfast.testing.SimulatedLoop`, pass
            ``VirtualClock(loop)``. With a real one, as stores on servers go by, time is waited for instead.
        linger: How long a run in which everything waits stays in memory; 0: it is taken out at once, at every wait.
        namespace: As in :func:`standfast.open`.
        hooks: Told what happens.

    Attributes:
        clock: The clock.
        effects: How often each step was executed.
        on_recovery: Called when a process has died in the middle of something, before another one takes over.
    """

    def __init__(
        self,
        workflows: Iterable[Workflow[..., Any]] = (),
        *,
        steps: Iterable[Step[..., Any] | Any] = (),
        errors: Iterable[type[Exception]] = (),
        store: str | Store = "memory://",
        clock: Clock | None = None,
        linger: Duration = LINGER,
        namespace: str = "default",
        hooks: Iterable[Hook] = (),
    ) -> None:
        self.clock: Final = clock if isinstance(clock, VirtualClock) else VirtualClock()
        self._time: Final[Clock] = self.clock if clock is None else clock
        self.effects: Final = Effects()
        self._setup: Final = Setup(
            tuple(workflows),
            tuple(steps),
            tuple(errors),
            tuple(hooks),
            namespace,
            seconds(linger, what="linger"),
            self._time,
        )
        self._given: Final = store
        self._store: Store | None = None
        self._dead: Final[set[str]] = set()
        self._processes = 0
        self._client: Process | None = None
        self._process: Process | None = None
        self._recovery: asyncio.Task[None] | None = None
        self.on_recovery: Callable[[WorkflowEnvironment], Awaitable[None]] | None = None

    # --- life ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        given = self._given
        self._store = await open_store(given, clock=self._time) if isinstance(given, str) else given
        self._client = Process(0, self._setup, await self._store.another(), self._dead, drive=False)
        await self._client.engine.open()
        await self.restart()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._recovery is not None:
            await asyncio.gather(self._recovery, return_exceptions=True)
        if self._process is not None:
            process, self._process = self._process, None
            process.life.dies = None  # it would never be reclaimed
            await (process.discard() if process.life.is_dead else process.close())
        if self._client is not None:
            await self._client.close()
        if isinstance(self._given, str) and self._store is not None:
            await self._store.aclose()

    async def crash(self) -> None:
        """Kill the process that drives runs, as ``kill -9`` would: nothing is written, and nothing is handed back."""
        process, self._process = self._process, None
        if process is not None:
            await process.discard()

    async def restart(self) -> None:
        """Start a process that drives runs, if there is none. It takes over what a dead one has left."""
        if self._process is not None and not self._process.life.is_dead:
            return
        await self.crash()
        if self._store is None:
            raise DeclarationError("the environment", "it is not open; use it in async with")
        self._processes += 1
        number = self._processes
        process = Process(number, self._setup, await self._store.another(), self._dead, drive=True)
        await process.engine.open()

        def began(step: CurrentStep) -> None:
            self.effects.began(step, number)

        process.engine.runtime.on_attempt = began
        process.life.on_death = self._died
        self._process = process

    @property
    def life(self) -> Mortality:
        """Whether the process that drives runs lives; for deciding when it is to die."""
        if self._process is None:
            raise DeclarationError("the environment", "no process runs; await env.restart()")
        return self._process.life

    def _died(self) -> None:
        """A process has died by itself, in the middle of something: start another one."""
        if self._process is not None and self._process.life.is_dead:
            self._process.cut_off()
            self._recovery = asyncio.get_running_loop().create_task(self._recover())

    async def _recover(self) -> None:
        if self.on_recovery is not None:
            await self.on_recovery(self)
        await self.restart()

    @property
    def engine(self) -> Engine:
        """The engine of the process that drives runs."""
        if self._process is None:
            raise DeclarationError("the environment", "no process runs; await env.restart()")
        return self._process.engine

    @property
    def client(self) -> Engine:
        """An engine that drives nothing and never dies: for whatever a test asks from outside."""
        if self._client is None:
            raise DeclarationError("the environment", "it is not open; use it in async with")
        return self._client.engine

    # --- running -------------------------------------------------------------------------------------------------

    @overload
    async def start(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Run[R]: ...
    @overload
    async def start(
        self,
        workflow: Callable[[Unpack[Ts]], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        id: str | None = None,
        delay: Duration = 0,
    ) -> Run[R]: ...
    @overload
    async def start(
        self,
        workflow: Bound[R],
        /,
        *,
        id: str | None = None,
        delay: Duration = 0,
    ) -> Run[R]: ...
    async def start(  # type: ignore[misc]  # mypy misses what a workflow takes: *args and **by_name take all of it
        self,
        workflow: Any,
        /,
        *args: Any,
        id: str | None = None,  # noqa: A002 -- the word that users know
        delay: Duration = 0,
        **by_name: Any,
    ) -> Run[Any]:
        """Start a run, see :meth:`standfast.Engine.start`. The handle asks from outside of the process that drives."""
        run_id = new_id() if id is None else id
        while self._process is not None:
            life = self._process.life
            starting = asyncio.ensure_future(
                self._process.engine.start(workflow, *args, id=run_id, delay=delay, **by_name)
            )
            either: set[asyncio.Future[Any]] = {starting, life.death}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if starting.done() and not (life.is_dead and starting.exception()):  # an eager task may have failed by then
                code: Any = unbound(workflow)
                return Run(self.client, run_id, code, is_new=(await starting).is_new)
            starting.cancel()
            await asyncio.gather(starting, *([self._recovery] if self._recovery else []), return_exceptions=True)
        return await self.client.start(workflow, *args, id=run_id, delay=delay, **by_name)

    async def settle(self) -> None:
        """Wait until nothing goes on any more, without letting any time pass."""
        turns = quiet = 0
        seen: object = None
        while quiet < TURNS:
            await self._turn(turns)
            turns += 1
            now = await self._state() if quiet == TURNS - 1 else self._progress()
            is_still = self._recovery is None and (self._process is None or self._process.is_still)
            quiet = quiet + 1 if now == seen and is_still else 0
            seen = self._progress()

    async def _turn(self, turns: int) -> None:
        """Let others go on."""
        if self._recovery is not None:
            recovery, self._recovery = self._recovery, None
            await recovery
        if self._process is not None and self._process.engine.runtime.dirty:
            self._process.engine.runtime.notify()
        is_simulated = isinstance(asyncio.get_running_loop(), SimulatedLoop)  # whose tasks take no turns
        await asyncio.sleep(0.001 if turns > AT_ONCE or is_simulated else 0)

    def _progress(self) -> object:
        process = self._process
        return (self._processes, len(self.effects), 0 if process is None else process.life.calls)

    async def _state(self) -> object:
        """Return :meth:`_progress`, after a look whether something was overheard."""
        progress = self._progress()
        process = self._process
        if process is not None and not process.life.is_dead:
            for run_id in await self._overheard(process.engine):
                process.engine.runtime.poll_again(run_id)
        return progress

    async def _overheard(self, engine: Engine) -> list[str]:
        """Return the runs that are ready, and that the process could take up."""
        space = self.client.space
        page = await space.scan(*space.key("ready").within(), limit=1_000)
        ready = [key.parts[-1] for key in page.records]
        if not ready:
            return []
        lives = await space.read(*(RunKeys(space, run_id).state for run_id in ready))
        found = {key.parts[-1]: RUN_STATES.decode(record.value) for key, record in lives.records.items()}
        known, worker = engine.runtime.workflows, engine.runtime.worker
        mine = {"", *(() if worker is None else (worker.presence,))}
        return [
            run_id
            for run_id, life in found.items()
            if (life.workflow, life.version) in known
            and life.status != "quarantined"
            and life.owner in mine  # if it is another's, so is the flag
            and not life.has_ended
            and not engine.runtime.is_mismatched(run_id)
        ]

    # --- time ----------------------------------------------------------------------------------------------------

    async def advance(self, duration: Duration) -> None:
        """Let time pass, from one moment at which something is due to the next, and everything settle at each."""
        await self.settle()
        target = later(await self._now(), seconds(duration, what="duration"))
        while (due := await self._next_due()) is not None and due < target:
            await self._move_to(due)
        await self._move_to(target)

    async def result(self, run: Run[R]) -> R:
        """Return what a run returns, letting time pass until it has ended.

        Raises:
            RunStuckError: It waits for something that no time brings about; the message says for what.
        """
        for _ in range(MOST_HOPS):
            await self.settle()
            if await self._has_ended(run.id):
                return await run.result()
            if self._process is not None and self._process.is_in_a_step:
                await asyncio.sleep(0.001)
            elif (due := await self._next_due()) is not None:
                await self._move_to(due)
            else:
                break
        info = await run.info()
        raise RunStuckError(run.id, info.status, info.waits_for)

    async def _has_ended(self, run_id: str) -> bool:
        """Return True if a run has ended, and did not only go on as a new one, which has not."""
        keys = RunKeys(self.client.space, run_id)
        life = state_in(await self.client.space.read(keys.state), keys)
        return await self._has_ended(next_id(run_id)) if life.continues else life.has_ended

    async def _now(self) -> Instant:
        """Return the store's time."""
        space = self.client.space
        return (await space.read(space.key("life"))).at

    async def _next_due(self) -> Instant | None:
        """Return the next moment at which something happens by itself."""
        if self._process is None:
            return None
        runtime, now, space = self._process.engine.runtime, await self._now(), self.client.space
        found = [alarm] if (alarm := runtime.next_alarm()) is not None else []
        # By a real clock something may have become due that no worker has looked at yet; otherwise what is, was done.
        first = Instant(now + 1 if self._time is self.clock else 0)
        page = await space.scan(timer_key(space, first, ""), space.key("timer").within()[1], limit=1)
        found += [max(first, Instant(int(key.parts[-2]))) for key in page.records]
        linger = self._setup.linger
        found += [later(Instant(since + now - runtime.clock.elapsed()), linger) for since in runtime.idle.values()]
        return min((each for each in found if each >= first), default=None)

    async def _move_to(self, at: Instant) -> None:
        """Let the time come, and everything happen that is due then."""
        length = max(0, at - await self._now()) / MICROSECONDS
        if self._time is self.clock:
            self.clock.advance(length)
        else:
            await asyncio.sleep(length)
        if self._process is not None and self._process.engine.worker is not None:
            self._process.engine.worker.poll_now()
        await self.settle()
