"""The page about sharing a transaction, run on a PostgreSQL server."""

from __future__ import annotations

import asyncio
import urllib.parse
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from standfast.ids import new_id
from tests.docs.page import blocks, run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "share-a-transaction.md"
NEEDS = "python no-run: needs a PostgreSQL server; a test runs it on one"


@pytest.fixture
def database(postgresql_url: str) -> str:
    """A database of its own: the page makes tables."""

    async def create() -> str:
        name = f"page_{new_id().replace('-', '')}"
        connection = await asyncpg.connect(postgresql_url)
        await connection.execute(f"CREATE DATABASE {name}")
        await connection.close()
        return urllib.parse.urlsplit(postgresql_url)._replace(path=f"/{name}").geturl()

    return asyncio.run(create())


def test_every_block_does_what_the_page_says(database: str) -> None:
    """Word for word, in order, with nothing added but where the server is."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(f"```{NEEDS}") == text.count("```python")
    namespace: dict[str, Any] = {"__name__": "__main__", "SERVER": database}
    with asyncio.Runner() as runner:
        for block in blocks(text.replace(NEEDS, "python")):
            run(block, PAGE.name, namespace, runner)
