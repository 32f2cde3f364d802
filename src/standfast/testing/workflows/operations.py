"""Running a workflow while an operator does something to it, at every commit: it must end, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

from standfast.clock import SYSTEM_CLOCK
from standfast.errors import NondeterminismError, RunDivergedError, RunNotFoundError, RunStuckError, StandfastError
from standfast.ids import new_id
from standfast.keys import KeyFamily
from standfast.testing.workflows.disturbances import AFTERWARDS, RUN_ID, Disturbances, Given, Trial
from standfast.testing.workflows.environment import WorkflowEnvironment
from standfast.testing.workflows.histories import replay_history, save_history
from standfast.testing.workflows.mortal_store import Death
from standfast.testing.workflows.observations import all_events, left_in, recorded_attempts
from standfast.workflows.engine import Engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from standfast.locks.inspect import Explanation
    from standfast.locks.locks import Mutex
    from standfast.stores.protocol import Store
    from standfast.testing.workflows.disturbances import OpenStore, Script
    from standfast.workflows.definition import Step, Workflow
    from standfast.workflows.run import Run

Operation: TypeAlias = Callable[[Engine, str], Awaitable[object]]
"""What an operator does, with an engine that drives nothing and the id of the run."""

Moment: TypeAlias = Literal["while it lives", "while it is dead"]
MOMENTS: Final[tuple[Moment, ...]] = ("while it lives", "while it is dead")

AFRESH: Final = "the-next-run"
CUTS: Final = frozenset({"retry"})
"""Operations after which what was recorded may run again."""


async def _cancel(engine: Engine, run_id: str) -> None:
    await engine.cancel(run_id, "an operator asks for it")


async def _end(engine: Engine, run_id: str) -> None:
    await engine.cancel(run_id, "an operator ends it", force=True)


async def _retry(engine: Engine, run_id: str) -> None:
    await _end(engine, run_id)
    await engine.retry(run_id)


async def _restart(engine: Engine, run_id: str) -> None:
    await engine.restart(run_id, id=f"{run_id}-again")


async def _fork(engine: Engine, run_id: str) -> None:
    steps = [entry.id for entry in await engine.history(run_id) if entry.kind == "step"]
    if steps:
        await engine.fork(run_id, steps[-1], id=f"{run_id}-fork")


async def _resume(engine: Engine, run_id: str) -> None:
    await engine.resume(run_id)
    await engine.sweep()


async def _purge(engine: Engine, run_id: str) -> None:
    await engine.purge(run_id, force=True)


async def _locks(engine: Engine) -> AsyncIterator[tuple[Mutex, Explanation]]:
    """Return every lock that is held or waited for."""
    space = engine.space
    async for line in space.lines():
        if line.kind in ("mutex", "semaphore", "mode lock"):
            lock = space.mutex(KeyFamily(line.family)(*line.parts) if line.family else line.parts[0])
            yield lock, await lock.explain()


async def _release(engine: Engine, _run_id: str) -> None:
    """Evict the holders of every lock, and those to which it is handed over then."""
    async for lock, told in _locks(engine):
        for each in (*told.holders, *told.waiters):
            await lock.force_release(each.entry)


async def _withdraw(engine: Engine, _run_id: str) -> None:
    """Cancel every waiter of every lock."""
    async for lock, told in _locks(engine):
        for each in told.waiters:
            await lock.withdraw(each.entry)


OPERATIONS: Final[Mapping[str, Operation]] = {
    "cancel": _cancel,
    "end": _end,
    "retry": _retry,
    "restart": _restart,
    "fork": _fork,
    "resume": _resume,
    "purge": _purge,
    "release": _release,
    "withdraw": _withdraw,
}
"""What an operator may do to a run and to the locks of a space: ``end`` is a cancellation by force, ``retry`` lets a
run go on that was ended so, ``fork`` takes the last step that is recorded."""


async def operate_everywhere(  # noqa: PLR0913 -- keyword options, as those of its siblings
    workflow: Workflow[..., Any],
    *args: Any,  # noqa: ANN401 -- what the workflow takes
    operations: Mapping[str, Operation] | None = None,
    workflows: Iterable[Workflow[..., Any]] = (),
    steps: Iterable[Step[..., Any] | Any] = (),
    errors: Iterable[type[Exception]] = (),
    script: Script | None = None,
    store: OpenStore | None = None,
    before: Callable[[], None] | None = None,
    check: Callable[[WorkflowEnvironment, Run[Any]], None] | None = None,
) -> Disturbances:
    """Run a workflow again and again, each time with an operator who does something to it after another commit.

        async def test_an_order_stands_what_operators_do():
            await operate_everywhere(order, "A-1", workflows=[shipping])

    Each operation is done after each commit that the undisturbed run made: once while the process lives, before it
    learns that the commit was made, and once when it has died right there. Whatever the operation did, every run must
    end, or wait for a signal and then end when it is cancelled; histories must replay; a step that was recorded must
    not run again; nothing must stay held; and the workflow must go through when it is started anew.

    Args:
        workflow: The workflow.
        args: What it is called with.
        operations: What operators do, by name; by default :data:`OPERATIONS`.
        workflows: As in :func:`crash_everywhere`; so are the others.
        steps: As in :func:`crash_everywhere`.
        errors: As in :func:`crash_everywhere`.
        script: As in :func:`crash_everywhere`. What it raises because the run is not as it would have been is ignored.
        store: As in :func:`crash_everywhere`.
        before: As in :func:`crash_everywhere`.
        check: As in :func:`crash_everywhere`: say what must hold whatever an operator did.

    Raises:
        RunDivergedError: Something of that was not so, after which operation, and where.
    """
    given = Given(workflow, args, tuple(workflows), tuple(steps), tuple(errors), script, store, before, check)
    calm = await Trial(given).run()
    done = 0
    for name, operation in (OPERATIONS if operations is None else operations).items():
        for moment in MOMENTS:
            for commit in range(1, calm.commits + 1):
                await OperatedTrial(given, name, operation, moment, commit).run()
                done += 1
    return Disturbances(commits=calm.commits, operations=done, kinds=calm.kinds)


@final
class OperatedTrial:
    """One run of a workflow to which an operator does something."""

    def __init__(self, given: Given, name: str, operation: Operation, moment: Moment, commit: int) -> None:
        self._given, self._name, self._operation, self._moment, self._commit = given, name, operation, moment, commit
        self._recorded: set[tuple[str, str, int]] = set()
        self._executed = 0

    async def run(self) -> None:
        """Run the workflow, let the operator act, and see that everything ends; then run it once more."""
        given = self._given
        if given.before is not None:
            given.before()
        given_store = "memory://" if given.store is None else given.store()
        if isinstance(given_store, str):
            await self._run(self._environment(given_store), AFTERWARDS)
            return
        store = await given_store
        try:
            options = {"clock": SYSTEM_CLOCK, "linger": 0, "namespace": f"trial-{new_id()}"}
            await self._run(self._environment(store, **options), "0 seconds")
        finally:
            await store.aclose()

    def _environment(self, store: str | Store, **options: Any) -> WorkflowEnvironment:  # noqa: ANN401 -- as WorkflowEnvironment
        given = self._given
        return WorkflowEnvironment(
            [given.workflow, *given.workflows], steps=given.steps, errors=given.errors, store=store, **options
        )

    async def _run(self, env: WorkflowEnvironment, afterwards: str) -> None:
        async with env:
            await env.settle()
            commit = env.life.commits + self._commit
            if self._moment == "while it lives":
                env.life.beside[commit] = lambda: self._operate(env)
            else:
                env.life.dies, env.on_recovery = Death("after", commit), self._operate
            run = await self._start(env, RUN_ID)
            await self._all_end(env)
            await env.advance(afterwards)
            await self._check(env, run)
            await self._start(env, AFRESH)
            await self._all_end(env)
            await env.advance(afterwards)
            await self._check_rest(env)

    async def _start(self, env: WorkflowEnvironment, run_id: str) -> Run[Any]:
        run = await env.start(self._given.workflow, *self._given.args, id=run_id)
        if self._given.script is not None:
            with suppress(StandfastError, AssertionError):  # it finds the run changed
                await self._given.script(env, run)
        return run

    async def _operate(self, env: WorkflowEnvironment) -> None:
        with suppress(StandfastError):  # refused: the run is not there yet, or no longer
            await self._operation(env.client, RUN_ID)
        self._recorded = recorded_attempts(await all_events(env.client.space))
        self._executed = len(env.effects.executions)

    async def _all_end(self, env: WorkflowEnvironment) -> None:
        """Let every run come to its end; those that wait for a signal are cancelled, by force if that is not enough."""
        for force in (False, True):
            for run_id in await _unfinished(env):
                await self._ended(env, run_id)
            for run_id in await _unfinished(env):
                with suppress(RunNotFoundError):
                    await env.client.cancel(run_id, "no signal comes", force=force)
        for run_id in await _unfinished(env):
            await self._ended(env, run_id)
        left = [(await env.client.get(run_id)) for run_id in await _unfinished(env)]
        self._demand(not left, f"these do not end, not even by force: {[(each.id, each.waits_for) for each in left]}")

    async def _ended(self, env: WorkflowEnvironment, run_id: str) -> None:
        try:
            await env.result(env.client.run(run_id))
        except RunStuckError:
            info = await env.client.get(run_id)
            waits = info.waits_for
            self._demand("fits its history" not in waits, f"{run_id} waits for {waits}")
            self._demand(info.status != "quarantined", f"{run_id} is quarantined")
        except StandfastError:
            return  # it failed, was cancelled, or is gone: that is an end

    async def _check(self, env: WorkflowEnvironment, run: Run[Any]) -> None:
        if self._given.check is not None:
            self._given.check(env, run)
        await self._check_rest(env)
        later = {(each.run, each.step, each.attempt) for each in env.effects.executions[self._executed :]}
        again = self._recorded & (set[tuple[str, str, int]]() if self._name in CUTS else later)
        self._demand(not again, f"though its outcome was recorded, this was executed again: {sorted(again)}")
        known = {each.name: each for each in (self._given.workflow, *self._given.workflows)}
        for each in (await env.client.list(limit=1_000)).runs:
            saved = await save_history(env.client.run(each.id))
            try:
                await replay_history(known[each.workflow], saved, steps=self._given.steps, errors=self._given.errors)
            except NondeterminismError as problem:
                raise self._diverged(f"a history does not replay: {problem}") from problem

    async def _check_rest(self, env: WorkflowEnvironment) -> None:
        left = await left_in(env.client.space)
        self._demand(not left, f"this was left behind: {left}")

    def _demand(self, holds: object, problem: str) -> None:
        if not holds:
            raise self._diverged(problem)

    def _diverged(self, problem: str) -> RunDivergedError:
        where = f"with {self._name!r} after commit {self._commit} of its process, {self._moment}"
        return RunDivergedError(self._given.workflow.name, where, problem)


async def _unfinished(env: WorkflowEnvironment) -> list[str]:
    return [each.id for each in (await env.client.list(limit=1_000)).runs if not each.has_ended]
