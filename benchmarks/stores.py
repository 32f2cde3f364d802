"""Stores on servers: durable commits a second, locks between processes, and workflows, on every server there is."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import pytest

from benchmarks._lock_crowd import Crowd
from benchmarks._store_commits import Commits
from benchmarks._store_locks import (
    CONTENDERS,
    PATIENCE,
    PING_PONG_SECONDS,
    REDIS_PY,
    TOOZ,
    Locks,
    PostgresPairs,
    RedisPairs,
)
from benchmarks._store_workflow_limit import PostgresWorkflowLimit
from benchmarks._store_workflows import DbosPeer, Workflows, reported
from benchmarks._workflow_ours import Ours
from benchmarks._workflow_peers import PACKAGES
from benchmarks.harness import ROOT, Subject, at_least, finish, peer_environment, plainly_at_least, plainly_at_most
from benchmarks.locks import PEERS
from tests import services

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from benchmarks.harness import Row

NOTES = """\
Each server is on loopback and on the machine's own disk, as durable as Standfast asks for: PostgreSQL 18 with
`synchronous_commit=on`, Valkey 9 with `appendfsync always`, MariaDB 10.11 with `sync_binlog=1`, MongoDB 6 with write
concern majority and journal, sqld as shipped, etcd 3.5 with one member, an emulator of DynamoDB, whose speed says
nothing about the service, and Cloudflare's `workerd`, without the way to the service; its limit is a bare object that
takes JSON over one WebSocket. The limit of etcd are bare transactions over the same JSON gateway, of 60 puts each.
The limit of commits is a plain loop over the driver that writes the same rows into the same tables: *n* tasks are one
transaction, script or request with *n* guarded puts, the attempt and the counter of versions, every value a new one.
The limit of a mutex on PostgreSQL is two compare-and-set updates of one row, which is less than a hold keeps; *the same
rows* writes and takes away what a hold does. On Redis it is the two scripts of a hold over a bare connection.
In a hand-over one process waits while the other lets go, 5 to 55 ms
later. Twenty processes, or two where that is said, ask, let go and ask again at once. *Passed over*: of a hundred
grants, how many went past somebody who had asked more than 1 ms earlier; *by ticket*: the same by the numbers that the
lock gave out. *Again*: how many went to the one who had just let go. The limit of workflows writes the same rows, a
hundred runs at a time in one transaction.
DBOS has its system database on the same server, is called from threads, and is measured in windows of 4 s."""

SERVERS: Final = {
    "postgresql": "PostgreSQL",
    "redis": "Redis",
    "mysql": "MariaDB",
    "mongodb": "MongoDB",
    "libsql": "libSQL",
    "dynamodb": "DynamoDB's emulator",
    "cloudflare": "Cloudflare's runtime",
    "etcd": "etcd",
}
POLLED: Final = ("mysql", "libsql", "dynamodb")
SEES_DEATHS: Final = ("mysql", "etcd")


def started(stack: contextlib.ExitStack) -> dict[str, str]:
    """Start a server of each kind, and return their URLs; one that cannot be had is left out, loudly."""
    urls: dict[str, str] = {}
    for kind in os.environ.get("STANDFAST_BENCH_SERVERS", " ".join(SERVERS)).split():
        try:
            url = stack.enter_context(services.private(kind)).url
        except pytest.skip.Exception as problem:
            print(f"!! left out: {problem}", file=sys.stderr)
            continue
        urls[kind] = f"{url}&create=true" if kind == "dynamodb" else url
    return urls


class Programme:
    """All rows, and what has to be closed after them."""

    def __init__(self, stack: contextlib.ExitStack, urls: dict[str, str], folder: Path) -> None:
        self._stack, self._urls, self._folder = stack, urls, folder
        self._ours = Crowd(sys.executable, "benchmarks._lock_ours", CONTENDERS)
        stack.callback(self._ours.close)
        self._others = self._peers()

    def _peers(self) -> Crowd | None:
        """Start the peers, who find the servers by the environment."""
        python = peer_environment("locks", *PEERS)
        if python is None:
            return None
        for kind in ("postgresql", "redis"):
            if kind in self._urls:
                os.environ[f"STANDFAST_{kind.upper()}_URL"] = self._urls[kind]
        crowd = Crowd(str(python), "benchmarks.lock_peers", CONTENDERS)
        self._stack.callback(crowd.close)
        return crowd

    def rows(self) -> Iterator[Row]:
        """Return the rows in the order they are shown."""
        for kind, url in self._urls.items():
            commits = Commits(SERVERS[kind], url, at_least(0.71) if kind == "etcd" else None)
            self._stack.callback(commits.close)
            yield from commits.rows()
        for kind in self._urls:
            yield from self._lock_rows(kind)
        yield from self._workflow_rows()

    def _lock_rows(self, kind: str) -> Iterable[Row]:
        locks = Locks(SERVERS[kind], self._urls[kind], self._folder, self._ours, self._others)
        if kind == "postgresql":
            return self._on_postgresql(locks)
        if kind == "redis":
            return self._on_redis(locks)
        bar = plainly_at_most(3) if kind == "etcd" else None
        hand_over = locks.hand_over(bar, seconds=PATIENCE if kind in POLLED else PING_PONG_SECONDS)
        return (locks.alone(), hand_over, *([locks.takeover()] if kind in SEES_DEATHS else []))

    def _on_postgresql(self, locks: Locks) -> Iterator[Row]:
        pairs = PostgresPairs(self._urls["postgresql"])
        self._stack.callback(pairs.close)
        yield locks.alone(at_least(0.75), pairs.updates, {"the same rows": pairs.same_rows})
        yield locks.alone_and(TOOZ, 6)
        yield locks.hand_over(plainly_at_most(1.5))
        yield locks.hand_over_at_once(plainly_at_most(1))
        yield from locks.crowd_rows(plainly_at_least(600))
        yield locks.takeover()

    def _on_redis(self, locks: Locks) -> Iterator[Row]:
        pairs = RedisPairs(self._urls["redis"])
        self._stack.callback(pairs.close)
        yield locks.alone(at_least(1, of=REDIS_PY), pairs.rate)
        yield locks.side_by_side(REDIS_PY, 3)
        yield locks.hand_over(plainly_at_most(1.1))
        yield locks.hand_over_at_once(plainly_at_most(0.8))
        yield from locks.crowd_rows(at_least(1, of=REDIS_PY))
        yield locks.takeover()

    def _workflow_rows(self) -> Iterator[Row]:
        for kind in ("postgresql", "redis"):
            if kind in self._urls:
                ours = Ours(self._urls[kind])
                self._stack.callback(ours.close)
                yield from self._on_postgresql_runs(ours) if kind == "postgresql" else reported(SERVERS[kind], ours)

    def _on_postgresql_runs(self, ours: Ours) -> Iterable[Row]:
        url = self._urls["postgresql"]
        limit = PostgresWorkflowLimit(url, ours.values())
        dbos = DbosPeer(peer_environment("workflows", *PACKAGES), f"{url.rpartition('/')[0]}/dbos")
        for part in (limit, dbos):
            self._stack.callback(part.close)
        return Workflows(SERVERS["postgresql"], ours, limit, dbos).rows()


def main() -> None:
    """Measure each server in a process of its own: none has the connections of another one beside it."""
    named = os.environ.get("STANDFAST_BENCH_SERVERS", " ".join(SERVERS)).split()
    together = os.environ.get("STANDFAST_BENCH_TOGETHER") or ", ".join(SERVERS[kind] for kind in named)
    if len(named) == 1:
        measure(together)
    command = [sys.executable, "-m", "benchmarks.stores", *sys.argv[1:]]
    codes = [
        subprocess.run(command, cwd=ROOT, env=_environment(kind, together), check=False).returncode for kind in named
    ]
    sys.exit(max(codes))


def _environment(kind: str, together: str) -> dict[str, str]:
    return {**os.environ, "STANDFAST_BENCH_SERVERS": kind, "STANDFAST_BENCH_TOGETHER": together}


def measure(part: str) -> NoReturn:
    """Measure everything about the servers of this process, which are gone afterwards."""
    subject = Subject("stores", "Stores on servers", notes=NOTES, part=part)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="standfast-bench-")))
        for row in Programme(stack, started(stack), folder).rows():
            subject.add(row)
        finish(subject)


if __name__ == "__main__":
    main()
