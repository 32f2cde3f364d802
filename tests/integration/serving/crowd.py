"""Callers of two servers, of which one may be gone: they send again, follow on, and compare what became of it."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, final

import httpx

from tests.integration.cli.programs import SHOWN

if TYPE_CHECKING:
    from collections.abc import Iterable

PATIENCE: Final = 40.0
CONFLICT: Final = 409


@final
class Crowd:
    """Sends numbers to sessions, each to any server, the next when the last is accepted.

    Attributes:
        accepted: Of each session, the requests that were accepted, in that order: the id by the number.
        seen: Of each request that was followed, its events.
    """

    def __init__(self, addresses: Iterable[str]) -> None:
        self._clients: Final = [httpx.AsyncClient(base_url=each, timeout=PATIENCE, headers=SHOWN) for each in addresses]
        self.accepted: Final[defaultdict[str, dict[int, str]]] = defaultdict(dict)
        self.seen: Final[dict[str, list[tuple[int, str, Any]]]] = {}

    async def aclose(self) -> None:
        """Hang up."""
        for client in self._clients:
            await client.aclose()

    async def send_all(self, session: str, action: str, many: int, first: int) -> None:
        """Send so many numbers to a session, by turns to each server."""
        for number in range(many):
            self.accepted[session][number] = await self._sent(session, action, number, first + number)

    async def _sent(self, session: str, action: str, number: int, server: int) -> str:
        """Send one number until it is accepted; the key says that it is the same one."""
        headers = {"Standfast-Session": session, "Idempotency-Key": f"{session}-{number}"}
        async with asyncio.timeout(PATIENCE):
            while True:
                client = self._clients[server % len(self._clients)]
                try:
                    answer = await client.post(f"/flows/desk/{action}", json={"number": number}, headers=headers)
                except httpx.TransportError:  # it was killed: nobody knows whether it took the request
                    server += 1
                    continue
                told = answer.json()
                assert answer.status_code == 202 or "in-flight" in told.get("type", ""), told
                return str(told["requestId"])

    async def follow(self, request_id: str, server: int = 0) -> None:
        """Follow a request to its end, at the next server whenever one is gone."""
        events = self.seen.setdefault(request_id, [])
        async with asyncio.timeout(PATIENCE):
            while not (events and events[-1][1] == "request.ended"):
                try:
                    await self._read(self._clients[server % len(self._clients)], request_id, events)
                except httpx.TransportError:
                    server += 1

    async def _read(self, client: httpx.AsyncClient, request_id: str, events: list[tuple[int, str, Any]]) -> None:
        last = {"Last-Event-ID": str(events[-1][0])} if events else {}
        async with client.stream("GET", f"/requests/{request_id}/events", headers=last) as stream:
            assert stream.status_code == 200, stream.status_code
            number, name = 0, ""
            async for line in stream.aiter_lines():
                field, _, value = line.partition(": ")
                if field == "id":
                    number = int(value)
                elif field == "event":
                    name = value
                elif field == "data":
                    events.append((number, name, json.loads(value)))

    async def status(self, request_id: str, server: int) -> dict[str, Any]:
        """Return how a request is."""
        found: dict[str, Any] = (await self._clients[server].get(f"/requests/{request_id}")).json()
        return found

    async def numbers(self, session: str, server: int) -> list[int]:
        """Return what a session has seen."""
        headers = {"Standfast-Session": session}
        found: list[int] = (await self._clients[server].post("/flows/desk/numbers", headers=headers)).json()
        return found


def overlaps(lines: Iterable[tuple[str, str, int, int]], killed: int = 0) -> list[str]:
    """Return where two of one session ran at a time; what a killed process has begun ended with it."""
    running: dict[str, tuple[int, int]] = {}
    found: list[str] = []
    for what, session, number, process in lines:
        now = running.get(session)
        if what == "begin":
            if now is not None and now[1] != killed:
                found.append(f"{session}: {number} began in {process} while {now} ran")
            running[session] = (number, process)
        elif now == (number, process):
            del running[session]
        elif process != killed:
            found.append(f"{session}: {number} ended in {process} while {now} ran")
    return found
