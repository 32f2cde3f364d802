"""A flow for the tests of dispatchers: actions that begin, tell so, and end when the test says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import pytest

import standfast as sf
from standfast.flows.dispatcher import Dispatcher
from standfast.flows.records import SESSIONS, session_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.flows.handle import Handle
    from standfast.flows.request import EmittedEvent
    from standfast.policies import Policy

SOON: Final = 15.0
"""How long anything may take at most that ought to happen at once, in seconds."""

ANN: Final = sf.Principal("acme", "ann")

DURABLE: Final = pytest.mark.parametrize("durable", [False, True], ids=["attended", "durable"])

Pair: TypeAlias = tuple[Dispatcher, Dispatcher]
"""Two servers on one store, or the sole one twice."""


POLICIES: Final[dict[str, Policy]] = {
    "free": sf.Allow(),
    "queued": sf.Queue(max_waiting=3),
    "hasty": sf.Queue(timeout="60ms"),
    "patient": sf.Queue(timeout=None),
    "rejected": sf.Reject(),
    "restarted": sf.Restart(grace="10s"),
    "joined": sf.Join(),
    "latest": sf.Latest(),
    "debounced": sf.Debounce("250ms", collapse="all"),
    "capped": sf.Debounce("200ms", max_wait="300ms"),
    "leading": sf.Debounce("500ms", edge="leading"),
}
"""The actions that work as a test says, by the policy that they have."""

LIMITED: Final[dict[str, dict[str, Any]]] = {
    "limited": {"limits": sf.Limit(1)},
    "limited_queue": {"concurrency": "queue", "limits": sf.Limit(1)},
    "limited_restart": {"concurrency": sf.Restart(grace="10s"), "limits": sf.Limit(1)},
    "limited_latest": {"concurrency": "latest", "limits": sf.Limit(1)},
    "limited_batch": {"concurrency": sf.Debounce("10ms"), "limits": sf.Limit(1)},
    "limited_by_user": {"limits": sf.Limit(1, key="user")},
    "limited_shortly": {"limits": sf.Limit(1, ttl="60ms")},
    "limited_strictly": {"limits": sf.Limit(1, on_limit="reject")},
    "limited_room": {"limits": sf.Limit(1, max_queued=1)},
    "shares_one": {"limits": sf.Limit(1, name="gpu")},
    "shares_two": {"limits": [sf.Limit(1, name="gpu"), sf.Limit(5)], "priority": 5},
    "one_then_two": {"limits": [sf.Limit(1, name="one"), sf.Limit(1, name="two")]},
    "two_then_one": {"limits": [sf.Limit(1, name="two"), sf.Limit(1, name="one")]},
    "rated": {"limits": sf.Rate(2, "1 hour", key="user")},
}
"""The actions that have limits, and how they are declared."""


@final
class Stage:
    """What the actions of one test do, and what they have done.

    Attributes:
        begun: The names of those that have begun, in order.
        ended: The names of those that came to their end.
        seen: The inputs that each has seen, by name.
        most: How many ran at a time, at most.
        nest: What the action ``nested`` does.
    """

    def __init__(self) -> None:
        self.begun: Final[list[str]] = []
        self.ended: Final[list[str]] = []
        self.seen: Final[dict[str, tuple[Any, ...]]] = {}
        self.most = self._now = 0
        self._held: Final[dict[str, asyncio.Event]] = {}
        self._news: Final[defaultdict[str, asyncio.Event]] = defaultdict(asyncio.Event)
        self.failures: Final[dict[str, int]] = {}
        self.calls: Final[list[str]] = []
        self.nest: Callable[[sf.Request, str], Awaitable[str]] = self._work
        self.flow: Final = self._flow()

    def _flow(self) -> sf.Flow:
        flow = sf.Flow("chat")

        async def work(request: sf.Request, name: str) -> str:
            return await self._work(request, name)

        for action, policy in POLICIES.items():
            flow.action(name=action, concurrency=policy)(work)
        for action, options in LIMITED.items():
            flow.action(name=action, **options)(work)

        @flow.action(concurrency=sf.Batch(3, "10s"))
        async def batched(request: sf.Request, names: list[str]) -> list[str]:
            await self._work(request, "+".join(names))
            return names

        @flow.action(concurrency="queue", retry=sf.Retry(attempts=3, delay=0.01))
        async def retried(request: sf.Request, name: str) -> str:
            await request.run_once("charge", self._charge, name)
            return await self._work(request, name)

        flow.action(name="kept", concurrency="queue", durable=True)(work)

        flow.action(name="told")(self._tell)
        flow.action(name="told_in_turn", concurrency="queue")(self._tell)

        @flow.action(concurrency="queue")
        async def nested(request: sf.Request, name: str) -> str:
            return await self.nest(request, name)

        @flow.action(limits=sf.Limit(1, name="gpu"))
        async def nested_in_limit(request: sf.Request, name: str) -> str:
            return await self.nest(request, name)

        return flow

    async def _charge(self, name: str) -> str:
        self.calls.append(name)
        return name

    async def _tell(self, request: sf.Request, name: str) -> None:
        """Tell half of it, wait for the test, and end with the other half."""
        for number in range(int(name)):
            if number == int(name) // 2:
                await self._held[name].wait()
            request.emit(number)

    async def _work(self, request: sf.Request, name: str) -> str:
        self.begun.append(name)
        self.seen[name] = request.inputs
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            request.emit({"began": name})
            if request.session_id:
                request.session.append("names", name)
            self._news[f"begun {name}"].set()
            if name in self._held:
                await self._held[name].wait()
            if self.failures.get(name, 0):
                self.failures[name] -= 1
                raise ValueError(name)
        finally:
            self._now -= 1
        self.ended.append(name)
        self._news[f"ended {name}"].set()
        return f"did {name}"

    # --- what tests say ------------------------------------------------------------------------------------------

    def hold(self, *names: str) -> None:
        """Let those not end before :meth:`release`."""
        for name in names:
            self._held[name] = asyncio.Event()

    def release(self, *names: str) -> None:
        """Let those end."""
        for name in names:
            self._held[name].set()

    async def until_begun(self, name: str) -> None:
        """Wait until that one has begun."""
        async with asyncio.timeout(SOON):
            await self._news[f"begun {name}"].wait()

    async def until_ended(self, name: str) -> None:
        """Wait until that one has ended."""
        async with asyncio.timeout(SOON):
            await self._news[f"ended {name}"].wait()


def arrival(action: str, name: str, *, durable: bool = False, **more: Any) -> sf.Call:
    """Return a request of ann's in her one session."""
    inputs = more.pop("inputs", {"names" if action == "batched" else "name": name})
    more.setdefault("session", "s-1")
    more.setdefault("principal", ANN)
    return sf.Call(flow="chat", action=action, inputs=inputs, attended=not durable, **more)


