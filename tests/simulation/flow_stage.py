"""The actions of a simulation of flows: each works for a while, tells so, and leaves its name in its session."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final, final

import standfast as sf
from standfast.workflows.values import Signature, signature_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from standfast.flows.flow import OnOverlap
    from standfast.policies import Policy
    from tests.simulation.flow_watch import FlowWatch
    from tests.simulation.lock_process import Process

ANN: Final = sf.Principal("acme", "ann")
CLOCK: Final = sf.Principal("acme", "clock")
IN_TURN: Final = ("queued", "retried")
"""The actions whose requests wait for their turn, and for nothing else."""

SUPERSEDING: Final = ("restarted", "latest")
"""The actions in which a newer request takes the place of an older one."""

COLLECTING: Final = ("collected", "debounced", "leading", "batched")
"""The actions that run once for several requests."""

ACTIONS: Final = ("free", *IN_TURN, "rejected", "joined", *SUPERSEDING, *COLLECTING)


def policies_of(chance: random.Random) -> Mapping[str, Policy]:
    """Return what one seed declares."""
    window = chance.uniform(0.1, 0.6)
    return {
        "free": sf.Allow(),
        "queued": sf.Queue(
            timeout=chance.choice((None, None, chance.uniform(0.3, 3))), max_waiting=chance.choice((2, 100))
        ),
        "retried": sf.Queue(timeout=None),
        "rejected": sf.Reject(),
        "joined": sf.Join(),
        "restarted": sf.Restart(grace=chance.uniform(0.02, 1)),
        "latest": sf.Latest(),
        "collected": sf.Debounce(window, collapse="all"),
        "debounced": sf.Debounce(window, max_wait=chance.choice((None, 2 * window))),
        "leading": sf.Debounce(window, edge="leading", collapse="all"),
        "batched": sf.Batch(chance.randint(1, 3), window),
        "ticked": chance.choice((sf.Queue(timeout=None), sf.Allow())),
    }


_signatures: Final[dict[tuple[Any, ...], Signature]] = {}


def known_signature(function: Any, **options: Any) -> Signature:
    """Return what a function takes and returns; that of the same code is read once, for that takes longest of all."""
    key = (function.__code__, *options.items())
    if key not in _signatures:
        _signatures[key] = signature_of(function, **options)
    return _signatures[key]


@final
class Stage:
    """The flow as one process has it: the same in all of them, but for where its actions run."""

    def __init__(self, watch: FlowWatch, process: Process, policies: Mapping[str, Policy], seed: int) -> None:
        self._watch, self._process = watch, process
        self._chance: Final = random.Random(seed)
        self.flow: Final = sf.Flow("chat")
        for name, policy in policies.items():
            retry = {"retry": sf.Retry(attempts=2, delay=0.1)} if name == "retried" else {}
            self._declare(name, concurrency=policy, **retry)

    def _declare(self, name: str, **options: Any) -> None:
        async def batched(request: sf.Request, names: list[str]) -> list[str]:
            return await self._perform(request, names)

        async def act(request: sf.Request, name: str) -> list[str]:
            if request.action in COLLECTING and len(request.inputs) > 1:
                return await self._perform(request, [each["name"] for each in request.inputs])
            return await self._perform(request, [request.id if request.action == "ticked" else name])

        self.flow.action(name=name, **options)(batched if name == "batched" else act)

    def schedule(self, on_overlap: OnOverlap, session: str) -> sf.Schedule:
        """Return a schedule of one of them, for every second."""
        options: Any = {"every": 1, "on_overlap": on_overlap, "session": session}
        return self.flow.actions["ticked"].schedule("clock", {"name": ""}, principal=CLOCK, **options)

    async def _perform(self, request: sf.Request, names: Sequence[str]) -> list[str]:
        await self._look_up()
        run = self._watch.begins(self._process, request, names)
        try:
            await self._work(request)
            for name in names:
                request.session.append("names", name)
        finally:
            run.is_inside = False
        return list(names)

    async def _work(self, request: sf.Request) -> None:
        deaf = self._chance.choice((0, 0, 0, 1, 3))
        for number in range(self._chance.randint(1, 2)):
            deaf = await self._take_a_while(deaf)
            await self._look_up()
            if number == 0:
                request.emit({"step": number})
        if request.action == "retried" and request.attempt == 1 and self._chance.random() < 0.4:
            raise ConnectionError("stumbled")
        await self._look_up()

    async def _take_a_while(self, deaf: int) -> int:
        """Do something; go on though it is cancelled, so many times. Return how many times are left."""
        while True:
            try:
                await asyncio.sleep(self._chance.choice((0.0, self._chance.uniform(0, 1.0))))
            except asyncio.CancelledError:
                if not deaf:
                    raise
                deaf -= 1
            else:
                return deaf

    async def _look_up(self) -> None:
        if self._process.is_dead or self._chance.random() < 0.5:
            await self._process.awake()  # not only its wire stands still, but all of it
