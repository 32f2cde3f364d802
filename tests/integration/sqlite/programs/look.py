"""Looks into a database without the store, as JSON: ``look PATH``. It checks the file before it believes it."""

from __future__ import annotations

import json
from typing import Any

from standfast.keys import RecordKey
from standfast.stores.sqlite.connection import open_connection
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, say


def look(path: str) -> dict[str, Any]:
    """Return what the file holds, and what SQLite thinks of it."""
    database = open_connection(path)
    rows = database.execute("SELECT key, version, value FROM records ORDER BY key").fetchall()
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_schema ORDER BY name")]
    facts = {
        "integrity": database.pragma("integrity_check"),
        "tables": tables,
        "worked": database.execute("SELECT id FROM worked").fetchall() if "worked" in tables else [],
        "handles": database.execute("SELECT count(*) FROM counters WHERE handle <> ''").get,
        "records": {
            "/".join(RecordKey.from_encoded(key).parts): [version, value.decode()] for key, version, value in rows
        },
    }
    database.close()
    return facts


if __name__ == "__main__":
    say(json.dumps(look(ARGUMENTS[0]), separators=(",", ":")))
