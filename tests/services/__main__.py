"""Fetch the servers for the tests, or start them for work by hand: see docs/how-to/run-the-test-servers.md."""

from __future__ import annotations

import sys

from tests.services.fetching import fetch_all

if __name__ == "__main__":
    if sys.argv[1:] == ["fetch"]:
        fetch_all()
