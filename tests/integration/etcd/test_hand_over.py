"""A lock that is handed over on etcd: by one transaction, for the one that holds has seen who waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import standfast as sf
from standfast.locks import registry
from standfast.stores import Commit, Put
from standfast.stores.etcd.gateway import TXN, EtcdConnection
from standfast.testing.conformance.workflows.ground import eventually

pytestmark = pytest.mark.services


async def test_a_lock_is_handed_over_by_one_transaction(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No transaction is refused on the way: the first that waits has told the holder, which has looked."""
    written: list[EtcdConnection] = []
    looked: list[EtcdConnection] = []
    ask = EtcdConnection.ask

    async def noted(self: EtcdConnection, kind: Any, request: Any, **options: Any) -> Any:
        answer = await ask(self, kind, request, **options)
        if kind is TXN and options.get("writes"):
            written.append(self)
        elif kind is TXN and "ticket" in repr(request):
            looked.append(self)
        return answer

    async def has_looked() -> bool:
        return holder in looked

    async with sf.open(url, namespace="h") as space, sf.open(url, namespace="h") as other:
        for each in (other, space):  # connections and watches are there by then
            await enter(each)
        monkeypatch.setattr(EtcdConnection, "ask", noted)
        for pause in ("FIRST_POLL", "POLL_EVERY", "LATEST_POLL"):  # a process looks only if it is told to
            monkeypatch.setattr(registry, pause, 60.0)
        async with space.mutex("a").hold():
            holder = written[-1]
            looked.clear()
            waiting = asyncio.create_task(enter(other))
            await eventually(has_looked)
            written.clear()
        await asyncio.wait_for(waiting, 10)
        assert written.count(holder) == 1


async def test_the_one_that_is_next_asks_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notice that wakes it shows the grant, at the revision that is its fence."""
    asked: list[EtcdConnection] = []
    looked: list[EtcdConnection] = []
    ask = EtcdConnection.ask

    async def noted(self: EtcdConnection, kind: Any, request: Any, **options: Any) -> Any:
        if kind is TXN:
            asked.append(self)
        answer = await ask(self, kind, request, **options)
        if kind is TXN and not options.get("writes") and "ticket" in repr(request):
            looked.append(self)
        return answer

    async def has_looked() -> bool:
        return holder in looked

    async with sf.open(url, namespace="h") as space, sf.open(url, namespace="h") as other:
        for each in (other, space):  # connections and watches are there by then
            await enter(each)
        for pause in ("FIRST_POLL_AFAR", "POLL_EVERY", "LATEST_POLL"):  # a process looks only if it is told to
            monkeypatch.setattr(registry, pause, 60.0)
        monkeypatch.setattr(EtcdConnection, "ask", noted)
        async with space.mutex("a").hold() as before:
            holder = asked[-1]
            looked.clear()
            holding = other.mutex("a").hold()
            waiting = asyncio.create_task(holding.__aenter__())
            await eventually(has_looked)
            asked.clear()
        hold = await asyncio.wait_for(waiting, 10)
        assert [each for each in asked if each is not holder] == []
        assert hold.fence > before.fence
        asked.clear()
        written = await other.commit(Put(other.key("mine"), b""), hold.guard)
        assert isinstance(written, Commit)
        assert (
            len([each for each in asked if each is not holder]) == 1
        )  # what was shown is known, and nothing is lifted
        await holding.__aexit__(None, None, None)


async def enter(space: sf.Space) -> None:
    """Have the lock once."""
    async with space.mutex("a").hold():
        pass
