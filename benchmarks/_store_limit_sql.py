"""The limits of PostgreSQL, MariaDB and libSQL."""

# ruff: noqa: S608 -- the names of the tables are constants, and all else is a number or a hex literal

from __future__ import annotations

import http.client
import json
import time
from base64 import b64encode
from typing import Any, Final, cast
from urllib.parse import urlsplit

import asyncmy
import asyncpg

from benchmarks._sqlite_limit import HANDLE, key_of, value
from benchmarks._store_limit import TABLES, TASKS, Counting

# --- PostgreSQL -----------------------------------------------------------------------------------------------------

SETTINGS: Final = "SET enable_seqscan = off; SET jit = off; SET plan_cache_mode = force_generic_plan"
NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
COMMIT: Final = f"""\
WITH put AS (
    UPDATE {TABLES}.records AS r SET value = g.value, version = nextval('{TABLES}.versions')
    FROM unnest($1::bytea[], $2::bigint[], $3::bytea[]) AS g (key, version, value)
    WHERE r.key = g.key AND r.version = g.version RETURNING r.key, r.version
), counted AS (
    UPDATE {TABLES}.attempts SET number = $4, at = {NOW}, versions = ARRAY(SELECT version FROM put), touched_at = now()
    WHERE handle = '{HANDLE}' AND number < $4 RETURNING number
)
SELECT put.key, put.version FROM put, counted"""
CREATE: Final = f"""\
INSERT INTO {TABLES}.records
SELECT g.key, g.value, nextval('{TABLES}.versions') FROM unnest($1::bytea[], $2::bytea[]) AS g (key, value)
RETURNING key, version"""


class Postgresql(Counting):
    """One statement, which is a transaction by itself: one round trip."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 -- the driver's types need its stubs
        super().__init__()
        self._connection = connection
        self._statement: Any = None
        self._task_of = {bytes(key): task for task, key in enumerate(key_of)}

    async def prepare(self) -> None:
        """Make the records."""
        await self._connection.execute(SETTINGS)
        await self._connection.execute(f"INSERT INTO {TABLES}.attempts VALUES ('{HANDLE}', 0, 0, '{{}}')")
        values = [value(task, 0) for task in range(TASKS)]
        self._note(await self._connection.fetch(CREATE, [bytes(key) for key in key_of], values))
        self._statement = await self._connection.prepare(COMMIT)

    def _note(self, rows: list[Any]) -> None:
        for key, version in rows:
            self.versions[self._task_of[key]] = version

    async def commit(self, tasks: range) -> None:
        """Commit once for each task."""
        keys, versions, values = zip(*self.puts(tasks), strict=True)
        rows = await self._statement.fetch(keys, versions, values, self.number)
        assert len(rows) == len(tasks)
        self._note(rows)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._connection.close()


async def open_postgresql(url: str) -> Postgresql:
    """Connect to PostgreSQL."""
    bare = Postgresql(await asyncpg.connect(url.partition("?")[0]))
    await bare.prepare()
    return bare


# --- MariaDB --------------------------------------------------------------------------------------------------------

RECORDS: Final = f"{TABLES}_records"
COLUMNS: Final = "k, version, expires_at, value"


class Mysql(Counting):
    """Several statements in one packet: one round trip."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 -- the driver has types in name only
        super().__init__()
        self._connection = connection

    async def _run(self, *statements: str) -> list[Any]:
        cursor = self._connection.cursor()
        await cursor.execute(";".join(statements))
        answers = [await cursor.fetchall() if cursor.description else ()]
        while await cursor.nextset():
            answers.append(await cursor.fetchall() if cursor.description else ())
        return answers

    async def commit(self, tasks: range) -> None:
        """Commit once for each task."""
        puts = list(self.puts(tasks))
        present = ",".join(f"(x'{key.hex()}',{version})" for key, version, _ in puts if version)
        found = f"SELECT count(*) FROM {RECORDS} FORCE INDEX (PRIMARY) WHERE (k, version) IN ({present}) FOR UPDATE"
        first = time.time_ns() // 1000
        rows = ",".join(f"(x'{key.hex()}',{first + n},NULL,x'{text.hex()}')" for n, (key, _, text) in enumerate(puts))
        write = "version=VALUES(version), expires_at=VALUES(expires_at), value=VALUES(value)"
        answers = await self._run(
            "START TRANSACTION",
            found if present else "SELECT 0",
            f"INSERT INTO {RECORDS} ({COLUMNS}) VALUES {rows} ON DUPLICATE KEY UPDATE {write}",
            f"REPLACE INTO {TABLES}_attempts VALUES ('{HANDLE}', {self.number}, {first}, {first}, {len(puts)})",
            "COMMIT",
        )
        assert answers[1][0][0] == sum(bool(version) for _, version, _ in puts)
        for n, task in enumerate(tasks):
            self.versions[task] = first + n

    async def aclose(self) -> None:
        """Close the connection."""
        await self._connection.ensure_closed()


