"""What callers of a simulation send, and what they are told: some twice with one key, some go away, some cancel."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct, field

import standfast as sf
from standfast.errors import FlowError, StandfastError, StoreError
from tests.simulation.flow_stage import ACTIONS, ANN, COLLECTING, SUPERSEDING
from tests.simulation.lock_process import Process

if TYPE_CHECKING:
    from standfast.flows.handle import Handle
    from tests.simulation.flow_world import Site, World


class Sending(Struct):
    """One time that a letter was sent.

    Attributes:
        process: To whom.
        sent: When, in the order of all that the senders did and heard.
        answered: When it was taken on; 0: nobody has heard that it was.
        id: The request that it became, or became a part of.
        is_new: Whether it began that request.
        told: How that ended, as far as its caller heard.
    """

    process: Process
    sent: int
    answered: int = 0
    id: str = ""
    is_new: bool = False
    told: str = ""
    value: Any = None


class Letter(Struct):
    """A request, which may be sent several times with one idempotency key."""

    name: str
    action: str
    session: str
    attended: bool
    key: str = ""
    sendings: list[Sending] = field(default_factory=list)

    def arrival(self) -> sf.Call:
        """Return it as a transport hands it over."""
        inputs = {"names" if self.action == "batched" else "name": self.name}
        return sf.Call(
            flow="chat",
            action=self.action,
            inputs=inputs,
            principal=ANN,
            session=self.session,
            idempotency_key=self.key,
            attended=self.attended,
            on_disconnect="cancel",
        )


@final
class Sender:
    """Sends one letter, as often as it likes."""

    def __init__(self, world: World, name: str) -> None:
        chance = self._chance = random.Random(world.chance.random())
        self._world = world
        action = chance.choice(world.actions)
        attended = chance.random() < 0.4
        key = f"key of {name}" if chance.random() < 0.4 else ""
        self.letter: Final = Letter(name, action, chance.choice(world.sessions), attended, key)
        self.tasks: Final[list[tuple[Site, asyncio.Task[None]]]] = []

    async def run(self) -> None:
        """Send it after a while, and perhaps again."""
        chance = self._chance
        await asyncio.sleep(chance.uniform(0, 2.5))
        for _ in range(chance.choice((1, 2, 2, 3)) if self.letter.key else 1):
            site = await self._world.somebody(chance)
            task = site.process.start(self._send(site))
            self.tasks.append((site, task))
            if chance.random() < 0.15:
                asyncio.get_running_loop().call_later(chance.uniform(0, 2), self._go_away, site, task)
            await asyncio.sleep(chance.choice((0, chance.uniform(0, 2))))

    def _go_away(self, site: Site, task: asyncio.Task[None]) -> None:
        if not site.process.is_dead and not task.done():
            for each in self.letter.sendings:
                self._world.watch.unwanted.add(each.id)
            self._world.watch.abandoned.add(self.letter.name)
            task.cancel()

    async def _send(self, site: Site) -> None:
        watch, sending = self._world.watch, Sending(site.process, self._world.watch.tick())
        self.letter.sendings.append(sending)
        try:
            handle = await site.dispatcher.dispatch(self.letter.arrival())
        except StandfastError as problem:
            if not site.process.is_dead:
                sending.told = type(problem).__name__
                watch.demand(isinstance(problem, FlowError | StoreError), f"error: {self.letter.name} got {problem!r}")
            return
        if site.process.is_dead:
            return
        sending.answered, sending.id, sending.is_new = watch.tick(), handle.id, handle.is_new
        watch.accepted(self.letter, sending)
        if self._chance.random() < 0.1:
            watch.unwanted.add(handle.id)
            self.tasks.append((site, site.process.start(self._cancel(handle))))
        if self.letter.attended or self._chance.random() < 0.5:
            await self._hear(site, handle, sending)

    async def _hear(self, site: Site, handle: Handle, sending: Sending) -> None:
        try:
            sending.value = await handle.result()
            told = "completed"
        except StoreError:
            return  # it goes on, and others can be asked
        except StandfastError as problem:
            told = type(problem).__name__
        if not site.process.is_dead:
            sending.told = told

    async def _cancel(self, handle: Handle) -> None:
        await asyncio.sleep(self._chance.uniform(0, 1.5))
        try:
            await handle.cancel("enough")
        except StandfastError:
            return


def chosen_actions(chance: random.Random) -> tuple[str, ...]:
    """Return which actions one seed calls: a few, so that they meet."""
    some = chance.sample(ACTIONS, chance.randint(1, 3))
    kinds = chance.choice(((), COLLECTING, SUPERSEDING))
    return (*some, *kinds[: chance.randint(0, 2)])
