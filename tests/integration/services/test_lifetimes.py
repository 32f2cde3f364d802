"""A server lives as long as the test run that wanted it, and no longer."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis

from tests import services
from tests.services.server_process import family

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.services

OWNER = """
import sys
from tests.services.shared_server import shared
print(shared(sys.argv[1]).pid, flush=True)
sys.stdin.read()
"""


@contextmanager
def owned(kind: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Have a server started by another process: that process, and the server's."""
    services.url(kind)  # skips where there is none
    command = [sys.executable, "-c", OWNER, kind]
    environment = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout
        yield process, int(process.stdout.readline())


def await_end(pids: list[int]) -> None:
    """Wait until processes are gone."""
    for pid in pids:
        try:
            watched = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        assert select.select([watched], [], [], 20)[0], f"process {pid} lives on"
        os.close(watched)


def parent(pid: int) -> int:
    """Return the parent of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid"))


def run_folder(pid: int) -> Path:
    """Return the folder that holds all that a server and its keeper write."""
    place = Path(f"/proc/{pid}/cwd").readlink()
    return next(folder for folder in place.parents if folder.name.startswith("standfast-"))


@pytest.mark.parametrize("kind", ["postgresql", "redis", "mysql"])
def test_a_server_dies_with_its_owner(kind: str) -> None:
    """Nothing is left behind by a test run that was killed."""
    with owned(kind) as (owner, server):
        all_of_it = family(server)
        owner.kill()

        await_end(all_of_it)


@pytest.mark.parametrize("kind", ["postgresql", "redis", "mysql"])
def test_a_server_dies_with_its_keeper(kind: str) -> None:
    """Nothing is left behind when what should have ended the server was killed itself."""
    with owned(kind) as (owner, server):
        all_of_it, folder = family(server), run_folder(server)
        os.kill(parent(server), signal.SIGKILL)

        await_end(all_of_it)
        owner.kill()
        shutil.rmtree(folder)  # the keeper cannot any more


def test_a_server_that_was_killed_comes_back_with_its_data() -> None:
    """A private server is started again on the same data and at the same URL."""
    with services.private("postgresql") as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("create table kept (value int)")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.url)

        server.restart()

        with psycopg.connect(server.url) as connection:
            assert connection.execute("select count(*) from kept").fetchone() == (0,)


def test_a_frozen_server_answers_nobody_until_it_goes_on() -> None:
    """Freezing a private server leaves its connections open."""
    with services.private("redis") as server, redis.Redis.from_url(server.url, socket_timeout=0.1) as client:
        server.stop()
        with pytest.raises(redis.exceptions.TimeoutError):
            client.ping()

        server.cont()

        assert client.ping()


def test_a_private_server_is_gone_after_its_block() -> None:
    """Neither a process nor its data is left."""
    with services.private("redis") as server:
        pids, folder = family(server.pid), run_folder(server.pid)

    await_end(pids)
    assert not folder.exists()


def test_a_server_may_run_with_another_clock() -> None:
    """A private server takes variables, here those that make its clock an hour fast."""
    with services.private("redis", environment=services.faketime("+3600s")) as server:
        times = [redis.Redis.from_url(url).time()[0] for url in (server.url, services.url("redis"))]

    assert 3590 < times[0] - times[1] < 3610
