"""What becomes of those who ride together when one of them breaks off."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import OutcomeUnknownError
from holdfast.keys import RecordKey
from holdfast.stores import Commit, Decision, GroupedStore, Put, Snapshot
from holdfast.stores.group import MAX_BYTES
from holdfast.stores.memory import MemoryBackend, open_memory

if TYPE_CHECKING:
    from holdfast.stores.backend import Applied, Batch


async def test_large_commits_do_not_all_share_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for more than a few megabytes to be written, and none is left behind."""
    sizes: list[int] = []
    apply = MemoryBackend.apply_now

    def note(backend: MemoryBackend, batch: Batch) -> Applied | None:
        sizes.append(len(batch.riders))
        return apply(backend, batch)

    monkeypatch.setattr(MemoryBackend, "apply_now", note)
    store, value = open_memory(), bytes(MAX_BYTES // 20)
    verdicts = await asyncio.gather(*(store.commit(Put(RecordKey("ns", str(n)), value)) for n in range(50)))
    await store.aclose()

    assert sizes == [20, 20, 10]
    assert all(isinstance(verdict, Commit) for verdict in verdicts)


class Interrupting:
    """An update whose decision is interrupted, as by Ctrl-C, and a commit beside it."""

    store: GroupedStore
    riders: list[asyncio.Task[object]]

    async def run(self) -> None:
        """Let both ride together."""
        self.store = open_memory()
        key = RecordKey("ns", "a")
        self.riders = [
            asyncio.create_task(self.store.update([key], self.decide)),
            asyncio.create_task(self.store.commit(Put(RecordKey("ns", "b"), b""))),
        ]
        await asyncio.wait(self.riders)

    def decide(self, _: Snapshot) -> Decision[None]:
        """Be interrupted."""
        raise KeyboardInterrupt

    async def outcomes(self) -> list[object]:
        """Return what the riders got."""
        return await asyncio.gather(*self.riders, return_exceptions=True)


@pytest.fixture
def interrupted() -> tuple[asyncio.Runner, Interrupting]:
    """A loop that was interrupted in the midst of a transaction."""
    runner, interrupting = asyncio.Runner(), Interrupting()
    with pytest.raises(KeyboardInterrupt):
        runner.run(interrupting.run())
    return runner, interrupting


def test_an_interruption_leaves_nobody_waiting(interrupted: tuple[asyncio.Runner, Interrupting]) -> None:
    """All riders of the transaction are told that it is not known what became of it."""
    with interrupted[0] as runner:
        outcomes = runner.run(interrupted[1].outcomes())

    assert [type(each) for each in outcomes] == [OutcomeUnknownError, OutcomeUnknownError]


def test_a_store_goes_on_after_an_interruption(interrupted: tuple[asyncio.Runner, Interrupting]) -> None:
    """The next commit is written as if nothing had happened."""
    with interrupted[0] as runner:
        runner.run(interrupted[1].outcomes())
        verdict = runner.run(interrupted[1].store.commit(Put(RecordKey("ns", "c"), b"")))

    assert isinstance(verdict, Commit)
