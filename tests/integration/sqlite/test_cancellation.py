"""Cancelled callers: withdrawn if it was not too late, told the verdict if it was, and never in doubt."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from typing import TYPE_CHECKING, final

import pytest

from standfast.stores import Commit, Decided, Decision, Put, verdict_of
from tests.integration.sqlite.programs.dialogue import key
from tests.sizes import rounds

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.stores import Snapshot, Store
    from tests.integration.sqlite.conftest import Open

TASKS = 60


@final
class Gate:
    """A decision that waits inside the transaction until it is let go."""

    def __init__(self, name: RecordKey) -> None:
        self._name = name
        self.entered = threading.Event()
        self.left = threading.Event()

    def decide(self, snapshot: Snapshot) -> Decision[str]:
        """Wait, then create the record."""
        self.entered.set()
        assert self.left.wait(20)
        return Decision("decided", (Put(self._name, b"", expected=snapshot.version(self._name)),))

    async def update(self, store: Store) -> Decided[str]:
        """Run the decision as an update."""
        return await store.update((self._name,), self.decide)


async def test_a_commit_that_was_not_taken_is_withdrawn(url: str, opened: Open) -> None:
    """Cancelled while another transaction is under way, a waiting commit never happens."""
    store = await opened(f"{url}?commits=thread")
    gate = Gate(key("gate"))
    first = asyncio.create_task(gate.update(store))
    await asyncio.to_thread(gate.entered.wait)
    waiting = asyncio.create_task(store.commit(Put(key("waiting"), b"")))
    await asyncio.sleep(0)

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await waiting
    gate.left.set()
    await first

    assert verdict_of(cancelled.value) is None
    await store.commit(Put(key("later"), b""))
    assert not (await store.read(key("waiting"))).records


@pytest.mark.parametrize("times", [1, 3])
async def test_a_cancellation_in_the_midst_of_a_transaction_brings_the_verdict(
    url: str, opened: Open, times: int
) -> None:
    """Cancelled when the writer's thread has begun, a caller is told what was written, and only then."""
    store = await opened(f"{url}?commits=thread")
    gate = Gate(key("gate"))
    task = asyncio.create_task(gate.update(store))
    await asyncio.to_thread(gate.entered.wait)

    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    gate.left.set()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await task

    verdict = verdict_of(cancelled.value)
    assert isinstance(verdict, Decided)
    assert (await store.read(key("gate"))).version(key("gate")) == verdict.versions[key("gate")]


async def test_closing_waits_for_a_transaction_whose_caller_was_cancelled(url: str, opened: Open) -> None:
    """A store closes only after what was under way is durable."""
    store = await opened(f"{url}?commits=thread")
    gate = Gate(key("gate"))
    task = asyncio.create_task(gate.update(store))
    await asyncio.to_thread(gate.entered.wait)
    task.cancel()

    closing = asyncio.create_task(store.aclose())
    await asyncio.sleep(0)
    assert not closing.done()
    gate.left.set()
    await closing

    await asyncio.wait({task})
    assert (await (await opened(url)).read(key("gate"))).records


async def test_a_transaction_that_has_begun_is_never_called_busy(url: str, opened: Open) -> None:
    """However long a transaction takes, its caller is told what became of it, and not that it never began."""
    store = await opened(f"{url}?commits=thread&busy=50ms")
    gate = Gate(key("gate"))
    task = asyncio.create_task(gate.update(store))
    await asyncio.to_thread(gate.entered.wait)

    done, _ = await asyncio.wait({task}, timeout=0.3)
    assert not done
    gate.left.set()

    assert (await task).answer == "decided"
    assert (await store.read(key("gate"))).records


async def commit_or_be_cancelled(store: Store, name: RecordKey, delay: int, outcomes: Counter[str]) -> int:
    """Create a record a few ticks later; return the version it got, or 0 if nothing was written."""
    for _ in range(delay):
        await asyncio.sleep(0)
    try:
        verdict: object = await store.commit(Put(name, b""))
    except asyncio.CancelledError as cancelled:
        verdict = verdict_of(cancelled)
        outcomes["withdrawn" if verdict is None else "too late"] += 1
    assert verdict is None or isinstance(verdict, Commit)
    return verdict.versions[name] if verdict else 0


@pytest.mark.heavy
@pytest.mark.parametrize("mode", ["thread", "auto"])
async def test_a_storm_of_cancellations_leaves_nobody_in_doubt(url: str, opened: Open, mode: str) -> None:
    """Whoever is cancelled at any moment knows whether the commit was written, and the store agrees."""
    store = await opened(f"{url}?commits={mode}")
    outcomes: Counter[str] = Counter()
    for seed in rounds(f"storms of cancellations ({mode})", full=500, quick=10):
        chooser = random.Random(seed)
        names = [key("storm", seed, n) for n in range(TASKS)]
        commits = [commit_or_be_cancelled(store, name, chooser.randrange(20), outcomes) for name in names]
        tasks = [asyncio.create_task(commit) for commit in commits]
        for task in chooser.sample(tasks, TASKS // 2):
            for _ in range(chooser.randrange(4)):
                await asyncio.sleep(0)
            task.cancel()
        told = await asyncio.gather(*tasks, return_exceptions=True)

        found = await store.scan(*key("storm", seed).within(), limit=TASKS)
        for name, version in zip(names, told, strict=True):
            is_unbegun = isinstance(version, asyncio.CancelledError)
            assert found.version(name) == (0 if is_unbegun else version)
    print(outcomes)
    assert outcomes["withdrawn"]
    assert outcomes["too late"]
