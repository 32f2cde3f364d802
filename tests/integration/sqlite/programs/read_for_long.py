"""Keeps a read transaction open until told to end it: ``read_for_long PATH``."""

from __future__ import annotations

import sqlite3

from tests.integration.sqlite.programs.dialogue import ARGUMENTS, say, told

if __name__ == "__main__":
    database = sqlite3.connect(ARGUMENTS[0], isolation_level=None)
    database.execute("BEGIN")
    before = database.execute("SELECT count(*) FROM records").fetchone()[0]
    say("reading")
    told()
    after = database.execute("SELECT count(*) FROM records").fetchone()[0]
    database.execute("ROLLBACK")
    database.close()
    say("same" if before == after else "changed")
