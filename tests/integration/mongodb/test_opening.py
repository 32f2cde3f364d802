"""Opening a MongoDB store: twenty at once, with the wrong password, with the wrong layout."""

from __future__ import annotations

import asyncio
import traceback
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from standfast.errors import InvalidUrlError, StandfastError, StoreUnavailableError, UnsuitableStoreError
from standfast.keys import RecordKey
from standfast.stores import Commit, Put
from standfast.stores.address import Credentials
from standfast.stores.mongodb.records import STORE
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from pymongo import MongoClient

    from standfast.stores import GroupedStore

SECRET = "hunter2-very-secret"  # noqa: S105 -- to look for it


def anew(url: str) -> str:
    """Return the URL of collections that are not there yet."""
    return f"{url.rpartition('=')[0]}=n{uuid.uuid4().hex[:12]}"


async def test_twenty_may_be_the_first_at_once(url: str) -> None:
    """Each of them finds everything in place."""
    fresh = anew(url)

    stores = await asyncio.gather(*[open_store(fresh) for _ in range(20)])

    answers = await asyncio.gather(
        *[store.commit(Put(RecordKey("n", str(number)), b"")) for number, store in enumerate(stores)]
    )
    assert all(isinstance(answer, Commit) for answer in answers)
    await asyncio.gather(*[store.aclose() for store in stores])


async def test_without_migrating_missing_collections_are_reported(url: str) -> None:
    """And not made: somebody else is meant to do that."""
    with pytest.raises(UnsuitableStoreError, match="migrate=true"):
        await open_store(anew(url) + "&migrate=false")


async def test_without_migrating_what_is_there_is_used(url: str, store: GroupedStore) -> None:
    """A user who may not make collections can use them."""
    del store
    another = await open_store(url + "&migrate=false")
    assert isinstance(await another.commit(Put(RecordKey("opening", "k"), b"")), Commit)
    await another.aclose()


async def test_a_newer_layout_is_refused(url: str, driver: MongoClient[dict[str, Any]]) -> None:
    """An older program does not guess what a newer one means."""
    fresh = anew(url)
    await (await open_store(fresh)).aclose()
    name = f"{fresh.rpartition('=')[2]}_records"
    driver.get_default_database()[name].update_one({"_id": STORE}, {"$set": {"schema": 99}})

    with pytest.raises(UnsuitableStoreError, match="upgrade Standfast"):
        await open_store(fresh)


async def test_a_collection_that_sorts_by_a_language_is_refused(url: str, driver: MongoClient[dict[str, Any]]) -> None:
    """Keys are told apart and sorted by their bytes alone."""
    fresh = anew(url)
    driver.get_default_database().create_collection(
        f"{fresh.rpartition('=')[2]}_records", collation={"locale": "en", "strength": 1}
    )

    with pytest.raises(UnsuitableStoreError, match="sorts by a language"):
        await open_store(fresh)


@pytest.mark.parametrize("by_argument", [False, True])
async def test_a_wrong_password_is_reported_and_never_shown(url: str, *, by_argument: bool) -> None:
    """Not in the message, not in the representation, not in the traceback."""
    user = "joe@" if by_argument else f"joe:{SECRET}@"
    credentials = Credentials(SECRET) if by_argument else None

    with pytest.raises(UnsuitableStoreError, match="user and password") as caught:
        await open_store(url.replace("mongodb://", f"mongodb://{user}"), credentials=credentials)

    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown + repr(caught.value) + str(caught.value.args)


async def test_a_server_that_is_not_there_is_reported_in_time() -> None:
    """Within the time limit for connecting."""
    with pytest.raises(StoreUnavailableError, match="is the server up"):
        await open_store("mongodb://127.0.0.1:1/standfast?connect_timeout=100ms")


async def test_a_certificate_that_is_not_there_is_reported() -> None:
    """Before anything is connected to."""
    with pytest.raises(InvalidUrlError, match="No such file"):
        await open_store("mongodb://127.0.0.1:1/standfast?tls=true&tlsCAFile=/missing.pem")


async def test_a_name_shows_no_secret(url: str) -> None:
    """Wherever the store is named."""
    with pytest.raises(StandfastError) as caught:
        await open_store(f"mongodb://joe:{SECRET}@127.0.0.1:1/standfast?connect_timeout=50ms")

    assert SECRET not in str(caught.value)
    assert url
