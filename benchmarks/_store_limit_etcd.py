"""The limit of etcd: the same keys in bare transactions over its JSON gateway."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec

from benchmarks._sqlite_limit import HANDLE
from benchmarks._store_limit import TABLES, TASKS, Counting

AT_ONCE: Final = 60
"""How many puts are in one transaction: etcd takes 128 operations, and Standfast declares as many changes."""

_decode: Final = msgspec.json.Decoder().decode


class Etcd(Counting):
    """One transaction with all puts, each guarded by the revision of its record, and the attempt."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = f"http://{urlsplit(url).netloc}/v3/kv/txn"
        self._session = aiohttp.ClientSession()

    async def commit(self, tasks: range) -> None:
        """Commit once for each task."""
        puts = list(self.puts(tasks))
        for first in range(0, len(puts), AT_ONCE):
            some = puts[first : first + AT_ONCE]
            revision = await self._commit(some)
            for n in range(len(some)):
                self.versions[tasks[first + n]] = revision

    async def _commit(self, puts: list[tuple[Any, int, bytes]]) -> int:
        prefix = TABLES.encode() + b"/"
        keys = [prefix + bytes(key) for key, _, _ in puts]
        compare = [
            {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": version}
            for key, (_, version, _) in zip(keys, puts, strict=True)
        ]
        success = [{"request_put": {"key": key, "value": value}} for key, (_, _, value) in zip(keys, puts, strict=True)]
        attempt = {"request_put": {"key": prefix + HANDLE.encode(), "value": b"%d" % self.number}}
        body = msgspec.json.encode({"compare": compare, "success": [*success, attempt]})
        async with self._session.post(self._url, data=body) as response:
            answer = _decode(await response.read())
        assert answer.get("succeeded"), answer
        return int(answer["header"]["revision"])

    async def aclose(self) -> None:
        """Close the connections."""
        await self._session.close()


async def open_etcd(url: str) -> Etcd:
    """Connect, and make the record of every task."""
    bare = Etcd(url)
    await bare.commit(range(TASKS))
    return bare
