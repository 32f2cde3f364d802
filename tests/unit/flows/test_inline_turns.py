"""Requests that queue for one key in a store: what a turn costs, and what is written of it when."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.flows.records import REQUESTS
from standfast.flows.request import Call
from standfast.stores.group_commit import GroupedStore

if TYPE_CHECKING:
    from pathlib import Path

    from standfast.flows.handle import Handle

DESK = sf.Flow("desk")
gates: list[asyncio.Event] = []
begun: list[int] = []


@DESK.action(concurrency=sf.Queue(max_waiting=1_000))
async def take(_request: sf.Request, number: int) -> int:
    """Work as long as the test says."""
    begun.append(number)
    await gates[-1].wait()
    return number


@pytest.fixture(autouse=True)
def _fresh() -> None:
    gates.append(asyncio.Event())
    begun.clear()


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that several processes can share."""
    return f"memory://{tmp_path.name}" if request.param == "memory" else f"sqlite:///{tmp_path / 'desk.db'}"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the store was asked for what."""
    counted: Counter[str] = Counter()

    def count(name: str) -> None:
        real = getattr(GroupedStore, name)

        async def asked(store: GroupedStore, *args: Any, **options: Any) -> Any:
            counted[name.removesuffix("_unchecked")] += 1
            return await real(store, *args, **options)

        monkeypatch.setattr(GroupedStore, name, asked)

    for name in ("choose", "commit", "commit_unchecked", "update", "read", "scan"):
        count(name)
    monkeypatch.setattr(GroupedStore, "commit_at_once", GroupedStore.commit_unchecked)
    return counted


def call(number: int) -> Call:
    """Return a request of the one session."""
    return Call(flow="desk", action="take", inputs=b'{"number":%d}' % number, session="s", transport="local")


async def until_begun(number: int) -> None:
    """Wait until so many have begun."""
    while len(begun) < number:  # noqa: ASYNC110 -- an action tells nobody
        await asyncio.sleep(0.001)


async def test_a_turn_is_one_commit(url: str, calls: Counter[str]) -> None:
    """Leaving, the next one's turn, and what is written of both are one; nothing is read."""
    async with sf.Dispatcher(url, [DESK], arbiter="shared") as desk:
        first = await desk.dispatch(call(0))
        await until_begun(1)
        rest = [await desk.dispatch(call(number)) for number in range(1, 31)]
        calls.clear()
        gates[-1].set()
        await first.packed()
        assert [int(await each.packed()) for each in rest] == begun[1:] == list(range(1, 31))
    assert calls["update"] <= 34  # one of them for the last that leaves, and a few of the server's own
    assert calls["read"] + calls["scan"] <= 25  # of its worker, which looks now and then


async def test_a_caller_that_only_waits_is_not_told_why(url: str, calls: Counter[str]) -> None:
    """To find that out would be three reads."""
    async with sf.Dispatcher(url, [DESK], arbiter="shared") as desk:
        handles = [await desk.dispatch(call(0))]
        await until_begun(1)
        for here in (True, False):
            calls.clear()
            handles.append(await desk.dispatch(call(1), here=here))
            assert (calls["read"] + calls["scan"] >= 3) != here
        gates[-1].set()
        assert [int(await each.packed()) for each in handles] == [0, 1, 1]
    assert [each.explanation is None for each in handles] == [True, True, False]


async def written(desk: sf.Dispatcher, handle: Handle) -> tuple[str, bool]:
    """Return what the store says of a request: its status, and whether it has begun."""
    page = await desk.engine.space.scan(*handle.keys.record.within(), limit=2)
    record = REQUESTS.decode(page.records[handle.keys.record].value)
    return record.status, record.started_at > 0


async def test_a_request_that_has_its_turn_is_written_down_as_running(url: str) -> None:
    """Its record says so together with the turn, whoever passes it on: this process, or another one."""
    async with sf.Dispatcher(url, [DESK], arbiter="shared") as one, sf.Dispatcher(url, [DESK], arbiter="shared") as two:
        handles = [await each.dispatch(call(number)) for number, each in enumerate((one, one, two, one))]
        for number, handle in enumerate(handles):
            await until_begun(number + 1)
            assert await written(one, handle) == ("running", True)
            assert [await written(one, each) for each in handles[number + 1 :]] == [("waiting", False)] * (3 - number)
            gates.append(asyncio.Event())
            gates[-2].set()
            await handle.packed()
    assert begun == [0, 1, 2, 3]
