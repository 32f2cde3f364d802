"""Executes the order of the page, which starts DBOS by itself, and looks for the names that the page translates."""

from __future__ import annotations

import sys

import dbos
import order

if __name__ == "__main__":
    missing = [name for name in sys.argv[1:] if not hasattr(dbos.DBOS, name)]
    assert not missing, f"DBOS has none of these: {missing}"
    order.DBOS.destroy()
