"""Riders that are sent without a task: whatever the answer is, each gets its own outcome, once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, final

import pytest

from standfast.errors import OutcomeUnknownError, StoreUnavailableError
from standfast.keys import RecordKey
from standfast.stores import Commit, Put, verdict_of
from standfast.stores.backend import Applied, Deferred
from standfast.stores.group_commit import USED_TO_BE_ALONE, GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.stores.backend import RiderBatch

K = RecordKey("ns", "k")


@final
class _Sending:
    """A backend in memory that is sent to: it answers when the test says so."""

    def __init__(self) -> None:
        self.inner: Final = MemoryBackend(MemoryRecords())
        self.sent: list[tuple[RiderBatch, asyncio.Future[Any]]] = []
        self.says: Callable[[RiderBatch], Applied | Exception | None] = self.applied
        self.by_task = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def apply_now(self, _: RiderBatch) -> Applied | None:
        return None

    async def apply(self, batch: RiderBatch) -> Applied:
        self.by_task += 1
        return self.applied(batch)

    def applied(self, batch: RiderBatch) -> Applied:
        applied = self.inner.apply_now(batch)
        assert applied is not None
        return applied

    def apply_soon(
        self, batch: RiderBatch, arrive: Callable[[Applied | Exception | None], None]
    ) -> asyncio.Future[Any] | None:
        sent = asyncio.get_running_loop().create_future()

        def take(_: object) -> None:
            try:
                arrive(self.says(batch))
            except Exception as error:
                arrive(error)
                raise

        sent.add_done_callback(take)
        self.sent.append((batch, sent))
        return sent

    async def until_sent(self) -> None:
        """Wait until something is under way."""
        for _ in range(10):
            await asyncio.sleep(0)
            if self.sent:
                return

    def answer(self) -> None:
        """Answer what was sent first; the driver's own future may have failed."""
        _, sent = self.sent.pop(0)
        sent.set_exception(OSError("of the driver"))
        sent.exception()


@pytest.fixture
async def backend() -> _Sending:
    """A backend that is sent to."""
    return _Sending()


@pytest.fixture
async def store(backend: _Sending) -> GroupedStore:
    """A store whose riders were alone for a while."""
    store = GroupedStore(backend)
    for n in range(USED_TO_BE_ALONE):
        committing = asyncio.ensure_future(store.commit(Put(K.child(str(n)), b"")))
        await backend.until_sent()
        backend.answer()
        await committing
    return store


async def _begun(store: GroupedStore, backend: _Sending) -> asyncio.Task[Any]:
    committing = asyncio.ensure_future(store.commit(Put(K, b"")))
    await asyncio.sleep(0)
    assert len(backend.sent) == 1
    return committing


async def test_a_lone_rider_is_resumed_in_the_turn_in_which_its_answer_is_there(
    store: GroupedStore, backend: _Sending
) -> None:
    """It has its outcome by then, and no task was made."""
    committing = await _begun(store, backend)
    backend.answer()
    await asyncio.sleep(0)

    assert committing.done()
    assert isinstance(committing.result(), Commit)
    assert backend.by_task == 0


async def test_what_was_not_written_is_applied_by_a_task(store: GroupedStore, backend: _Sending) -> None:
    """The rider waits on for it."""
    backend.says = lambda _: None
    committing = await _begun(store, backend)
    backend.answer()

    assert isinstance(await committing, Commit)
    assert backend.by_task == 1


@pytest.mark.parametrize("lands", [True, False])
async def test_an_unknown_outcome_is_settled(store: GroupedStore, backend: _Sending, *, lands: bool) -> None:
    """If it never landed it is applied again."""

    def lose(batch: RiderBatch) -> OutcomeUnknownError:
        if lands:
            backend.applied(batch)
        return OutcomeUnknownError("sending://", "lost")

    backend.says = lose
    committing = await _begun(store, backend)
    backend.answer()

    assert isinstance(await committing, Commit)
    assert backend.by_task == (0 if lands else 1)


async def test_an_error_is_raised_in_the_caller(store: GroupedStore, backend: _Sending) -> None:
    """And the next one is sent as ever."""
    backend.says = lambda _: StoreUnavailableError("sending://", "not now")
    committing = await _begun(store, backend)
    backend.answer()
    with pytest.raises(StoreUnavailableError, match="not now"):
        await committing

    backend.says = backend.applied
    committing = await _begun(store, backend)
    backend.answer()
    assert isinstance(await committing, Commit)


async def test_a_rider_that_is_put_off_rides_again(store: GroupedStore, backend: _Sending) -> None:
    """It is sent once more, and answered then."""
    backend.says = lambda _: Applied((Deferred(),))
    committing = await _begun(store, backend)
    backend.answer()
    await backend.until_sent()
    backend.says = backend.applied
    backend.answer()

    assert isinstance(await committing, Commit)


async def test_a_cancelled_rider_has_its_verdict_when_the_answer_is_there(
    store: GroupedStore, backend: _Sending
) -> None:
    """The driver's future is not cancelled with it, however often it is cancelled."""
    committing = await _begun(store, backend)
    for _ in range(2):
        committing.cancel()
        await asyncio.sleep(0)
    assert not committing.done()
    assert not backend.sent[0][1].cancelled()
    backend.answer()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await committing

    assert isinstance(verdict_of(cancelled.value), Commit)


async def test_a_cancelled_rider_whose_outcome_is_unknown_waits_until_it_is_settled(
    store: GroupedStore, backend: _Sending
) -> None:
    """Its cancellation carries what became of it."""
    backend.says = lambda _: OutcomeUnknownError("sending://", "lost")
    committing = await _begun(store, backend)
    committing.cancel()
    backend.answer()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await committing

    assert isinstance(verdict_of(cancelled.value), Commit)
    assert backend.by_task == 1


async def test_riders_that_come_meanwhile_share_the_next_transaction(store: GroupedStore, backend: _Sending) -> None:
    """They leave when the one under way is answered."""
    first = await _begun(store, backend)
    others = [asyncio.ensure_future(store.commit(Put(K.child("o", str(n)), b""))) for n in range(3)]
    await asyncio.sleep(0)
    assert len(backend.sent) == 1
    backend.answer()
    await first
    await backend.until_sent()

    assert len(backend.sent[0][0].riders) == 3
    backend.answer()
    assert all(isinstance(each, Commit) for each in await asyncio.gather(*others))


async def test_closing_waits_for_what_was_sent(store: GroupedStore, backend: _Sending) -> None:
    """There is no task to wait for."""
    committing = await _begun(store, backend)
    closing = asyncio.ensure_future(store.aclose())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not closing.done()
    backend.answer()
    await closing

    assert isinstance(await committing, Commit)


async def test_a_rider_is_answered_once(
    store: GroupedStore, backend: _Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails after that is raised in the loop, and the next one is sent as ever."""
    committing = await _begun(store, backend)

    def fail(*_: object) -> None:
        raise OSError("in a subscriber")

    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["exception"]))
    monkeypatch.setattr(backend, "notify", fail, raising=False)
    backend.answer()
    assert isinstance(await committing, Commit)
    monkeypatch.undo()

    committing = asyncio.ensure_future(store.commit(Put(K.child("next"), b"")))
    await backend.until_sent()
    backend.answer()
    assert isinstance(await committing, Commit)
    assert [str(each) for each in raised] == ["in a subscriber"]
