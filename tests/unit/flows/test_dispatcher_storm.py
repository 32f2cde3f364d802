"""Storms of requests over a store that loses replies: every one ends, one at a time, and counts once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, final

import pytest

import standfast as sf
from standfast.errors import FlowError, StoreError
from standfast.flows.records import SESSIONS, session_key
from standfast.flows.request import ENDED
from standfast.space import Space
from standfast.stores import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.testing import Faults, FaultyBackend
from tests.sizes import rounds

if TYPE_CHECKING:
    from standfast.flows.dispatcher import Dispatcher
    from standfast.flows.handle import Handle
    from standfast.flows.request import RequestInfo
    from standfast.policies import Policy

FAULTS: Final = Faults(
    refuse=0.02, lose_request=0.05, lose_reply=0.05, land_late=0.05, fail_read=0.02, drop_hint=0.1, delay=0.1
)
POLICIES: Final[dict[str, Policy]] = {
    "queued": sf.Queue(timeout="60s"),
    "rejected": sf.Reject(),
    "restarted": sf.Restart(grace="60s"),
    "joined": sf.Join(),
    "latest": sf.Latest(),
    "debounced": sf.Debounce("20ms"),
}
SESSIONS_USED: Final = ("s-0", "s-1", "s-2")
PATIENCE: Final = 60.0


@final
class Storm:
    """Some thirty requests of all policies, some of which are cancelled."""

    def __init__(self, seed: int) -> None:
        self._chooser: Final = random.Random(seed)
        self._running: Final[defaultdict[str, int]] = defaultdict(int)
        self.most = 0
        self.handles: Final[list[Handle]] = []
        self.flow: Final = sf.Flow("chat")
        for action, policy in POLICIES.items():
            self.flow.action(name=action, concurrency=policy)(self._action())

    def _action(self) -> Any:
        async def work(request: sf.Request, name: str) -> str:
            key = request.session_id
            self._running[key] += 1
            self.most = max(self.most, self._running[key])
            try:
                request.session.append("names", name)
                request.emit(name)
                await asyncio.sleep(0.002)
            finally:
                self._running[key] -= 1
            return name

        return work

    async def blow(self, servers: list[Dispatcher]) -> None:
        """Send them all, and wait for each."""
        await asyncio.gather(*(self._send(self._chooser.choice(servers), str(number)) for number in range(30)))

    async def _send(self, server: Dispatcher, name: str) -> None:
        chooser = self._chooser
        arrival = sf.Call(
            flow="chat",
            action=chooser.choice(list(POLICIES)),
            inputs={"name": name},
            session=chooser.choice(SESSIONS_USED),
            attended=chooser.random() < 0.5,
        )
        await asyncio.sleep(chooser.random() * 0.1)
        try:
            handle = await server.dispatch(arrival)
            self.handles.append(handle)
            if chooser.random() < 0.1:
                await handle.cancel()
            await handle.result(timeout=PATIENCE)
        except (FlowError, StoreError):
            return


async def ended(server: Dispatcher, request_id: str) -> RequestInfo:
    """Wait until a request has ended, and return how."""
    handle = await server.find(sf.Principal(), request_id)
    with suppress(FlowError):
        await handle.result(timeout=PATIENCE)
    return await handle.info()


async def names_of(space: Space, session: str) -> list[str]:
    """Return what was appended to a session."""
    key = session_key(space, "default", session)
    record = (await space.read(key)).get(key)
    return [] if record is None else SESSIONS.decode(record.value).state["names"]


async def served(flow: sf.Flow, space: Space) -> Dispatcher:
    """Return a dispatcher that serves; opening it is tried until the store lets it."""
    dispatcher = sf.Dispatcher(space, [flow])
    while True:
        try:
            await dispatcher.open()
        except (StoreError, FlowError):
            continue
        return dispatcher


@pytest.mark.heavy
async def test_a_storm_of_requests_ends_and_each_counts_once() -> None:
    """At most one of a key runs, nothing waits for ever, and what is completed is in its session once."""
    for seed in rounds("storms of requests", full=300, quick=1):
        print(f"seed {seed}")
        memory, storm = MemoryRecords(), Storm(seed)
        inner = [MemoryBackend(memory) for _ in range(3)]
        faulty = [GroupedStore(FaultyBackend(inner[n], seed=2 * seed + n, faults=FAULTS)) for n in range(2)]
        async with Space(GroupedStore(inner[2])) as space, Space(faulty[0]) as one, Space(faulty[1]) as two:
            servers = [await served(storm.flow, each) for each in (one, two)]
            async with sf.Dispatcher(space, [storm.flow]) as observer:
                await storm.blow(servers)
                requests = [await ended(observer, each.id) for each in storm.handles]
                for each in servers:
                    with suppress(StoreError):
                        await each.aclose(grace=1)
                appended = Counter([name for each in SESSIONS_USED for name in await names_of(space, each)])

        assert {each.status for each in requests} <= ENDED
        assert storm.most == 1
        assert max(appended.values()) == 1
        assert {each.result for each in requests if each.status == "completed"} <= appended.keys()
