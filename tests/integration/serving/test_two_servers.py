"""Two servers behind one store, under load, one of which is killed or told to stop: nothing accepted is lost."""

from __future__ import annotations

import asyncio
import random
import signal
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.integration.cli.programs import SHOWN
from tests.integration.fleet.places import place_on
from tests.integration.serving.conftest import Servers
from tests.integration.serving.crowd import PATIENCE, Crowd, overlaps
from tests.sizes import rounds, size

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli.programs import Program

pytestmark = pytest.mark.heavy  # many real processes: once, on the default interpreter

SESSIONS = 5


async def wait_for_lines(servers: Servers, many: int) -> None:
    """Wait until so much was written down."""
    async with asyncio.timeout(PATIENCE):
        while len(servers.lines()) < many:  # noqa: ASYNC110 -- another process writes it
            await asyncio.sleep(0.005)


async def check(crowd: Crowd, servers: Servers, killed: int, left: int) -> str:
    """Check everything that was promised about a load; return what became of it, in words."""
    lost = 0
    for session, requests in crowd.accepted.items():
        for request_id in requests.values():
            await crowd.follow(request_id, left)
        ended = {number: (await crowd.status(each, left))["status"] for number, each in requests.items()}
        assert set(ended.values()) <= {"completed", "interrupted"}, ended
        done = [number for number, status in ended.items() if status == "completed"]
        assert await crowd.numbers(session, left) == done, f"{session}: accepted {list(ended)}"
        lost += len(ended) - len(done)
    for request_id, events in crowd.seen.items():
        assert [number for number, _, _ in events] == list(range(1, len(events) + 1)), (request_id, events)
    assert overlaps(servers.lines(), killed) == []
    return f"{lost} interrupted"


async def load(servers: Servers, seed: int) -> str:
    """Load two servers, kill one of them on the way, and check."""
    chooser = random.Random(seed)
    many = size(full=12, quick=6)
    (one, first), (_, second) = servers.start(), servers.start()
    crowd = Crowd([first, second])
    try:
        return await loaded(crowd, servers, one, chooser, many)
    finally:
        await crowd.aclose()


async def loaded(crowd: Crowd, servers: Servers, one: Program, chooser: random.Random, many: int) -> str:
    """Send and follow, kill one of the servers on the way, and check."""
    sending = [
        asyncio.ensure_future(crowd.send_all(f"s-{n}", "once" if n == 0 else "again", many, n)) for n in range(SESSIONS)
    ]
    await wait_for_lines(servers, 4)
    following = [asyncio.ensure_future(crowd.follow(each[0])) for each in crowd.accepted.values() if 0 in each]
    await wait_for_lines(servers, chooser.randrange(5, SESSIONS * many))
    one.process.kill()
    await asyncio.gather(*sending, *following)
    return await check(crowd, servers, one.process.pid, left=1)


async def test_nothing_accepted_is_lost_when_a_server_is_killed(url: str, tmp_path: Path) -> None:
    """Each request counts once or is told interrupted; one of a session at a time, in order; followers miss nothing."""
    for seed in rounds("servers killed under load", full=100, quick=1):
        servers = Servers(url.replace("store.db", f"store{seed}.db"), tmp_path / f"ledger{seed}")
        try:
            print(f"seed {seed}: {await load(servers, seed)}")
        finally:
            servers.close()


@pytest.mark.services
async def test_nothing_accepted_is_lost_on_postgresql_either(postgresql_url: str, tmp_path: Path) -> None:
    """The same with a server as the store, which notices by the connection that a process has died."""
    for seed in rounds("servers killed under load on PostgreSQL", full=50, quick=1):
        servers = Servers(place_on(postgresql_url, "postgresql"), tmp_path / f"ledger{seed}")
        try:
            print(f"seed {seed}: {await load(servers, seed)}")
        finally:
            servers.close()


async def test_a_server_that_is_told_to_stop_ends_hands_back_and_lets_go_last(servers: Servers) -> None:
    """What runs is finished, what waits is done there or elsewhere, and no two of a session run at a time."""
    (one, first), (_, second) = servers.start("--grace", "5s", seconds=0.03), servers.start(seconds=0.03)
    crowd = Crowd([first, second])
    await asyncio.gather(*(crowd.send_all(f"s-{n}", "again", 4, 0) for n in range(2)))
    one.send(signal.SIGTERM)
    code, _ = await asyncio.to_thread(one.end)
    await check(crowd, servers, killed=0, left=1)
    statuses = [await crowd.status(each, 1) for asked in crowd.accepted.values() for each in asked.values()]
    await crowd.aclose()

    assert code == 0
    assert {each["status"] for each in statuses} == {"completed"}


async def test_callers_of_a_server_that_is_told_to_stop_are_answered(servers: Servers) -> None:
    """Those whose requests run, and those whose requests wait: with the result, or with when to come again."""
    one, address = servers.start("--grace", "5s", seconds=0.05)
    headers = {"Standfast-Session": "s"}
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE, headers=SHOWN) as client:
        calls = [
            asyncio.ensure_future(client.post("/flows/desk/here", json={"number": n}, headers=headers))
            for n in range(4)
        ]
        await wait_for_lines(servers, 1)
        one.send(signal.SIGTERM)
        answers = await asyncio.gather(*calls, return_exceptions=True)
    code, said = await asyncio.to_thread(one.end)

    told = [each.status_code if isinstance(each, httpx.Response) else type(each) for each in answers]
    assert (told.count(200) >= 1, set(told) <= {200, 503}, code) == (True, True, 0), (told, said)
    assert overlaps(servers.lines()) == []
    begun = [line[2] for line in servers.lines() if line[0] == "begin"]
    assert len(begun) == len(set(begun))


async def test_a_second_signal_leaves_what_ran_to_others(servers: Servers) -> None:
    """It ends at once; its durable requests are done elsewhere, when it is certain that it is gone."""
    (one, first), (_, second) = servers.start("--grace", "60s", seconds=0.2), servers.start(seconds=0.01)
    crowd = Crowd([first, second])
    await crowd.send_all("s", "again", 2, 0)
    await wait_for_lines(servers, 1)
    one.send(signal.SIGTERM)
    assert "once more to end at once" in await asyncio.to_thread(one.hear)
    one.send(signal.SIGTERM)
    code, _ = await asyncio.to_thread(one.end)
    await check(crowd, servers, killed=one.process.pid, left=1)
    await crowd.aclose()

    assert code == -signal.SIGTERM
    assert servers.lines()[0][3] == one.process.pid
    assert {line[3] for line in servers.lines()} > {one.process.pid}
