"""Opening the same store again, and what tells that a process has died."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from standfast.stores import Commit, Put
from standfast.testing.conformance.ground import SOON, Ground, create, value_of
from standfast.threads import run_beside

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from standfast.stores import Store
    from standfast.testing.conformance.ground import MakeKey

NONSENSE = (
    "",
    "x",
    "1",
    ":::::",
    "1:2:3:4:5:6",
    "1:boot:-1:-1:-1:-1",
    "1:b:1:1:99999999999999999999:1",
    "\0",
    "é",
    "9" * 5_000,
)
"""Texts that are nobody's lifeline."""


@contextlib.asynccontextmanager
async def opened_again(store: Store) -> AsyncGenerator[Store]:
    """Open another handle, and close it in the end."""
    other = await store.another()
    try:
        yield other
    finally:
        await other.aclose()


class HandleCases(Ground):
    """Several handles on one store, and the life of the process that has them."""

    async def test_what_one_handle_commits_another_reads(self, store: Store, key: MakeKey) -> None:
        """Both are handles on the same records, whichever of them wrote."""
        async with opened_again(store) as other:
            await create(store, key("a"), b"from the first")
            await create(other, key("b"), b"from the second")

            assert await value_of(other, key("a")) == b"from the first"
            assert await value_of(store, key("b")) == b"from the second"

    async def test_another_handle_outlives_the_first(self, store: Store, key: MakeKey) -> None:
        """Closing the handle that it came from leaves it usable, and able to open others."""
        async with opened_again(store) as other:
            await store.aclose()
            await create(other, key("a"), b"value")

            async with opened_again(other) as third:
                assert await value_of(third, key("a")) == b"value"

    async def test_closing_another_handle_leaves_the_first(self, store: Store, key: MakeKey) -> None:
        """It takes nothing with it that the first one needs."""
        async with opened_again(store) as other:
            version = await create(other, key("a"))

        assert isinstance(await store.commit(Put(key("a"), b"new", version)), Commit)

    async def test_another_handle_works_on_a_loop_and_a_thread_of_its_own(self, store: Store, key: MakeKey) -> None:
        """It belongs to the loop that it is opened on, not to that of the first one."""

        async def beside() -> bytes | None:
            async with opened_again(store) as other:
                await create(other, key("b"), b"beside")
                return await value_of(other, key("a"))

        await create(store, key("a"), b"before")

        assert await run_beside(beside, "conformance") == b"before"
        assert await value_of(store, key("b")) == b"beside"

    async def test_another_handle_is_heard(self, store: Store, key: MakeKey) -> None:
        """A watch on one handle hears what is committed through another."""
        if store.capabilities.wakes != "push":
            pytest.skip("this store sends no hints")
        async with opened_again(store) as other, store.watch(key()) as watch:
            await create(other, key("a"))

            hint = await watch.wait(SOON)
            assert hint is not None
            assert key("a") in hint.about

    async def test_another_handle_can_do_the_same(self, store: Store) -> None:
        """It is opened with the same options, so it says the same of itself."""
        async with opened_again(store) as other:
            assert other.capabilities == store.capabilities

    async def test_a_living_process_is_not_severed(self, store: Store) -> None:
        """Neither in its own eyes nor through another handle, however often it asks; and it has one lifeline."""
        async with opened_again(store) as other:
            lifelines = {store.liveness_token(), other.liveness_token(), store.liveness_token()}

            assert len(lifelines) == 1
            assert not any(each.is_dead(line) for line in lifelines for each in (store, other))

    async def test_a_store_that_sees_no_deaths_gives_no_lifeline(self, store: Store) -> None:
        """What it says of itself and what it hands out agree."""
        assert bool(store.liveness_token()) == store.capabilities.sees_process_death

    async def test_what_is_no_lifeline_is_not_severed(self, store: Store) -> None:
        """Only what is certain counts as a death: nonsense is not, and it raises nothing."""
        line = store.liveness_token()
        for text in (*NONSENSE, line[:-1], line[1:], line + " ", line.replace("1", "٣")):
            assert not store.is_dead(text), text

    async def test_a_closed_handle_sees_no_deaths(self, store: Store) -> None:
        """It can tell nothing any more, and says so without raising."""
        line = store.liveness_token()
        await store.aclose()

        assert store.liveness_token() == ""
        assert not store.is_dead(line)
