"""A space names every key, and none outside of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    InvalidChangeError,
    StoreClosedError,
    UnsuitableStoreError,
)
from standfast.space import Space
from standfast.stores import Commit, Decision, Put, Wake
from standfast.stores.url import open_store
from standfast.testing import NonAtomicStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

REPO = sf.KeyFamily("space-test-repo")


@pytest.fixture
async def spaces() -> AsyncIterator[tuple[Space, Space]]:
    """Two tenants on one store."""
    store = await open_store("memory://")
    yield Space(store, tenant="ours"), Space(store, tenant="theirs")
    await store.aclose()


async def test_a_space_reads_what_it_committed() -> None:
    """A record put through a space is found through it."""
    async with sf.open("memory://", namespace="prod") as space:
        key = space.key("note", "1")
        await space.commit(Put(key, b"hello"))

        assert (await space.read(key)).records[key].value == b"hello"


async def test_awaiting_the_opening_gives_a_space_that_the_caller_closes() -> None:
    """``await sf.open(...)`` works without ``async with``; a closed space says so."""
    space = await sf.open("memory://")
    await space.aclose()

    with pytest.raises(StoreClosedError, match="open a new one"):
        await space.read(space.key("note"))


def test_a_space_that_was_not_opened_says_how() -> None:
    """Who forgets ``async with`` or ``await`` is told so, and ``hasattr`` answers."""
    opening: Any = sf.open("memory://")
    with pytest.raises(AttributeError, match=r"not open yet.*'mutex'.*async with sf.open"):
        opening.mutex("account-42")
    assert not hasattr(opening, "mutex")


@pytest.mark.parametrize("operation", ["read", "commit", "update", "scan", "watch", "wake"])
async def test_another_tenants_key_is_refused_everywhere(spaces: tuple[Space, Space], operation: str) -> None:
    """No operation of a space takes a key of another tenant."""
    ours, theirs = spaces
    key, own = theirs.key("note", "1"), ours.key("note", "1")

    asked: dict[str, Callable[[], Awaitable[object]]] = {
        "read": lambda: ours.read(key),
        "commit": lambda: ours.commit(Put(key, b"")),
        "update": lambda: ours.update([key], lambda _: Decision(None)),
        "scan": lambda: ours.scan(*key.within(), limit=1),
        "watch": lambda: ours.watch(key).__aenter__(),
        "wake": lambda: ours.commit(Put(own, b""), wake=[Wake(key)]),
    }

    with pytest.raises(InvalidChangeError, match="does not lie in default/ours"):
        await asked[operation]()


async def test_what_one_tenant_writes_another_does_not_see(spaces: tuple[Space, Space]) -> None:
    """The same name in two tenants is two records."""
    ours, theirs = spaces
    await ours.commit(Put(ours.key("note", "1"), b"secret"))

    assert (await theirs.read(theirs.key("note", "1"))).records == {}
    assert isinstance(await theirs.commit(Put(theirs.key("note", "1"), b"mine")), Commit)


async def test_no_users_key_is_a_prefix_of_another(spaces: tuple[Space, Space]) -> None:
    """What is kept below one user's key cannot be mistaken for another user's key."""
    ours, _ = spaces
    short, long = ours.key_for("line", REPO("a")), ours.key_for("line", REPO("a", "b"))

    assert not long.startswith(short)
    assert ours.key_for("line", "a") != ours.key_for("line", sf.KeyFamily("space-test-a")())


async def test_a_raw_string_is_not_a_record_key(spaces: tuple[Space, Space]) -> None:
    """Only a space makes record keys; the message says how."""
    with pytest.raises(ArgumentTypeError, match=r"space\.key"):
        await spaces[0].read("note")  # type: ignore[arg-type] # the mistake under test


@pytest.mark.parametrize("name", ["", "x" * 101, "a\nb", "a\x00", 7])
def test_a_bad_namespace_or_tenant_is_refused_before_anything_is_opened(name: str) -> None:
    """Names are short printable text."""
    with pytest.raises(InvalidArgumentError):
        sf.open("memory://", namespace=name)
    with pytest.raises(InvalidArgumentError):
        sf.open("memory://", tenant=name)


async def test_a_store_without_atomic_commits_is_refused() -> None:
    """Exclusion on a store that two racers can both win is refused, not half kept."""
    with pytest.raises(UnsuitableStoreError, match="two racers could both win"):
        Space(NonAtomicStore())


async def test_each_opening_has_a_presence_of_its_own() -> None:
    """Wakes for one opening never reach another."""
    async with sf.open("memory://presence") as one, sf.open("memory://presence") as other:
        assert one.presence != other.presence
