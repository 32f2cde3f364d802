"""The sweeper: deletes runs that ended long enough ago, by a policy, beside the work.

Each engine that drives runs has one if it was given a :class:`Retention`. They take turns by a record with a lease: one
sweeps at a time, and if two do no harm is done. It reads the index of ended runs from its oldest end, so a round costs
what it deletes, and gives the loop back after each few runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

from standfast.audit import SHORTEST as SHORTEST_AUDIT
from standfast.audit import Audit
from standfast.clock import later
from standfast.codec import Codec
from standfast.durations import Duration, optional_seconds
from standfast.errors import DeclarationError, StandfastError
from standfast.events import RunsSwept
from standfast.stores.protocol import Decision, Put
from standfast.workflows.batch_purge import TOGETHER
from standfast.workflows.records import ENDED
from standfast.workflows.retention import purge_some
from standfast.workflows.run_index import is_complete, oldest_ended, workflows_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.stores.protocol import Snapshot
    from standfast.workflows.records import Found
    from standfast.workflows.runtime import Runtime

SHORTEST: Final = 1.0
"""The shortest time for which runs can be kept, in seconds: a caller has to have the time to ask for the result."""


class Retention(Struct, frozen=True, kw_only=True):
    """For how long runs are kept after they have ended; None: until they are purged by hand.

        sf.Engine(url, workflows=[fulfil], retention=sf.admin.Retention(completed="7 days", failed="30 days"))

    A run is deleted with everything that it has started and recorded. What a run has started goes with it, and not
    before; what has not ended is never deleted.

    Attributes:
        completed: Those that returned.
        failed: Those that raised.
        cancelled: Those that were cancelled.
        timed_out: Those that took too long.
        workflows: Those of some workflows, by name, however they ended: ``{"import": "1 day", "ledger": None}``.
        idempotency: For how long after that their idempotency keys, and how often a chosen id was used, are kept: a
            late repetition of a start is recognised for so long. None: for ever.
        audit: For how long what operators do is kept, see :meth:`Space.keep_audit <standfast.Space.keep_audit>`; None:
            as it was said there.
        most_per_second: How many runs are deleted in a second at most, by all engines of a namespace and tenant.
    """

    completed: Duration | None = "7 days"
    failed: Duration | None = "30 days"
    cancelled: Duration | None = "30 days"
    timed_out: Duration | None = "30 days"
    workflows: Mapping[str, Duration | None] = {}
    idempotency: Duration | None = "30 days"
    audit: Duration | None = None
    most_per_second: int = 5_000

    def __post_init__(self) -> None:
        if not isinstance(self.workflows, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise DeclarationError("the retention", "workflows is a mapping of names to lengths of time")
        if type(self.most_per_second) is not int or self.most_per_second < 1:
            raise DeclarationError("the retention", "most_per_second is a whole number, at least 1")
        for status in ENDED:
            self.kept_for(status, "")
        for name in self.workflows:
            self.kept_for("completed", name)
        optional_seconds(self.idempotency, what="how long idempotency keys are kept", minimum=SHORTEST)
        optional_seconds(self.audit, what="how long the audit is kept", minimum=SHORTEST_AUDIT)

    def kept_for(self, status: str, workflow: str) -> float | None:
        """Return for how many seconds a run is kept that ended so; None: for ever."""
        length: Duration | None = self.workflows[workflow] if workflow in self.workflows else getattr(self, status)
        return optional_seconds(length, what=f"how long {workflow or status} runs are kept", minimum=SHORTEST)


class _Turn(Struct, frozen=True, omit_defaults=True):
    """Which engine sweeps: the name of its presence."""

    engine: str


_TURNS: Final[Codec[_Turn]] = Codec(_Turn, what="which engine sweeps")

TURN: Final = 30.0
"""Seconds for which one engine sweeps before another may."""

IDLE: Final = 10.0
"""Seconds between two rounds at most; less if runs are kept for a short time."""

BEHIND: Final = 200
"""If this many runs are found at once, the sweeper is behind: several groups of them are deleted at the same time."""

AT_ONCE: Final = 8
"""How many groups that are: their commits ride together."""


@final
class Sweeper:
    """Deletes what a policy no longer keeps, until it is cancelled."""

    def __init__(self, runtime: Runtime, retention: Retention) -> None:
        self._runtime, self._retention = runtime, retention
        lengths = [retention.kept_for(status, "") for status in ENDED]
        lengths += [retention.kept_for("completed", name) for name in retention.workflows]
        self._every: Final = min(IDLE, *(each / 10 for each in lengths if each is not None), IDLE)
        self._forget_after: Final = optional_seconds(retention.idempotency, what="idempotency")

    async def run(self) -> None:
        """Sweep round after round. Should the store fail, the next round tries again."""
        while True:
            try:
                if self._retention.audit is not None:
                    await Audit(self._runtime.space).keep(self._retention.audit)
                swept = await self.sweep() if await self._has_turn() else 0
            except StandfastError:
                swept = 0
            await asyncio.sleep(self._every if not swept else min(self._every, 1.0))

    async def _has_turn(self) -> bool:
        """Take or keep the turn; False: another engine has it."""
        space = self._runtime.space
        key, own = space.key("sweeping"), space.presence_name

        def decide(seen: Snapshot) -> Decision[bool]:
            record = seen.get(key)
            if record is not None and _TURNS.decode(record.value).engine != own:
                return Decision(answer=False)
            put = Put(key, _TURNS.encode_own(_Turn(own)), seen.version(key), later(seen.at, TURN))
            return Decision(answer=True, changes=(put,))

        return (await space.update([key], decide)).answer

    async def sweep(self) -> int:
        """Delete all that is not kept any longer; return how many runs that were."""
        space, swept = self._runtime.space, 0
        if not await is_complete(space):
            return 0  # what the store had before it had an index of runs is indexed first, in the background
        for status in sorted(ENDED):
            for workflow in await workflows_with(space, status):
                length = self._retention.kept_for(status, workflow)
                if length is not None and workflow not in self._runtime.kept_elsewhere:
                    swept += await self._sweep_one(status, workflow, length)
        return swept

    async def _sweep_one(self, status: str, workflow: str, length: float) -> int:
        seen = await self._runtime.space.read(self._runtime.space.key("sweeping"))
        before, swept = later(seen.at, -length), 0

        def takes(run: Found) -> bool:
            state = run.state
            return (state.status, state.workflow) == (status, workflow) and state.changed_at < before

        async for page in oldest_ended(self._runtime.space, status, before=before, workflow=workflow):
            names = sorted(each.id for each in page)  # neighbours are deleted together
            groups = [names[start : start + TOGETHER] for start in range(0, len(names), TOGETHER)]
            width = AT_ONCE if len(names) >= BEHIND else 1
            purged = 0
            for start in range(0, len(groups), width):
                purged += await self._purge(groups[start : start + width], takes)
            swept += purged
            if purged:
                self._runtime.emit(RunsSwept(at=self._runtime.clock.wall(), workflow=workflow, runs=purged))
            if not await self._has_turn():
                return swept
        return swept

    async def _purge(self, groups: list[list[str]], takes: Callable[[Found], bool]) -> int:
        """Delete some groups of runs at once, and rest for as long as the rate asks for."""
        loop = asyncio.get_running_loop()
        least = sum(map(len, groups)) / self._retention.most_per_second
        began, forget_after = loop.time(), self._forget_after
        purged = await asyncio.gather(
            *(purge_some(self._runtime, each, takes, forget_after=forget_after) for each in groups)
        )
        await asyncio.sleep(max(0.0, began + least - loop.time()))
        return sum(purged)
