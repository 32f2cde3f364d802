"""Getting at a MongoDB server from below, and making it fail."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from standfast.stores.mongodb import MongoServer
from standfast.stores.remote import RemoteBackend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo import MongoClient

    from standfast.stores import GroupedStore


def server_of(store: GroupedStore) -> MongoServer:
    """Return what the common code talks to."""
    backend = store._backend  # pyright: ignore[reportPrivateUsage] -- there is no other way to send one intent
    assert isinstance(backend, RemoteBackend)
    assert isinstance(backend.server, MongoServer)
    return backend.server


class FailPoints:
    """Makes a server fail commands of this store."""

    def __init__(self, driver: MongoClient[dict[str, Any]]) -> None:
        self._driver = driver

    @contextlib.contextmanager
    def commands(self, *names: str, times: int = 1, **how: Any) -> Iterator[None]:
        """Let ``names`` fail so many times, in the way that ``failCommand`` knows."""
        data = {"failCommands": list(names), "appName": "standfast", **how}
        self._driver.admin.command({"configureFailPoint": "failCommand", "mode": {"times": times}, "data": data})
        try:
            yield
        finally:
            self._driver.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
