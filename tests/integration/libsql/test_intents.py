"""What the server judges by itself: guards, windows, attempts and versions, in the step that writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import Instant
from standfast.errors import AttemptClosedError, StoreError
from standfast.stores.address import Address
from standfast.stores.libsql.connection import LibsqlConnection, read_options
from standfast.stores.libsql.server import LibsqlServer, prepare
from standfast.stores.remote.server import Intent, Landed, Row, WriteRefused, Written

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from standfast.keys import RecordKey

    MakeKey = Callable[..., RecordKey]

pytestmark = pytest.mark.services

PAST, FUTURE = Instant(1), Instant(4_000_000_000_000_000)


@pytest.fixture
async def handle(url: str) -> AsyncIterator[LibsqlServer]:
    """A handle without the common code above it."""
    options = read_options(Address(url))
    caller = LibsqlConnection(options)
    await prepare(caller, options)
    yield LibsqlServer(caller, options, durable=False)
    await caller.aclose()


def putting(key: RecordKey, number: int = 1, expected: int = 0, **more: Any) -> Intent:
    """Return an intent that puts one record."""
    return Intent("h", number, {key: expected}, (Row(key, b"value", 0),), (), 1, **more)


async def written(handle: LibsqlServer, intent: Intent) -> Written:
    """Write an intent, and insist that it was."""
    answer = await handle.write(intent)
    assert isinstance(answer, Written), answer
    return answer


async def refused(handle: LibsqlServer, intent: Intent) -> WriteRefused:
    """Write an intent, and insist that it was refused, with nothing written."""
    before = await handle.read(list(intent.guards))
    answer = await handle.write(intent)
    assert isinstance(answer, WriteRefused), answer
    assert (await handle.read(list(intent.guards))).records == before.records
    return answer


@pytest.mark.parametrize("window", [{"before": PAST}, {"after": FUTURE}])
async def test_a_window_is_judged_by_the_time_of_the_server(
    handle: LibsqlServer, key: MakeKey, window: dict[str, Instant]
) -> None:
    """Before it opens and after it has closed nothing is written, and no key is to blame."""
    assert (await refused(handle, putting(key("a"), **window))).current == {}
    await written(handle, putting(key("a"), before=FUTURE, after=PAST))


async def test_every_key_that_is_not_as_expected_is_shown(handle: LibsqlServer, key: MakeKey) -> None:
    """With its record, or as absent; and not the one whose guard held."""
    first = await written(handle, putting(key("a")))
    guards = {key("a"): 7, key("b"): 8, key("c"): 0}

    answer = await refused(handle, Intent("h", 2, guards, (Row(key("c"), b"", 0),), (), 1))

    assert set(answer.current) == {key("a"), key("b")}
    assert answer.current[key("b")] is None
    record = answer.current[key("a")]
    assert record is not None
    assert record.version == first.versions[0]


async def test_an_attempt_is_written_once(handle: LibsqlServer, key: MakeKey) -> None:
    """If it arrives again, it is refused, whatever has become of its guards."""
    await written(handle, putting(key("a")))
    with pytest.raises(AttemptClosedError):
        await handle.write(putting(key("b")))
    assert (await handle.read([key("b")])).records == {}


async def test_an_attempt_that_was_closed_is_never_written(handle: LibsqlServer, key: MakeKey) -> None:
    """Closing it tells that it was not, also when asked again."""
    assert await handle.close_attempt("h", 1, b"") is None
    assert await handle.close_attempt("h", 1, b"") is None
    with pytest.raises(AttemptClosedError):
        await handle.write(putting(key("a")))


async def test_closing_an_attempt_that_landed_tells_its_versions(handle: LibsqlServer, key: MakeKey) -> None:
    """Time and versions are those of the write; an earlier attempt cannot be asked for any more."""
    answer = await written(handle, putting(key("a"), number=2))
    assert await handle.close_attempt("h", 2, b"") == Landed(answer.at, answer.versions)
    with pytest.raises(StoreError, match="not the last"):
        await handle.close_attempt("h", 1, b"")


async def test_reserved_versions_are_taken_as_they_are(handle: LibsqlServer, key: MakeKey) -> None:
    """A record gets the one that it names, and closing the attempt tells them."""
    exact = await handle.reserve(3, b"")
    rows = (Row(key("a"), b"", 1),)
    answer = await written(handle, Intent("h", 1, {key("a"): 0}, rows, (), 1, exact))

    assert answer.versions == exact
    assert (await handle.read([key("a")])).version(key("a")) == exact[1]
    assert await handle.close_attempt("h", 1, b"") == Landed(answer.at, exact)


async def test_reserved_versions_create_nothing_once_others_took_versions(handle: LibsqlServer, key: MakeKey) -> None:
    """The key may have come and gone meanwhile with a higher one."""
    exact = await handle.reserve(1, b"")
    await written(handle, putting(key("other")))

    answer = await refused(handle, Intent("h", 2, {key("a"): 0}, (Row(key("a"), b"", 0),), (), 1, exact))

    assert answer.stale


async def test_the_mark_moves_with_every_write(handle: LibsqlServer, key: MakeKey) -> None:
    """With one that puts, one that takes reserved versions, and one that only deletes."""
    marks = [await handle.mark()]
    version = (await written(handle, putting(key("a")))).versions[0]
    marks.append(await handle.mark())
    exact = await handle.reserve(1, b"")
    marks.append(await handle.mark())
    await written(handle, putting(key("a"), 2, version, exact=exact))
    marks.append(await handle.mark())
    await written(handle, Intent("h", 3, {key("a"): exact[0]}, (), (key("a"),), 0))
    marks.append(await handle.mark())
    assert len(set(marks)) == len(marks)


async def test_versions_are_not_below_the_time_of_the_server(handle: LibsqlServer, key: MakeKey) -> None:
    """So that no counter that was set back gives one out again; and they stay exact in every language."""
    answer = await written(handle, putting(key("a")))
    assert answer.at <= answer.versions[0] < 2**53
