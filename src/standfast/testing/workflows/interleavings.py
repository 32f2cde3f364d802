"""Running a workflow in many orders of what may happen at the same time: it must come to the same."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from standfast.errors import RunDivergedError
from standfast.testing.simulation import VirtualClock, simulate
from standfast.testing.workflows.disturbances import Disturbances, Given, Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from standfast.testing.workflows.disturbances import Script
    from standfast.testing.workflows.environment import WorkflowEnvironment
    from standfast.testing.workflows.observations import Observation
    from standfast.workflows.definition import Step, Workflow
    from standfast.workflows.run import Run


def interleave(
    workflow: Workflow[..., Any],
    *args: Any,  # noqa: ANN401 -- what the workflow takes
    seeds: int | Iterable[int] = 100,
    workflows: Iterable[Workflow[..., Any]] = (),
    steps: Iterable[Step[..., Any] | Any] = (),
    errors: Iterable[type[Exception]] = (),
    script: Script | None = None,
    before: Callable[[], None] | None = None,
    check: Callable[[WorkflowEnvironment, Run[Any]], None] | None = None,
) -> Disturbances:
    """Run a workflow once for each seed, each time in another order of what is ready to run at the same moment.

        def test_the_order_of_branches_does_not_matter():
            interleave(order, "A-1", seeds=200)

    It is a plain function: each run has an event loop of its own, whose order and time follow from the seed. Each must
    end like the first one. A workflow whose result depends on which branch comes first, as with ``ctx.race``, differs
    rightly; say with ``check`` what must hold of it, and let it return the same.

    Args:
        workflow: The workflow.
        args: What it is called with.
        seeds: How many orders to try, or which.
        workflows: As in :func:`crash_everywhere`; so are the others.
        steps: As in :func:`crash_everywhere`.
        errors: As in :func:`crash_everywhere`.
        script: As in :func:`crash_everywhere`.
        before: As in :func:`crash_everywhere`.
        check: As in :func:`crash_everywhere`.

    Raises:
        RunDivergedError: A run ended in another way, and with which seed: give that one in ``seeds`` to see it again.
    """
    given = Given(workflow, args, tuple(workflows), tuple(steps), tuple(errors), script, None, before, check)
    first: Observation | None = None
    tried = 0
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        seen = simulate(seed, _run, given)
        first, tried = first or seen, tried + 1
        if seen.outcome != first.outcome:
            problem = f"it came to {seen.outcome}, and first to {first.outcome}"
            raise RunDivergedError(workflow.name, f"interleaved by seed {seed}", problem)
    return Disturbances(seeds=tried, kinds=() if first is None else first.kinds)


async def _run(given: Given) -> Observation:
    return await Trial(given, clock=VirtualClock(asyncio.get_running_loop())).run()