async def result(handle: Handle) -> Any:
    """Return what a request came to, soon."""
    return await handle.result(timeout=SOON)


async def all_of(handle: Handle, after: int = 0) -> list[EmittedEvent]:
    """Return all events of a request after a number."""
    return [event async for event in handle.events(after)]


async def until_one_waits(dispatcher: Dispatcher) -> None:
    """Wait until somebody waits for the session's key."""
    async with asyncio.timeout(SOON):
        while not (await dispatcher.arbiter.look(("request", "acme", "session", "s-1"))).waiting:  # noqa: ASYNC110 -- in the store
            await asyncio.sleep(0.005)


async def until_free(dispatcher: Dispatcher) -> None:
    """Wait until nobody has the session's key: a run leaves its line just after what it has to do is done."""
    async with asyncio.timeout(SOON):
        while (await dispatcher.arbiter.look(("request", "acme", "session", "s-1"))).holder:  # noqa: ASYNC110 -- in the store
            await asyncio.sleep(0.002)


async def names_of(dispatcher: Dispatcher) -> list[str]:
    """Return what was appended to the session."""
    space = dispatcher.engine.space
    key = session_key(space, "acme", "s-1")
    record = (await space.read(key)).get(key)
    return [] if record is None else SESSIONS.decode(record.value).state.get("names", [])


async def until_set(event: asyncio.Event) -> None:
    """Wait for an event, whoever wants it to stop."""
    while not event.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await event.wait()
