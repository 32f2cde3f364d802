"""The official client of the protocol, in its versions."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from mcp import Client
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

ADDRESS = "http://localhost/mcp"


@contextlib.asynccontextmanager
async def speaking(http: httpx2.AsyncClient, era: str) -> AsyncIterator[Any]:
    """Return the client of an older version of the protocol, or of the ``"newest"``, that calls by ``http``."""
    transport = streamable_http_client(ADDRESS, http_client=http)
    if era == "newest":
        async with Client(transport) as client:
            yield client
    else:
        async with transport as streams, ClientSession(streams[0], streams[1]) as session:
            await session.initialize()
            yield session
