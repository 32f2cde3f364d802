"""Each option of a store's URL is on a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from standfast.stores.cloudflare import connection as cloudflare
from standfast.stores.dynamodb import connection as dynamodb
from standfast.stores.etcd import gateway as etcd
from standfast.stores.libsql import connection as libsql
from standfast.stores.mongodb import connection as mongodb
from standfast.stores.mysql import connection as mysql
from standfast.stores.postgresql import connection as postgresql
from standfast.stores.redis import connection as redis
from standfast.stores.url import SQLITE_OPTIONS

DOCS = Path(__file__).resolve().parents[2] / "docs"
URLS = DOCS / "reference" / "urls.md"
OPTIONS = {
    "cloudflare": cloudflare.OPTION_NAMES,
    "dynamodb": dynamodb.OPTION_NAMES,
    "etcd": etcd.OPTION_NAMES,
    "libsql": libsql.OPTION_NAMES,
    "mongodb": mongodb.OPTION_NAMES,
    "mysql": mysql.OPTION_NAMES,
    "postgresql": postgresql.OPTION_NAMES,
    "redis": redis.OPTION_NAMES,
    "sqlite": tuple(SQLITE_OPTIONS),
}


@pytest.mark.parametrize("store", OPTIONS)
def test_each_option_is_on_the_page_of_its_store_or_on_that_of_urls(store: str) -> None:
    """Who reads an option in a program finds out what it does."""
    page = DOCS / "how-to" / f"run-on-{store}.md"
    text = URLS.read_text(encoding="utf-8") + (page.read_text(encoding="utf-8") if page.exists() else "")

    assert [option for option in OPTIONS[store] if not re.search(rf"`\??{option}(=[^`]*)?`", text)] == []
