"""One process of an environment: an engine over a store that it can lose."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct

from standfast.clock import Clock
from standfast.events import Hook, Hooks
from standfast.space import Space, lines_of
from standfast.testing.workflows.mortal_store import Mortality, MortalStore
from standfast.workflows.capacity import WorkerLimits
from standfast.workflows.control import Unload
from standfast.workflows.definition import Step, Workflow
from standfast.workflows.engine import Engine

if TYPE_CHECKING:
    from standfast.stores.protocol import Store

LEASE: Final = "30000 days"
"""Longer than any test skips: deaths are seen at once, so it is never waited for."""

ENDS_WITHIN: Final = 1.0
"""Seconds that the tasks of a dead process get to end."""


class Setup(Struct, frozen=True):
    """What every process of an environment is made with."""

    workflows: tuple[Workflow[..., Any], ...]
    steps: tuple[Step[..., Any] | Any, ...]
    errors: tuple[type[Exception], ...]
    hooks: tuple[Hook, ...]
    namespace: str
    linger: float
    clock: Clock


@final
class Process:
    """An engine that can die.

    Attributes:
        number: 1 for the first one that drives runs.
        life: Whether it lives.
        engine: Its engine.
    """

    def __init__(self, number: int, setup: Setup, store: Store, dead: set[str], *, drive: bool) -> None:
        self.number: Final = number
        self.life: Final = Mortality(f"process-{number}", dead)
        self._space: Final = Space(
            MortalStore(store, self.life),
            namespace=setup.namespace,
            lease=LEASE,
            hooks=Hooks(setup.hooks),
            clock=setup.clock,
        )
        self.engine: Final = Engine(
            self._space,
            workflows=setup.workflows,
            steps=setup.steps,
            errors=setup.errors,
            drive=drive,
            worker=WorkerLimits(linger=setup.linger, quarantine_after=1_000),
            hooks=setup.hooks,
        )

    @property
    def is_still(self) -> bool:
        """Whether it does nothing at the moment, apart from steps that wait for something of their own."""
        worker = self.engine.worker
        return (
            not self.life.under_way
            and not self.engine.runtime.threads.busy
            and (worker is None or worker.is_at_rest)
            and not any(
                each.inbox_poll.is_polling or each.inbox_poll.is_waiting for each in self.engine.runtime.loaded.values()
            )
        )

    @property
    def is_in_a_step(self) -> bool:
        """Whether a step is running."""
        return any(branch.is_in_effect for each in self.engine.runtime.loaded.values() for branch in each.branches)

    async def close(self) -> None:
        """Stop it in good order."""
        await self.engine.aclose(grace=0)
        await self._space.aclose()

    def cut_off(self) -> None:
        """Let no step begin any more, nor any code of a workflow go on."""
        self.engine.runtime.on_attempt = _nothing_more
        for activation in tuple(self.engine.runtime.loaded.values()):
            activation.abandon()

    async def discard(self) -> None:
        """Let everything end that is left of it in memory, without a word to the store."""
        runtime, worker = self.engine.runtime, self.engine.worker
        self.life.die()
        self.cut_off()
        tasks: set[asyncio.Task[Any]] = set() if worker is None else worker.stop_dead()
        self.life.end_calls()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=ENDS_WITHIN)
            for task in left:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        runtime.threads.close()
        lines_of(self._space).is_closing = True
        await self._space.aclose()


def _nothing_more(_: object) -> None:
    raise Unload
