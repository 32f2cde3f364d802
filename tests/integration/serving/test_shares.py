"""A crowd at a real server: one user, one tenant or strangers that take all they can get leave the others theirs."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import httpx
import pytest

from standfast.clock import monotonic
from tests.integration.cli.programs import PATIENCE, ROOT, Program
from tests.integration.webhooks.provider import LETTER, signed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

CROWD: Final = 150
"""How many connections one opens: more than all the places there are."""

AT_MOST: Final = 5.0
"""Seconds that a short call may take while others crowd in; alone, it takes milliseconds."""


@pytest.fixture
def address() -> Iterator[str]:
    """Where the square is served, by a process of its own."""
    program = Program(
        "memory://", "serve", "tests.integration.serving.crowded:app", "--app-dir", str(ROOT), "--port", "0"
    )
    found = re.search(r"at (http://\S+) \(process", program.hear())
    assert found is not None
    yield found[1]
    program.process.kill()
    program.process.communicate(timeout=PATIENCE)


async def answers(address: str, path: str, who: str, many: int) -> list[tuple[int, str, float]]:
    """Send short calls, one after another; return status, which share was spent, and how long each took."""
    told: list[tuple[int, str, float]] = []
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE) as client:
        for _ in range(many):
            before = monotonic()
            answer = await client.post(path, headers={"x-user": who})
            share = answer.json().get("share", "") if answer.status_code == 429 else ""
            told.append((answer.status_code, share, monotonic() - before))
    return told


@contextlib.asynccontextmanager
async def crowd(address: str, head: str, many: int = CROWD) -> AsyncIterator[list[bytes]]:
    """Open connections and send the same head on each, until there is an answer to one too many; hang up at the end."""
    host, port = str(urlsplit(address).hostname), urlsplit(address).port
    refused: list[bytes] = []
    writers: list[asyncio.StreamWriter] = []
    async with asyncio.timeout(PATIENCE):
        readers: list[asyncio.Task[bytes]] = []
        for _ in range(many):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(head.encode())
            writers.append(writer)
            readers.append(asyncio.create_task(reader.read(10_000)))
        while len(refused) < many // 2:
            done, _ = await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
            readers = [each for each in readers if each not in done]
            refused += [each.result() for each in done]
    try:
        yield refused
    finally:
        for each in readers:
            each.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        for writer in writers:
            writer.close()


def post(path: str, *headers: str, length: int = 0) -> str:
    """Return the head of a request; its body never comes."""
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *headers, "", ""])


async def check_served(address: str, *who: str) -> None:
    """Check that each gets short answers, none refused, none late."""
    told = await asyncio.gather(*(answers(address, "/flows/square/short", each, 10) for each in who))
    for name, each in zip(who, told, strict=True):
        assert {status for status, _, _ in each} == {200}, (name, each)
        assert max(took for _, _, took in each) < AT_MOST, (name, each)


async def test_a_user_leaves_its_tenant_and_others_their_places(address: str) -> None:
    """It is told that its own share is spent, and when to come again."""
    async with crowd(address, post("/flows/square/stay", "x-user: acme/mob")) as refused:
        assert all(b" 429 " in each and b"retry-after:" in each.lower() for each in refused)
        assert any(b'"requests of this user"' in each for each in refused)
        assert [
            (status, share) for status, share, _ in await answers(address, "/flows/square/short", "acme/mob", 1)
        ] == [(429, "requests of this user")]
        await check_served(address, "acme/ann", "other/bob")


async def test_a_tenant_with_many_users_leaves_others_theirs(address: str) -> None:
    """However many users it has: other tenants find room, several at a time."""
    async with contextlib.AsyncExitStack() as stack:
        for number in range(4):
            head = post("/flows/square/stay", f"x-user: acme/mob-{number}")
            await stack.enter_async_context(crowd(address, head, CROWD))
        told = await answers(address, "/flows/square/short", "acme/late", 1)
        await check_served(address, "other/bob", "third/eve")
    assert told[0][:2] == (429, "requests of the tenant")


async def test_strangers_at_a_webhook_take_nobodys_place(address: str) -> None:
    """Bodies that never come are no reason to refuse a user, nor a delivery that comes from elsewhere."""
    async with crowd(address, post("/webhooks/letters", length=1_000)) as refused:
        assert any(b'"deliveries of this address"' in each for each in refused)
        await check_served(address, "acme/ann", "other/bob")
        elsewhere = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with httpx.AsyncClient(base_url=address, transport=elsewhere, timeout=PATIENCE) as client:
            delivered = await client.post("/webhooks/letters", content=LETTER, headers=signed(LETTER))
    assert delivered.status_code == 202


async def test_those_whom_nobody_knows_take_nobodys_place(address: str) -> None:
    """They are refused before they are counted."""
    async with crowd(address, post("/flows/square/stay")) as refused:
        assert {each.split(b"\r\n")[0] for each in refused} == {b"HTTP/1.1 401 Unauthorized"}
        await check_served(address, "acme/ann", "other/bob")


async def test_a_user_leaves_its_tenant_durable_requests(address: str) -> None:
    """What it has sent to be done later is half of what the tenant may have, and no more."""
    mob = await answers(address, "/flows/square/later", "acme/mob", 15)
    others = [await answers(address, "/flows/square/later", who, 3) for who in ("acme/ann", "other/bob")]
    assert [status for status, _, _ in mob] == [202] * 10 + [429] * 5
    assert {share for status, share, _ in mob if status == 429} == {"unfinished durable requests of this user"}
    assert {status for each in others for status, _, _ in each} == {202}


async def test_a_tenant_fills_its_bytes_and_no_others(address: str) -> None:
    """It is told how much is kept; what leaves nothing behind goes on, and so do other tenants."""
    refused: list[httpx.Response] = []
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE) as client:
        taken = 0
        while not refused and taken < 100:
            answer = await client.post(
                "/flows/square/keep", headers={"x-user": "acme/mob"}, json={"text": "x" * 20_000}
            )
            taken += answer.status_code == 202
            refused += [answer] if answer.status_code != 202 else []
        others = [
            await client.post("/flows/square/keep", headers={"x-user": who}, json={"text": "x" * 20_000})
            for who in ("acme/ann", "other/bob")
        ]
    assert [(each.status_code, each.json()["share"]) for each in refused] == [(429, "bytes kept of the tenant")]
    assert "retry-after" in refused[0].headers
    assert "bytes kept of the tenant is 500,000" in refused[0].text
    assert 10 <= taken <= 25  # each leaves its inputs and its answer, as soon as that is written
    assert [each.status_code for each in others] == [429, 202]
    await check_served(address, "acme/ann", "other/bob")
