"""Schedules of actions keep their promises on every kind of store, and with lines in memory."""

from __future__ import annotations

from tests.conformance.places import InMemory, OnPostgresql, OnRedis, OnSqlite
from tests.conformance.tick_contract import TickContract


class TestLocal(InMemory, TickContract):
    """The sole server."""

    kind = "local"


class TestSharedInMemory(InMemory, TickContract):
    """On a store in memory."""


class TestSharedOnSqlite(OnSqlite, TickContract):
    """On a file."""


class TestSharedOnPostgresql(OnPostgresql, TickContract):
    """On a server."""


class TestSharedOnRedis(OnRedis, TickContract):
    """On a server."""
