"""An action that the clock calls, and servers that may die, for the tests of schedules."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import standfast as sf
from standfast.errors import StandfastError
from standfast.events import TickFired, TickSkipped
from standfast.testing.workflows.mortal_store import Mortality, MortalStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from standfast.events import Event
    from standfast.flows.dispatcher import ArbiterKind
    from standfast.flows.flow import OnOverlap
    from standfast.policies import Policy
    from standfast.testing.workflows import WorkflowEnvironment

ROBOT = sf.Principal("acme", "robot")
FIRST, SECOND, THIRD = (f"nightly@2025-06-15T15:0{minute}:40Z" for minute in (7, 8, 9))


class Mortal(NamedTuple):
    """A server that may die."""

    dispatcher: sf.Dispatcher
    life: Mortality


class Office:
    """Where an action is called by the clock; it ends when the test says so."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.began: list[str] = []
        self.requests: list[sf.Request] = []
        self.told: list[Event] = []
        self.news = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.flow = sf.Flow("office", concurrency=policy)

        @self.flow.action
        async def tidy(request: sf.Request, room: str = "hall") -> str:
            self.began.append(request.id)
            self.requests.append(request)
            self.news.set()
            await self.may_end.wait()
            return f"tidied {room}"

        self.tidy = tidy

    def nightly(self, on_overlap: OnOverlap = "skip", **more: Any) -> sf.Schedule:
        """Return a schedule of the action, for every minute."""
        more.setdefault("principal", ROBOT)
        return self.tidy.schedule("nightly", {"room": "attic"}, every="1 minute", on_overlap=on_overlap, **more)

    @asynccontextmanager
    async def open(
        self, env: WorkflowEnvironment, *schedules: sf.Schedule, arbiter: ArbiterKind = "shared", servers: int = 1
    ) -> AsyncIterator[sf.Dispatcher]:
        """Serve the action with some servers on the store of an environment; give the first."""
        async with AsyncExitStack() as stack:
            made = list[sf.Dispatcher]()
            for _ in range(servers):
                space = sf.Space(await env.client.space.store.another(), clock=env.clock, lease="30 days")
                stack.push_async_callback(space.aclose)
                engine = sf.Engine(space, hooks=[self.hear])
                dispatcher = sf.Dispatcher(engine, [self.flow], arbiter=arbiter, schedules=schedules)
                made.append(await stack.enter_async_context(dispatcher))
            yield made[0]
            self.may_end.set()

    @asynccontextmanager
    async def mortal(self, env: WorkflowEnvironment, life: Mortality) -> AsyncIterator[Mortal]:
        """Serve the action with a server that may die."""
        store = MortalStore(await env.client.space.store.another(), life)
        space = sf.Space(store, clock=env.clock, lease="30 days")
        dispatcher = sf.Dispatcher(sf.Engine(space, hooks=[self.hear]), [self.flow], schedules=[self.nightly("allow")])
        await dispatcher.open()
        yield Mortal(dispatcher, life)
        if life.is_dead:
            life.end_calls()
        with suppress(StandfastError):  # whoever is dead cannot say goodbye
            await dispatcher.aclose(grace=0)
        with suppress(StandfastError):
            await space.aclose()

    def hear(self, event: Event) -> None:
        """Be told what happens."""
        self.told.append(event)
        self.news.set()

    @property
    def ticks(self) -> int:
        """How many ticks were handled."""
        return sum(isinstance(event, TickFired | TickSkipped) for event in self.told)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something to become true."""
        async with asyncio.timeout(10):
            while not holds():
                self.news.clear()
                await self.news.wait()

    async def until_begun(self, request_id: str) -> None:
        """Wait for the action to be called by a request."""
        await self.until(lambda: request_id in self.began)

    def skipped(self) -> list[str]:
        """Return why ticks were skipped, as hooks were told."""
        return [event.reason for event in self.told if isinstance(event, TickSkipped)]


async def minute(env: WorkflowEnvironment, office: Office, *, begun: int) -> None:
    """Let a minute pass, in which a tick happens, until that many requests have begun in all."""
    before = office.ticks
    await env.advance("1 minute")
    await office.until(lambda: office.ticks > before and len(office.began) >= begun)
