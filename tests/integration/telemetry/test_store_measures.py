"""How much servers keep, as metrics show it: asked of the real ones, once a minute."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import standfast as sf
from standfast.stores import Put
from standfast.stores.group_commit import GroupedStore

if TYPE_CHECKING:
    from typing import Any


COUNTED = {"postgresql": False, "mysql": False, "redis": True, "mongodb": True, "etcd": True}
"""Which tell a number of records at once: True; or estimate it now and then. The others tell bytes alone."""


@pytest.mark.parametrize("kind", [*COUNTED, "dynamodb", "libsql", "cloudflare"])
async def test_metrics_and_status_show_the_bytes_and_records_of_a_server(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """As far as it tells; a second look within the minute asks no more."""
    address: str = request.getfixturevalue(f"{kind}_url")
    address += "&create=true" if kind == "dynamodb" else ""
    namespace = f"n{uuid.uuid4().hex[:12]}"
    metrics = sf.admin.PrometheusMetrics(CollectorRegistry())
    async with sf.Engine(address, namespace=namespace, drive=False, hooks=[metrics]) as engine:
        space = engine.space
        for number in range(20):
            await space.commit(Put(space.key("some", str(number)), b"1:{}"))
        store: Any = space.store
        assert isinstance(store, GroupedStore)
        told = await store.measure()
        shown, _ = await metrics.text()
        seen = (await engine.overview()).store
        assert await store.measure() is told

    assert told is not None
    assert told.size is not None
    assert told.size > 0 or kind == "dynamodb"  # which counts every few hours
    assert told.records is None or told.records >= (20 if COUNTED.get(kind) else 0)
    assert (told.records is None) == (kind in {"libsql", "cloudflare"}) or kind == "postgresql"
    assert (seen.size, seen.records) == (told.size, told.records)
    samples = [each for family in text_string_to_metric_families(shown.decode()) for each in family.samples]
    assert [each.labels for each in samples if each.name == "standfast_store_bytes"] == [{"backend": kind}]
