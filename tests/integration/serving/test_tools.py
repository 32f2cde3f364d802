"""Tools of two server processes on one store, behind a balancer that knows nothing of sessions."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Final, final

import httpx2
import pytest
from mcp.shared.exceptions import MCPError

from tests.integration.cli.programs import SHOWN
from tests.integration.serving.crowd import PATIENCE
from tests.unit.web.clients import speaking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.serving.conftest import Servers

pytestmark = pytest.mark.heavy  # real processes: once, on the default interpreter


@final
class Balancer(httpx2.AsyncBaseTransport):
    """Sends each message to the next server."""

    def __init__(self, addresses: list[str]) -> None:
        self._next = itertools.cycle([httpx2.URL(each) for each in addresses])
        self._way = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one on."""
        to = next(self._next)
        request.url = request.url.copy_with(host=to.host, port=to.port)
        request.headers["Host"] = f"{to.host}:{to.port}"
        return await self._way.handle_async_request(request)

    async def aclose(self) -> None:
        """Hang up."""
        await self._way.aclose()


@pytest.fixture
def addresses(servers: Servers) -> list[str]:
    """Two servers of tools."""
    return [servers.start(app="tests.integration.serving.tool_desk:app")[1] for _ in range(2)]


@contextlib.asynccontextmanager
async def client_of(addresses: list[str], era: str) -> AsyncIterator[Any]:
    """Return the official client of an older version of the protocol, or of the newest."""
    async with (
        httpx2.AsyncClient(transport=Balancer(addresses), timeout=PATIENCE, headers=SHOWN) as http,
        speaking(http, era) as client,
    ):
        yield client


async def noted(servers: Servers, many: int) -> list[str]:
    """Wait until so much was written down; return it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            text = servers.ledger.read_text() if servers.ledger.exists() else ""
            if len(text.splitlines()) >= many:
                return [line.split()[0] for line in text.splitlines()]
            await asyncio.sleep(0.01)


ERAS: Final = ("older", "newest")


async def test_any_process_takes_any_message(addresses: list[str]) -> None:
    """Both have answered, and the events of each call were told; by both versions of the protocol."""
    heard: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        del progress, total
        heard.append(message)

    for era in ERAS:
        heard.clear()
        async with client_of(addresses, era) as client:
            results = [await client.call_tool("desk__greet", {"name": "Ada"}, progress_callback=hear) for _ in range(5)]
        answers = [each.structured_content["result"] for each in results]
        assert {answer[0] for answer in answers} == {"hello Ada"}
        assert len({answer[1] for answer in answers}) == 2
        assert heard == ['{"at":"door"}'] * 5


async def test_a_call_that_holds_a_key_is_seen_by_the_other_and_cancelled_by_hanging_up(
    addresses: list[str], servers: Servers
) -> None:
    """The key is the store's: another process refuses, and lets the next in when the first has gone."""
    for number, era in enumerate(ERAS):
        holding = asyncio.ensure_future(_hold(addresses, era))
        await noted(servers, 2 * number + 1)
        async with client_of(addresses, era) as other:
            for _ in range(2):
                with pytest.raises(MCPError) as caught:
                    await other.call_tool("desk__hold", {})
                assert caught.value.data["type"] == "urn:standfast:request-rejected"
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        assert (await noted(servers, 2 * number + 2))[-2:] == ["held", "let-go"]


async def _hold(addresses: list[str], era: str) -> None:
    async with client_of(addresses, era) as client:
        await client.call_tool("desk__hold", {})