async def open_mysql(url: str) -> Mysql:
    """Connect to MySQL or MariaDB."""
    parts = urlsplit(url)
    connect = cast("Any", asyncmy.connect)
    connection = await connect(
        host=parts.hostname,
        port=parts.port,
        user=parts.username,
        password=parts.password,
        database=parts.path[1:],
        autocommit=True,
    )
    bare = Mysql(connection)
    await bare.commit(range(TASKS))
    return bare


# --- libSQL ---------------------------------------------------------------------------------------------------------

PLACE: Final = "substr(?1, p.value ->> 0, p.value ->> 1)"
GUARD: Final = (
    f"SELECT count(*) FROM json_each(?2) AS p JOIN {TABLES}records AS r"
    f" ON r.key = {PLACE} AND r.version = p.value ->> 4"
)
PUT: Final = (
    f"INSERT INTO {TABLES}records (key, version, value) SELECT {PLACE}, (SELECT count FROM {TABLES}clock) - p.key,"
    " substr(?1, p.value ->> 2, p.value ->> 3) FROM json_each(?2) AS p WHERE true"
    " ON CONFLICT (key) DO UPDATE SET version = excluded.version, value = excluded.value"
)
STEPS: Final = (
    "BEGIN IMMEDIATE",
    GUARD,
    f"UPDATE {TABLES}clock SET count = count + ?1, at = ?2 RETURNING count",
    PUT,
    f"REPLACE INTO {TABLES}attempts VALUES ('{HANDLE}', ?1, ?2, ?3, ?4)",
    "COMMIT",
)


class Libsql(Counting):
    """One request over HTTP with all statements in it, on a connection and a stream that stay open."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__()
        self._connection = http.client.HTTPConnection(host, port)
        self._baton: str | None = None

    async def commit(self, tasks: range) -> None:
        """Commit once for each task."""
        places: list[tuple[int, int, int, int, int]] = []
        parts: list[bytes] = []
        size, known = 1, 0
        for key, version, text in self.puts(tasks):
            places.append((size, len(key), size + len(key), len(text), version))
            parts += (key, text)
            size += len(key) + len(text)
            known += version > 0
        packed, now = (b"".join(parts), json.dumps(places)), time.time_ns() // 1000
        arguments = ((), packed, (len(tasks), now), packed, (self.number, now, 0, len(tasks)), ())
        answers = self._post([_step(n, *each) for n, each in enumerate(zip(STEPS, arguments, strict=True))])
        assert _number(answers[1]) == known
        last = _number(answers[2])
        for n, task in enumerate(tasks):
            self.versions[task] = last - n

    def _post(self, steps: list[dict[str, Any]]) -> list[Any]:
        asked = {"baton": self._baton, "requests": [{"type": "batch", "batch": {"steps": steps}}]}
        self._connection.request("POST", "/v3/pipeline", json.dumps(asked), {"Content-Type": "application/json"})
        reply = json.loads(self._connection.getresponse().read())
        self._baton = reply["baton"]
        result = reply["results"][0]["response"]["result"]
        assert not any(result["step_errors"]), result["step_errors"]
        answers: list[Any] = result["step_results"]
        return answers

    async def aclose(self) -> None:
        """Close the connection."""
        self._connection.close()


def _step(number: int, sql: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
    step: dict[str, Any] = {"stmt": {"sql": sql, "args": [_argument(each) for each in arguments]}}
    return step if number == 0 else {**step, "condition": {"type": "ok", "step": number - 1}}


def _argument(given: bytes | str | int) -> dict[str, str]:
    if isinstance(given, int):
        return {"type": "integer", "value": str(given)}
    if isinstance(given, str):
        return {"type": "text", "value": given}
    return {"type": "blob", "base64": b64encode(given).decode()}


def _number(answer: Any) -> int:  # noqa: ANN401 -- it is whatever the JSON holds
    return int(answer["rows"][0][0]["value"])


async def open_libsql(url: str) -> Libsql:
    """Connect to a libSQL server."""
    parts = urlsplit(url)
    bare = Libsql(parts.hostname or "", parts.port or 0)
    await bare.commit(range(TASKS))
    return bare
