"""Deaths on PostgreSQL behind a pooler; what all servers have in common is in ``tests/integration/fleet``."""

from __future__ import annotations

import pytest

from standfast.stores.url import open_store
from tests.integration.fleet.places import place_on

pytestmark = [pytest.mark.services, pytest.mark.heavy]


async def test_without_a_direct_session_no_deaths_are_seen(pgbouncer_url: str) -> None:
    """A pooler's session belongs to nobody."""
    store = await open_store(place_on(pgbouncer_url, "pgbouncer"))
    try:
        assert not store.capabilities.sees_process_death
        assert store.liveness_token() == ""
    finally:
        await store.aclose()
