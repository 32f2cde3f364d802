"""Works on a table of its own and records each answer in the same transaction, for ever: ``work_for_ever URL NAME``."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING

from standfast.stores import Put
from standfast.stores.url import open_store
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, key, say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from standfast.keys import RecordKey
    from standfast.stores import Change
    from standfast.stores.sqlite import SqliteWork


def insert(name: str) -> Callable[[SqliteWork], int]:
    """Return work that adds a row and answers with the number of it."""

    def work(sql: SqliteWork) -> int:
        sql.execute("CREATE TABLE IF NOT EXISTS worked (id INTEGER PRIMARY KEY, name TEXT)")
        return int(sql.execute("INSERT INTO worked (name) VALUES (?) RETURNING id", (name,))[0][0])

    return work


async def main(url: str, name: str) -> None:
    """Work, until somebody kills this process."""
    store = await open_store(url)
    say("ready")
    for number in count():
        entry, answer = key("entry", name, f"{number:08}"), key("answer", name, f"{number:08}")

        def record(row: int, answer: RecordKey = answer) -> Sequence[Change]:
            return [Put(answer, b"%d" % row)]

        await store.commit_with(insert(name), Put(entry, b"%d" % number), extra_changes=record)


if __name__ == "__main__":
    asyncio.run(main(*ARGUMENTS))
