"""What waiting for replicas costs: durable commits a second on a replicated server, and on one by itself."""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import TYPE_CHECKING, Any, Final

from benchmarks._store_commits import Paced
from benchmarks.harness import Row, Subject, finish
from benchmarks.sqlite_store import Ours
from standfast.stores.remote.connection import NotDurableWarning
from tests import services
from tests.services import replicated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.harness import Measure

NOTES = """\
All members are on one machine with two cores and one disk, so that a replica takes its share of both: on machines of
their own it costs the round trip and its sync, and less than this. The limit is the same store on one server that waits
for none; it is as durable as in *stores*. PostgreSQL has one synchronous standby, Valkey two replicas (`?replicas=`),
MariaDB one semi-synchronous replica, MongoDB and etcd three members."""

SET_UPS: Final[dict[str, tuple[str, Callable[[], Any], str]]] = {
    "PostgreSQL, synchronous standby": ("postgresql", replicated.postgresql, ""),
    "Valkey, replicas=1": ("redis", replicated.valkey, "?replicas=1"),
    "Valkey, replicas=2": ("redis", replicated.valkey, "?replicas=2"),
    "MariaDB, semi-synchronous": ("mysql", replicated.mariadb, ""),
    "MongoDB, three members": ("mongodb", replicated.mongodb, ""),
    "etcd, three members": ("etcd", replicated.etcd, ""),
}
TASKS: Final = (1, 100)
ROUNDS: Final = 5


class Servers:
    """The servers of one set-up and one by itself. Another set-up is started when it is first asked for."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._up = ""
        self._stores: dict[bool, Ours] = {}

    def _store(self, name: str, *, is_replicated: bool) -> Ours:
        if self._up != name:
            self.close()
            self._up = name
            kind, make, options = SET_UPS[name]
            group = self._stack.enter_context(make())
            alone = self._stack.enter_context(services.private(kind))
            for key, url in ((True, f"{group.url}{options}"), (False, alone.url)):
                self._stores[key] = Ours(url)
                self._stack.callback(self._stores[key].close)
        return self._stores[is_replicated]

    def measure(self, name: str, tasks: int, *, is_replicated: bool) -> Measure:
        """Return what measures commits a second."""

        def commit(times: int) -> None:
            ours = self._store(name, is_replicated=is_replicated)
            ours.run(ours.commits(tasks, times))

        paced = Paced(commit)
        return lambda: paced() * tasks

    def rows(self) -> Iterator[Row]:
        """Return the rows in the order they are shown."""
        wanted = os.environ.get("STANDFAST_BENCH_SERVERS", "").split()
        for name in [each for each, (kind, *_) in SET_UPS.items() if not wanted or kind in wanted]:
            for tasks in TASKS:
                what = f"{name}: {tasks} task{'s' * (tasks > 1)}"
                waiting, alone = (self.measure(name, tasks, is_replicated=each) for each in (True, False))
                yield Row(what, "commits/s", waiting, alone, rounds=ROUNDS)

    def close(self) -> None:
        """Stop the servers that are up."""
        self._stack.close()


def main() -> None:
    """Measure everything, on servers that are gone afterwards."""
    warnings.simplefilter("ignore", NotDurableWarning)
    subject = Subject("replication", "What replicas cost", notes=NOTES)
    with contextlib.closing(Servers()) as servers:
        for row in servers.rows():
            subject.add(row)
        finish(subject)


if __name__ == "__main__":
    main()
