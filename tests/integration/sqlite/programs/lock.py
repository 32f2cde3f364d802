"""Holds the write lock of a database through the standard library until told to stop: ``lock PATH``."""

from __future__ import annotations

import sqlite3

from tests.integration.sqlite.programs.dialogue import ARGUMENTS, say, told

if __name__ == "__main__":
    database = sqlite3.connect(ARGUMENTS[0], isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    say("locked")
    told()
    database.execute("ROLLBACK")
    database.close()
    say("unlocked")
