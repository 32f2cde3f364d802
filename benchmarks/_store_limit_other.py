"""The limits of Redis, MongoDB and DynamoDB."""

from __future__ import annotations

import time
from typing import Any, Final
from urllib.parse import urlsplit

import botocore.session
import redis
from botocore.config import Config
from pymongo import MongoClient
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from benchmarks._sqlite_limit import HANDLE
from benchmarks._store_limit import TABLES, TASKS, Counting

# --- Redis ----------------------------------------------------------------------------------------------------------

SCRIPT: Final = """\
local version = tonumber(redis.call('GET', KEYS[1]) or '0')
local count = (#ARGV - 2) / 3
local raws = redis.call('HMGET', KEYS[2], unpack(ARGV, 3, 2 + count))
for index = 1, count do
  if (raws[index] and string.sub(raws[index], 1, 16) or '0000000000000000') ~= ARGV[2 + count + index] then
    return redis.error_reply('LOST')
  end
end
for index = 1, count do
  version = version + 1
  local drawn = string.format('%016.0f', version)
  redis.call('HSET', KEYS[2], ARGV[2 + index], drawn .. '9999999999999999' .. ARGV[2 + 2 * count + index])
  if not raws[index] then redis.call('ZADD', KEYS[3], 0, ARGV[2 + index]) end
end
local time = redis.call('TIME')
redis.call('SET', KEYS[1], string.format('%016.0f', version))
redis.call('HSET', KEYS[4], ARGV[1], ARGV[2] .. time[1] .. time[2])
return version
"""


class Redis(Counting):
    """One script: one round trip."""

    def __init__(self, client: Any) -> None:  # noqa: ANN401 -- the driver's types say what both its faces may return
        super().__init__()
        self._client = client
        self._script: Any = client.register_script(SCRIPT)
        self._keys = [f"{{{TABLES}}}:{part}" for part in ("head", "records", "order", "attempts")]

    async def commit(self, tasks: range) -> None:
        """Commit once for each task."""
        keys, versions, values = zip(*self.puts(tasks), strict=True)
        expected = [b"%016d" % version for version in versions]
        last = self._script(keys=self._keys, args=[HANDLE, self.number, *map(bytes, keys), *expected, *values])
        for n, task in enumerate(tasks, start=1):
            self.versions[task] = last - len(tasks) + n

    async def aclose(self) -> None:
        """Close the connection."""
        self._client.close()


async def open_redis(url: str) -> Redis:
    """Connect to Redis or Valkey, by the driver's blocking face, which is the faster one."""
    bare = Redis(redis.Redis.from_url(url.partition("?")[0]))
    await bare.commit(range(TASKS))
    return bare


# --- MongoDB --------------------------------------------------------------------------------------------------------


class Mongodb(Counting):
    """One command with all statements, and the commit: two round trips."""

    def __init__(self, client: Any, database: str) -> None:  # noqa: ANN401 -- see above
        super().__init__()
        self._client, self._database = client, client[database]
        self._session: Any = client.start_session(causal_consistency=False)

    async def commit(self, tasks: range) -> None:
        """Commit once for each task."""
        first = max(self.versions) + 1
        statements: list[dict[str, Any]] = [
            {"q": {"_id": f"\u2192attempt {HANDLE}"}, "u": {"$set": {"number": self.number + 1}}, "upsert": True},
            {"q": {"_id": "\u2192store"}, "u": {"$inc": {"last": len(tasks)}}},
        ]
        for n, (key, version, text) in enumerate(self.puts(tasks)):
            found = {"_id": key.decode("latin-1"), "version": version}
            statements.append({"q": found, "u": {"version": first + n, "value": text}, "upsert": version == 0})
            self.versions[tasks[n]] = first + n
        written = 0
        with self._session.start_transaction(ReadConcern("snapshot"), WriteConcern("majority", j=True)):
            for start in range(0, len(statements), 1_000):
                command = {"update": f"{TABLES}_records", "updates": statements[start : start + 1_000]}
                written += self._database.command(command, session=self._session)["n"]
        assert written == len(statements)

    async def aclose(self) -> None:
        """Close the connections."""
        self._session.end_session()
        self._client.close()


async def open_mongodb(url: str) -> Mongodb:
    """Connect to MongoDB, by the driver's blocking face, which is the faster one."""
    parts = urlsplit(url)
    client: Any = MongoClient(parts.hostname, parts.port, directConnection=True, retryWrites=False)
    bare = Mongodb(client, parts.path[1:])
    await bare.commit(range(TASKS))
    return bare


# --- DynamoDB -------------------------------------------------------------------------------------------------------

MOST_ITEMS: Final = 99  # besides the attempt
PRESENT: Final = "v = :v AND attribute_exists(b)"
ABSENT: Final = "attribute_not_exists(v)"


class Dynamodb(Counting):
    """A transaction of up to a hundred items; as many requests, one after another, as it takes."""

    def __init__(self, client: Any) -> None:  # noqa: ANN401 -- the driver makes its methods while it runs
        super().__init__()
        self._client = client

    async def commit(self, tasks: range) -> None:
        """Commit once for each task."""
        for start in range(0, len(tasks), MOST_ITEMS):
            self._transact(tasks[start : start + MOST_ITEMS])

    def _transact(self, tasks: range) -> None:
        first = time.time_ns() // 1000
        items = [_put(*put, first + n) for n, put in enumerate(self.puts(tasks))]
        number = {"N": str(self.number)}
        attempt = {"p": {"B": b"\xff" + HANDLE.encode()}, "s": {"B": b"a"}, "n": number, "w": {"N": str(first)}}
        self._client.transact_write_items(
            TransactItems=[_conditional(attempt, "attribute_not_exists(n) OR n < :n", {":n": number}), *items]
        )
        for n, task in enumerate(tasks):
            self.versions[task] = first + n

    async def aclose(self) -> None:
        """Close the connections."""
        self._client.close()


def _put(key: Any, version: int, text: bytes, new: int) -> dict[str, Any]:  # noqa: ANN401 -- a key of a record
    namespace = key.namespace
    item = {"p": {"B": namespace}, "s": {"B": b"r" + key[len(namespace) :]}, "v": {"N": str(new)}, "b": {"B": text}}
    return _conditional(item, PRESENT, {":v": {"N": str(version)}}) if version else _conditional(item, ABSENT, {})


def _conditional(item: dict[str, Any], condition: str, values: dict[str, Any]) -> dict[str, Any]:
    request: dict[str, Any] = {"TableName": TABLES, "Item": item, "ConditionExpression": condition}
    return {"Put": {**request, "ExpressionAttributeValues": values} if values else request}


async def open_dynamodb(url: str) -> Dynamodb:
    """Make a client, as its documentation says, but without retries."""
    parts = urlsplit(url)
    client: Any = botocore.session.get_session().create_client(
        "dynamodb",
        region_name="us-east-1",
        endpoint_url=f"http://{parts.hostname}:{parts.port}",
        aws_access_key_id=parts.username,
        aws_secret_access_key=parts.password,
        config=Config(retries={"total_max_attempts": 1}),
    )
    bare = Dynamodb(client)
    await bare.commit(range(TASKS))
    return bare
