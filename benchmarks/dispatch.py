"""Dispatch: what each policy costs a request, at the seam and over HTTP, beside a bare route that does the same."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from benchmarks._dispatch_client import (
    AT_ONCE,
    always,
    by_session,
    connected,
    in_one_session,
    request,
    session,
    window,
    with_new_keys,
    with_one_key,
)
from benchmarks._dispatch_flow import BODY
from benchmarks._dispatch_seam import Seam
from benchmarks._dispatch_server import Served
from benchmarks._workflow_windows import Taking
from benchmarks.harness import Row, Subject, at_least, finish, plainly_at_most
from tests import services

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks._dispatch_client import Asking
    from benchmarks._dispatch_server import Kind
    from benchmarks._workflow_windows import Window
    from benchmarks.harness import Bar, Measure

NOTES = """\
The limit is a Starlette route that reads the same JSON into the same type and answers the same bytes, in a process of
its own under uvicorn with the settings of `standfast serve` (httptools, no access log, the same thresholds of the
garbage collector); at the seam it is the function, awaited. FastAPI checks inputs and outputs by pydantic models of the
same fields; neither of the two checks hosts, origins or who asks, or can be asked about a request. *Standfast* is one
process with `arbiter="local"` and a SQLite file; beside it stand processes whose lines lie in SQLite
(`synchronous=FULL`), PostgreSQL (`synchronous_commit=on`) and Redis (`appendfsync always`). The client is a second
process: 16 connections that are kept, each of which asks again when it was answered, in a session of its own unless it
says *one key*. *Added* is the difference of medians for one connection that asks one after another. What is *accepted*
is answered with 202 when it is durable; it is run later. At the seam 16 tasks ask for JSON and wait for JSON."""

SECONDS, ALONE = 0.2, 0.1
ROUNDS: Final = 5
STORES: Final = {"postgresql": "PostgreSQL", "redis": "Redis"}
REFUSED: Final = 409
ACCEPTED: Final = 202
ITEM: Final = b'{"questions":' + BODY + b"}"


class Case(NamedTuple):
    """One thing to ask for."""

    what: str
    asking: Asking
    status: int = 200
    bar: Bar | None = None
    on_stores: bool = False


CASES: Final = (
    Case("allow", always("allow"), bar=at_least(0.8)),
    Case("queue, distinct keys", by_session("queue"), bar=at_least(0.6), on_stores=True),
    Case("queue, one key", in_one_session("turns", session()), on_stores=True),
    Case("reject, distinct keys", by_session("reject")),
    Case("restart, distinct keys", by_session("restart"), on_stores=True),
    Case("join, distinct keys", by_session("join")),
    Case("join, one key", in_one_session("join", session()), on_stores=True),
    Case("idempotency keys, all new", with_new_keys("allow"), on_stores=True),
    Case("idempotency keys, seen before", with_one_key("allow"), on_stores=True),
    Case("latest, accepted", by_session("latest"), ACCEPTED, on_stores=True),
    Case("debounce, accepted", by_session("debounce"), ACCEPTED, on_stores=True),
    Case("batch of 16, accepted", in_one_session("batch", session(), ITEM), ACCEPTED, on_stores=True),
    Case("durable, accepted", always("durable"), ACCEPTED, on_stores=True),
)
SEAM: Final = ("allow", "queue", "reject", "restart", "join")


class Programme:
    """All rows, and the processes that are asked."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path) -> None:
        self._stack = stack
        self._seam = Seam(f"sqlite:///{folder}/seam.db")
        stack.callback(self._seam.close)
        self._runner = stack.enter_context(asyncio.Runner())
        self._bare = self._served("bare")
        self._fastapi = self._served("fastapi")
        self._ours = self._served("local", f"sqlite:///{folder}/local.db")
        self._others = {"SQLite": self._served("shared", f"sqlite:///{folder}/shared.db")}
        for kind, name in STORES.items():
            with contextlib.suppress(pytest.skip.Exception):
                self._others[name] = self._served("shared", stack.enter_context(services.private(kind)).url)
                continue
            print(f"!! left out: {name}", file=sys.stderr)

    def _served(self, kind: Kind, url: str = "") -> Served:
        served = Served(kind, url)
        self._stack.callback(served.close)
        return served

    def rows(self) -> Iterator[Row]:
        """Return the rows in the order they are shown."""
        yield from self._at_the_seam()
        for case in CASES:
            yield self._rate(case)
        yield self._refused()
        for case in CASES:
            if "one key" not in case.what:
                yield self._added(case)

    # --- at the seam -----------------------------------------------------------------------------------------------

    def _at_the_seam(self) -> Iterator[Row]:
        seam = self._seam
        for action in SEAM:
            ours = functools.partial(seam.dispatched, action)
            yield Row(f"at the seam: {action}", "us", ours, seam.bare, rounds=ROUNDS)

        def arbitration() -> float:
            return seam.dispatched("queue") - seam.dispatched("allow")

        what = "at the seam: arbitration, queue less allow"
        yield Row(what, "us", arbitration, bar=plainly_at_most(50), rounds=ROUNDS)

    # --- over HTTP ---------------------------------------------------------------------------------------------------

    def _window(self, served: Served, case: Case, at_once: int, seconds: float) -> Window:
        is_bare = served in (self._bare, self._fastapi)
        asking, status = (CASES[0].asking, 200) if is_bare else (case.asking, case.status)
        return self._runner.run(window(served.port, asking, at_once, seconds, status))

    def _rate_of(self, served: Served, case: Case) -> Measure:
        return lambda: self._window(served, case, AT_ONCE, SECONDS).rate

    def _rate(self, case: Case) -> Row:
        ours, bare = self._rate_of(self._ours, case), self._rate_of(self._bare, case)
        others = self._others.items() if case.on_stores else ()
        peers = {f"lines in {name}": self._rate_of(served, case) for name, served in others}
        if case is CASES[0]:
            peers["FastAPI"] = self._rate_of(self._fastapi, case)
        return Row(f"HTTP: {case.what}", "requests/s", ours, bare, peers, case.bar, ROUNDS)

    def _refused(self) -> Row:
        """Return the row about requests that are rejected, because another one has their key."""
        held = session()
        case = Case("reject, refused", in_one_session("reject", held), REFUSED)

        async def measure() -> float:
            holder = await connected(self._ours.port, lambda: request("occupy", b"{}", Standfast_Session=held), 200)
            try:
                holder.send()
                await asyncio.sleep(0.02)  # until it has its turn; an answer other than the expected one is an error
                return (await window(self._ours.port, case.asking, AT_ONCE, SECONDS, case.status)).rate
            finally:
                holder.close()

        bare = self._rate_of(self._bare, case)
        return Row(f"HTTP: {case.what}", "requests/s", lambda: self._runner.run(measure()), bare, rounds=ROUNDS)

    def _added(self, case: Case) -> Row:
        """Return the row about what a request takes longer than one of the bare route."""
        taking = Taking(functools.partial(self._pair, self._ours, case))
        others = self._others.items() if case.bar is not None else ()
        peers = {
            f"lines in {name}": Taking(functools.partial(self._pair, served, case)).figure(_difference)
            for name, served in others
        }
        what = f"HTTP: {case.what}, added to the limit's p50"
        return Row(what, "us", taking.figure(_difference), taking.figure(_first), peers, rounds=ROUNDS)

    def _pair(self, served: Served, case: Case) -> tuple[float, float]:
        bare, ours = (self._window(each, case, 1, ALONE).p50 * 1_000 for each in (self._bare, served))
        return bare, ours


def _first(pair: tuple[float, float]) -> float:
    return pair[0]


def _difference(pair: tuple[float, float]) -> float:
    return pair[1] - pair[0]


def main() -> None:
    """Measure everything, on servers that are gone afterwards."""
    subject = Subject("dispatch", "Dispatching requests", notes=NOTES)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="standfast-bench-")))
        for row in Programme(stack, folder).rows():
            subject.add(row)
        finish(subject)


if __name__ == "__main__":
    main()
