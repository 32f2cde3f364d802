"""Running a workflow once undisturbed, and then disturbed in every way: it must do the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

from msgspec import Struct

from standfast.clock import SYSTEM_CLOCK
from standfast.errors import RunDivergedError
from standfast.events import RunMoved
from standfast.ids import new_id
from standfast.stores.protocol import Store
from standfast.testing.workflows.environment import WorkflowEnvironment
from standfast.testing.workflows.mortal_store import Death
from standfast.testing.workflows.observations import (
    Observation,
    all_events,
    by_branch,
    difference,
    left_in,
    outcome_of,
    recorded_attempts,
)
from standfast.workflows.definition import Step, Workflow
from standfast.workflows.run import Run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.durations import Duration
    from standfast.events import Event
    from standfast.keys import RecordKey
    from standfast.testing.simulation import VirtualClock
    from standfast.testing.workflows.effects import Execution

Script: TypeAlias = Callable[[WorkflowEnvironment, Run[Any]], Awaitable[None]]
"""What happens from outside while a run is driven."""

OpenStore: TypeAlias = Callable[[], str | Awaitable[Store]]
"""Where a run lies: returns the URL of a fresh store, or opens a handle on one that may have data."""

RUN_ID: Final = "the-run"
AFTERWARDS: Final = "3 days"
"""How long others that were started on the way have to come to their end, too."""

MOMENTS: Final[tuple[Literal["after", "before"], ...]] = ("after", "before")


class Disturbances(Struct, frozen=True):
    """What a workflow went through, and came out of as if nothing had happened.

    Attributes:
        commits: How many commits the process made that drove it undisturbed.
        crashes: How often a process was killed.
        unloads: How often the run was taken out of memory.
        seeds: In how many orders its branches were interleaved.
        operations: How often an operator did something to it.
        kinds: The kinds of its events, in order.
    """

    commits: int = 0
    crashes: int = 0
    unloads: int = 0
    seeds: int = 0
    operations: int = 0
    kinds: tuple[str, ...] = ()


class Given(Struct, frozen=True):
    """The workflow to disturb, and what it needs."""

    workflow: Workflow[..., Any]
    args: tuple[Any, ...]
    workflows: tuple[Workflow[..., Any], ...] = ()
    steps: tuple[Step[..., Any] | Any, ...] = ()
    errors: tuple[type[Exception], ...] = ()
    script: Script | None = None
    store: OpenStore | None = None
    before: Callable[[], None] | None = None
    check: Callable[[WorkflowEnvironment, Run[Any]], None] | None = None


async def crash_everywhere(
    workflow: Workflow[..., Any],
    *args: Any,  # noqa: ANN401 -- what the workflow takes
    workflows: Iterable[Workflow[..., Any]] = (),
    steps: Iterable[Step[..., Any] | Any] = (),
    errors: Iterable[type[Exception]] = (),
    script: Script | None = None,
    store: OpenStore | None = None,
    before: Callable[[], None] | None = None,
    check: Callable[[WorkflowEnvironment, Run[Any]], None] | None = None,
) -> Disturbances:
    """Run a workflow once, and then again and again, each time killing its process at another commit.

        async def test_an_order_survives_crashes():
            await crash_everywhere(order, "A-1", workflows=[shipping])

    For each commit that the undisturbed process made, one run loses its process right before it and one right after
    it; another process takes over. Each must end like the undisturbed run, with the same history. A step whose
    outcome is recorded must not be executed again, and any other at most once more.

    Args:
        workflow: The workflow.
        args: What it is called with.
        workflows: Others that it needs, such as children.
        steps: Steps that it calls by name.
        errors: Exceptions that come back as themselves.
        script: What happens from outside, called with the environment and the run: signals, updates, cancellations.
            Let time pass with ``await env.advance(...)`` in between.
        store: Returns the URL of a fresh store for each run; by default each has a memory of its own. Or it opens a
            handle on a store that goes by a clock of its own, as one on a server does: then each run has a namespace of
            its own there, and time is waited for, so let the workflow sleep for milliseconds.
        before: Called before each run, to set up the world that the steps act on.
        check: Called after each run, to look at the world; whatever it raises fails the test.

    Raises:
        RunDivergedError: A run did something else, and where its process died.
    """
    given = Given(workflow, args, tuple(workflows), tuple(steps), tuple(errors), script, store, before, check)
    calm = await Trial(given).run()
    crashes = 0
    for when in MOMENTS:
        for commit in range(1, calm.commits + 1):
            trial = Trial(given, Death(when, commit))
            seen = await trial.run()
            trial.compare(calm, seen)
            crashes += 1
    return Disturbances(commits=calm.commits, crashes=crashes, kinds=calm.kinds)


async def unload_everywhere(
    workflow: Workflow[..., Any],
    *args: Any,  # noqa: ANN401 -- what the workflow takes
    workflows: Iterable[Workflow[..., Any]] = (),
    steps: Iterable[Step[..., Any] | Any] = (),
    errors: Iterable[type[Exception]] = (),
    script: Script | None = None,
    store: OpenStore | None = None,
    before: Callable[[], None] | None = None,
    check: Callable[[WorkflowEnvironment, Run[Any]], None] | None = None,
) -> Disturbances:
    """Run a workflow once, and once more taking it out of memory whenever everything in it waits.

    It must end in the same way, with the same history, every step executed as often, and every lock granted as
    often: an unload records nothing, and releases nothing. The arguments are those of :func:`crash_everywhere`.

    Raises:
        RunDivergedError: The run did something else.
    """
    given = Given(workflow, args, tuple(workflows), tuple(steps), tuple(errors), script, store, before, check)
    calm = await Trial(given, linger="365 days").run()
    trial = Trial(given, linger=0)
    seen = await trial.run()
    trial.compare(calm, seen)
    if seen.grants != calm.grants:
        raise RunDivergedError(
            workflow.name, trial.disturbance, f"locks were granted {seen.grants} times, undisturbed {calm.grants} times"
        )
    return Disturbances(commits=calm.commits, unloads=trial.unloads, kinds=calm.kinds)


@final
class Trial:
    """One run of a workflow, disturbed or not."""

    def __init__(
        self,
        given: Given,
        death: Death | None = None,
        linger: Duration = "0.25 seconds",
        clock: VirtualClock | None = None,
    ) -> None:
        self._given, self._death, self._linger, self._clock = given, death, linger, clock
        self._recorded: set[tuple[str, str, int]] = set()
        self._grants = 0
        self.unloads = 0
        self._executions: list[Execution] = []

    @property
    def disturbance(self) -> str:
        """What is done to the run, in words."""
        if self._death is None:
            return "taken out of memory at every wait"
        return f"with a crash right {self._death.when} commit {self._death.commit}"

    async def run(self) -> Observation:
        """Run the workflow to its end."""
        given = self._given
        if given.before is not None:
            given.before()
        given_store = "memory://" if given.store is None else given.store()
        if isinstance(given_store, str):
            return await self._run(given_store, clock=self._clock, linger=self._linger)
        store = await given_store
        try:
            return await self._run(store, clock=SYSTEM_CLOCK, linger=0, namespace=f"trial-{new_id()}")
        finally:
            await store.aclose()

    async def _run(self, store: str | Store, **options: Any) -> Observation:  # noqa: ANN401 -- as WorkflowEnvironment
        given = self._given
        async with WorkflowEnvironment(
            [given.workflow, *given.workflows],
            steps=given.steps,
            errors=given.errors,
            store=store,
            hooks=[self._on_event],
            **options,
        ) as env:
            await env.settle()
            first, before = env.life, env.life.commits
            env.on_recovery, first.on_written = self._look, self._saw
            if self._death is not None:
                first.dies = Death(self._death.when, before + self._death.commit)
            run = await env.start(given.workflow, *given.args, id=RUN_ID)
            if given.script is not None:
                await given.script(env, run)
            outcome = await outcome_of(env, run)
            await env.advance(AFTERWARDS if isinstance(store, str) else 0)
            return await self._observe(env, run, outcome, first.commits - before)

    async def _observe(self, env: WorkflowEnvironment, run: Run[Any], outcome: str, commits: int) -> Observation:
        if self._given.check is not None:
            self._given.check(env, run)
        self._executions = env.effects.executions
        events = await all_events(env.client.space)
        return Observation(
            outcome,
            {run_id: by_branch(each) for run_id, each in events.items()},
            env.effects.attempts(),
            self._grants,
            commits,
            tuple(event.kind for each in events.values() for event in each),
            await left_in(env.client.space),
        )

    def _on_event(self, event: Event) -> None:
        self.unloads += isinstance(event, RunMoved) and event.status == "suspended"

    def _saw(self, keys: Iterable[RecordKey]) -> None:
        self._grants += sum(key.parts[2] == "grant" for key in keys)

    async def _look(self, env: WorkflowEnvironment) -> None:
        """Take note of what is recorded when the process has died."""
        self._recorded = recorded_attempts(await all_events(env.client.space))

    def compare(self, calm: Observation, seen: Observation) -> None:
        """Refuse whatever a disturbance must not change."""
        problem = difference(calm, seen) or self._repeated(calm, seen)
        if problem:
            raise RunDivergedError(self._given.workflow.name, self.disturbance, problem)

    def _repeated(self, calm: Observation, seen: Observation) -> str:
        again = self._recorded & {(each.run, each.step, each.attempt) for each in self._executions if each.process > 1}
        if again:
            return f"though its outcome was recorded, this was executed again: {sorted(again)}"
        crashes = int(self._death is not None)
        often = {each: count for each, count in seen.attempts.items() if count > calm.attempts[each] + crashes}
        return f"this was executed too often: {often}" if often else ""
