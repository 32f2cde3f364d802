"""A COMMIT that fails may have been written all the same: the store finds out, and tells the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import apsw
import pytest

from standfast.errors import OutcomeUnknownError, StoreUnavailableError
from standfast.keys import RecordKey
from standfast.stores import Commit, Put
from standfast.stores.backend import CommitRider, RiderBatch
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from standfast.stores import GroupedStore
    from standfast.stores.sqlite.database import Database

KEY = RecordKey("test", "key")


@final
class Unlucky:
    """A connection whose next COMMITs fail: each ``"before"`` or ``"after"`` it was done."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.failures: list[str] = []

    def execute(self, statement: str, bindings: Sequence[Any] | None = None) -> Any:
        """Run a statement, or fail."""
        moment = self.failures.pop(0) if statement == "COMMIT" and self.failures else ""
        if moment == "before":
            raise apsw.IOError("the disk failed before the commit")
        answer = self._connection.execute(statement, bindings)
        if moment == "after":
            raise apsw.IOError("the disk failed after the commit")
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[GroupedStore]:
    """A store whose disk can be made to fail."""
    opened = await open_store(f"sqlite:///{tmp_path}/store.db?commits=loop")
    lucky = database_of(opened)._writer
    yield opened
    database_of(opened)._writer = lucky
    await opened.aclose()


def database_of(store: GroupedStore) -> Database:
    """Return the blocking half of a store."""
    database: Database = store.backend._database  # type: ignore[attr-defined]  # the test looks behind the protocol
    return database


def make_unlucky(store: GroupedStore, *failures: str) -> Database:
    """Let the next COMMITs of a store fail."""
    database = database_of(store)
    unlucky = Unlucky(database._writer)
    unlucky.failures = list(failures)
    database._writer = unlucky
    return database


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_commit_is_written_once_whenever_the_disk_failed(store: GroupedStore, moment: str) -> None:
    """The caller never hears of a failure that could be settled: the commit is there, once."""
    make_unlucky(store, moment)

    verdict = await store.commit(Put(KEY, b"value"))

    assert isinstance(verdict, Commit)
    found = (await store.read(KEY)).records[KEY]
    assert (found.value, found.version) == (b"value", verdict.versions[KEY])


@pytest.mark.parametrize("settling", ["before", "after"])
async def test_an_attempt_that_was_not_written_is_settled_so_however_often_it_takes(
    store: GroupedStore, settling: str
) -> None:
    """When closing an attempt fails as well, whether it was written or not, the answer stays: never written."""
    database = make_unlucky(store, "before", settling)
    batch = RiderBatch("handle.1", (CommitRider((Put(KEY, b"lost"),)),))
    with pytest.raises(OutcomeUnknownError):
        database.apply(batch)
    with pytest.raises(StoreUnavailableError):
        database.settle("handle.1")

    assert database.settle("handle.1") is None
    assert database.settle("handle.1") is None
    assert not (await store.read(KEY)).records


async def test_an_attempt_that_was_written_is_settled_so(store: GroupedStore) -> None:
    """When the commit was written before the failure, settling returns its verdict, again and again."""
    database = make_unlucky(store, "after")
    batch = RiderBatch("handle.1", (CommitRider((Put(KEY, b"kept"),)),))
    with pytest.raises(OutcomeUnknownError):
        database.apply(batch)

    for _ in range(2):
        applied = database.settle("handle.1")
        assert applied is not None
        assert isinstance(applied.outcomes[0], Commit)
    assert (await store.read(KEY)).records[KEY].value == b"kept"


async def test_a_disk_that_fails_for_long_leaves_an_attempt_to_settle_later(store: GroupedStore) -> None:
    """A caller that is told of an unknown outcome can settle it once the disk works again."""
    database = make_unlucky(store, "after", *["before"] * 5)
    with pytest.raises(OutcomeUnknownError) as unknown:
        await store.commit(Put(KEY, b"kept"))
    assert isinstance(database._writer, Unlucky)
    assert not database._writer.failures

    verdict = await store.settle(unknown.value.attempt)

    assert isinstance(verdict, Commit)
    assert (await store.read(KEY)).version(KEY) == verdict.versions[KEY]
