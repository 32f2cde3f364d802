"""Running a program in a simulation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack

from standfast.errors import SimulationError
from standfast.testing.loop import STEP_LIMIT, SimulatedLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def simulate(
    seed: int, main: Callable[[Unpack[Ts]], Coroutine[Any, Any, T]], *args: *Ts, step_limit: int = STEP_LIMIT
) -> T:
    """Run ``main(*args)`` to its end on a :class:`SimulatedLoop` and return what it returns.

    Whatever fails carries a note with the seed; calling again with that seed repeats the run exactly, as long as
    the program takes its own randomness from the seed, too. An exception in a plain callback, which asyncio only
    logs, fails the simulation. Tasks that are left when ``main`` has ended are cancelled.

    >>> import asyncio
    >>> async def nap() -> float:
    ...     await asyncio.sleep(3600)
    ...     return asyncio.get_running_loop().time()
    >>> simulate(7, nap)
    3600.0
    """
    if asyncio._get_running_loop() is not None:  # noqa: SLF001 -- made for event loops
        raise SimulationError("simulate() runs an event loop of its own: call it from a plain function")
    loop = SimulatedLoop(seed, step_limit=step_limit)
    try:
        result = loop.run_until_complete(main(*args))
        loop.raise_callback_errors()
    except BaseException as error:
        error.add_note(_how_to_repeat(loop))
        raise
    else:
        return result
    finally:
        loop.finish()


def _how_to_repeat(loop: SimulatedLoop) -> str:
    steps = "\n".join(f"  {step}" for step in loop.trace.last)
    return f"simulated with seed {loop.seed}, after {loop.trace.steps:,} steps; the last of them:\n{steps}"
