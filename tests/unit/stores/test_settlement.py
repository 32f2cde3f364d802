"""A commit whose answer was lost is settled: it landed, or it never will."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from standfast.errors import AttemptClosedError, OutcomeUnknownError, StoreUnavailableError
from standfast.keys import RecordKey
from standfast.stores import Commit, Put
from standfast.stores.group_commit import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.testing import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from standfast.stores.backend import Applied, RiderBatch, Subscriber
    from standfast.stores.protocol import Capabilities, Snapshot, Wake

K = RecordKey("ns", "k")


class _Unsteady:
    """A backend in memory whose answers get lost as the test says."""

    def __init__(self, *, lands: bool, now: bool = False, deaf: int = 0, silent: float = 0.0) -> None:
        self.inner: Final = MemoryBackend(MemoryRecords())
        self.lands, self.now, self.deaf, self.silent = lands, now, deaf, silent
        self.lost: list[RiderBatch] = []

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    @property
    def name(self) -> str:
        return "unsteady://"

    def apply_now(self, batch: RiderBatch) -> Applied | None:
        return self._lose_once(batch) if self.now else None

    async def apply(self, batch: RiderBatch) -> Applied:
        await asyncio.sleep(self.silent)
        return self._lose_once(batch)

    def _lose_once(self, batch: RiderBatch) -> Applied:
        if self.lost:
            applied = self.inner.apply_now(batch)
            assert applied is not None
            return applied
        self.lost.append(batch)
        if self.lands:
            self.inner.apply_now(batch)
        raise OutcomeUnknownError(self.name, "the answer was lost")

    async def settle(self, attempt: str) -> Applied | None:
        if self.deaf:
            self.deaf -= 1
            await asyncio.sleep(self.silent)
            raise StoreUnavailableError(self.name, "no answer")
        return await self.inner.settle(attempt)

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        return await self.inner.read(keys)

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        return await self.inner.scan(start, end, limit=limit, reverse=reverse)

    def subscribe(self, prefixes: tuple[RecordKey, ...], subscriber: Subscriber) -> Callable[[], None]:
        return self.inner.subscribe(prefixes, subscriber)

    def notify(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:
        self.inner.notify(changed, wakes)

    async def another(self) -> MemoryBackend:
        return await self.inner.another()

    def liveness_token(self) -> str:
        return self.inner.liveness_token()

    def is_dead(self, token: str) -> bool:
        return self.inner.is_dead(token)

    async def aclose(self) -> None:
        await self.inner.aclose()


@pytest.mark.parametrize("now", [False, True], ids=["off the loop", "on the loop"])
@pytest.mark.parametrize("lands", [False, True], ids=["lost on the way", "landed"])
async def test_a_lost_answer_is_settled_and_the_commit_happens_once(lands: bool, now: bool) -> None:  # noqa: FBT001 -- a parametrized test
    """Whether the transaction landed or not, the caller gets one true verdict and the record is written once."""
    backend = _Unsteady(lands=lands, now=now)
    store = GroupedStore(backend)

    verdict = await store.commit(Put(K, b"v"))

    assert isinstance(verdict, Commit)
    assert (await store.read(K)).records[K].version == verdict.versions[K]
    await store.aclose()


async def test_a_transaction_that_was_closed_can_never_land_later() -> None:
    """After its attempt was settled as lost, the delayed transaction is refused."""
    backend = _Unsteady(lands=False)
    store = GroupedStore(backend)
    await store.commit(Put(K, b"v"))

    with pytest.raises(AttemptClosedError):
        backend.inner.apply_now(backend.lost[0])
    await store.aclose()


async def test_an_outcome_that_cannot_be_found_out_is_an_error_that_can_be_settled_later() -> None:
    """While the store is deaf the caller is told so, with the attempt to settle when it answers again."""
    backend = _Unsteady(lands=True, deaf=5)
    store = GroupedStore(backend)

    with pytest.raises(OutcomeUnknownError) as caught:
        await store.commit(Put(K, b"v"))
    verdict = await store.settle(caught.value.attempt)

    assert isinstance(verdict, Commit)
    assert await store.settle(caught.value.attempt) == verdict
    await store.aclose()


@pytest.mark.parametrize(("silent", "most"), [(0.0, 1.3), (1.0, 7.0), (5.0, 16.0)])
def test_a_server_that_never_answers_is_not_asked_for_ever(silent: float, most: float) -> None:
    """The caller hears of it after two or three times what one answer may take."""

    async def take() -> float:
        store = GroupedStore(_Unsteady(lands=True, deaf=1_000, silent=silent))
        with pytest.raises(OutcomeUnknownError):
            await store.commit(Put(K, b"v"))
        return asyncio.get_running_loop().time()

    assert simulate(1, take) <= most


async def test_nothing_new_is_written_before_an_open_attempt_is_settled() -> None:
    """The next commit first closes what the last one left open, so nothing can land behind its back."""
    backend = _Unsteady(lands=False, deaf=5)
    store = GroupedStore(backend)
    with pytest.raises(OutcomeUnknownError):
        await store.commit(Put(K, b"first"))

    await store.commit(Put(K, b"second"))

    with pytest.raises(AttemptClosedError):
        backend.inner.apply_now(backend.lost[0])
    assert (await store.read(K)).records[K].value == b"second"
    await store.aclose()


async def test_riders_of_a_lost_batch_each_get_their_own_verdict() -> None:
    """Settling a batch settles all of its riders, winners and losers."""
    store = GroupedStore(_Unsteady(lands=True))

    answers = await asyncio.gather(*(store.commit(Put(K, bytes([n]))) for n in range(5)))

    assert [isinstance(answer, Commit) for answer in answers] == [True, False, False, False, False]
    await store.aclose()
