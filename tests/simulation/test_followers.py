"""Whoever follows something sees all of it and the end, on every schedule, however slowly it reads."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest

import standfast
from standfast.flows import declaration as declaring
from standfast.flows.events import EventJournal, EventMemory
from standfast.stores.watch import BackendWatch
from standfast.testing import simulate
from standfast.workflows import definition
from tests.simulation.flow_stage import known_signature
from tests.simulation.followers import OF_REQUESTS, OF_THE_REST, Kind, play, play_request
from tests.simulation.mutant_hunt import hunt, replaced
from tests.sizes import rounds

MOST_STEPS: Final = 100_000

FOLLOWERS: Final = {
    # Those that wait for more, and the programs that read by them.
    "flows follow": ("follow_by_handle", "stream_a_request", "call_a_tool"),
    "flows follow_stored": ("follow_by_handle", "stream_a_request", "call_a_tool"),
    "flows EventSource.after": ("follow_by_handle",),
    "flows MemoryEventSource.after": ("follow_by_handle", "stream_a_call"),
    "flows StoredEventSource.after": ("follow_by_handle", "stream_a_request"),
    "flows until_ended": ("wait_by_handle",),
    "flows Handle.events": ("follow_by_handle",),
    "web HandleLike.events": ("follow_by_handle",),
    "web _all": ("stream_a_call", "stream_a_request"),
    "web _written": ("talk_over_events",),
    "web Feed._read_messages": ("talk_over_a_socket", "talk_over_events"),
    "web Conversation.after": ("talk_over_a_socket", "talk_over_events"),
    "web Conversation.watch": ("talk_over_a_socket", "talk_over_events"),
    "workflows Endings.of": ("wait_for_runs",),
    "workflows Endings._follow": ("wait_for_runs",),
    "workflows AnswerWaits._listen": ("wait_for_runs",),
    "cli follow": ("tail_a_run",),
    "cli _follow": ("follow_the_audit",),
    "web Watcher._watch": ("look_at_a_page",),
    "web stream_of.events": ("look_at_a_page",),
    "locks StateEvents.__aiter__": ("follow_a_state",),
    "locks StateEvents.__anext__": ("follow_a_state",),
    "scope Scope.watch": ("watch_a_record",),
}
OTHERS: Final = {
    # Those that read what is there and end.
    "flows Storage._pages": "a page after the other",
    "workflows matching": "a page after the other",
    "workflows _candidates": "a page after the other",
    "workflows _records": "a page after the other",
    "workflows _pages": "a page after the other",
    "workflows oldest_ended": "a page after the other",
    "flows _runs": "a page after the other",
    "locks front_waits": "a page after the other",
    "locks lines": "a page after the other",
    "locks waiters_of": "a page after the other",
    "space Space.lines": "a page after the other",
    # Those that are told what to look at: tests of locks, flows and workers have their own simulations.
    "flows StopMessages.watch": "tests/simulation/test_requests.py",
    "flows SharedArbiter.__aenter__": "tests/simulation/test_requests.py",
    "flows RequestServer.listen": "tests/simulation/test_flows.py",
    "flows reap_lines_forever": "tests/simulation/test_flows.py",
    "locks Lines.listen": "tests/simulation/test_locks.py",
    "locks RateLimiter.acquire": "tests/simulation/test_locks.py",
    "workflows Worker.start": "tests/simulation/test_workflows.py",
    # It draws everything anew before it waits, and by the clock.
    "cli _run": "tests/integration/cli/test_top.py",
    # A blocking face that asks the asynchronous one, in a thread: tests/unit/blocking.
    "blocking Space.watch.make": "tests/unit/blocking",
}
APART: Final = ("stores", "testing")
"""Backends and the test kit have contracts of their own."""


async def _edge_triggered(memory: EventMemory, _: int) -> None:
    """Wait for the next event or the end, whatever came meanwhile."""
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    memory._waiting.append(told)
    try:
        await told
    finally:
        memory._waiting.remove(told)


async def _deaf(watch: BackendWatch, timeout: float | None = None) -> Any:
    """Forget what was heard while nobody waited."""
    watch._notified.clear()
    return await _wait(watch, None if timeout is None else timeout * 1_000)


async def _at_once(journal: EventJournal) -> None:
    """Write the end of a request without its last events."""
    journal._problem = journal._problem or ValueError("it has ended")


_wait: Final = BackendWatch.wait

MUTANTS: Final[dict[str, tuple[Any, str, Any, str]]] = {
    "a follower that waits for the next event": (EventMemory, "beyond", _edge_triggered, "follow_by_handle"),
    "a stream that waits for the next event": (EventMemory, "beyond", _edge_triggered, "stream_a_call"),
    "a tool that waits for the next event": (EventMemory, "beyond", _edge_triggered, "call_a_tool"),
    "a watch that forgets": (BackendWatch, "wait", _deaf, "stream_a_request"),
    "a chat whose watch forgets": (BackendWatch, "wait", _deaf, "talk_over_a_socket"),
    "a stopped request that writes its end first": (EventJournal, "close", _at_once, "follow_by_handle"),
}


def run(seed: int, kind: Kind, name: str) -> None:
    """Let a follower of requests read under one seed."""
    quick = (patch.object(each, "signature_of", known_signature) for each in (definition, declaring))
    with next(quick), next(quick):
        simulate(seed, play_request, seed, kind, name, step_limit=MOST_STEPS)


@pytest.mark.parametrize("kind", ["shared", "local"])
@pytest.mark.parametrize("name", OF_REQUESTS)
def test_a_follower_of_a_request_sees_all_of_it_and_the_end(name: str, kind: Kind) -> None:
    """Whatever is told, and ends, while it is not reading."""
    for seed in rounds(f"seeds of {name}, {kind}", full=2_000, quick=15):
        run(seed, kind, name)


@pytest.mark.parametrize("name", OF_THE_REST)
def test_a_follower_of_runs_and_records_sees_the_last_of_it(name: str) -> None:
    """Whatever is written, and ends, while it is not reading."""
    with patch.object(definition, "signature_of", known_signature):
        for seed in rounds(f"seeds of {name}", full=2_000, quick=15):
            simulate(seed, play, seed, name, step_limit=MOST_STEPS)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_simulation_finds_a_follower_that_misses_something(mutant: str) -> None:
    """Each of these is wrong in one place only."""
    target, attribute, wrong, name = MUTANTS[mutant]
    with replaced([(target, attribute, wrong)]):
        assert hunt(mutant, 500, lambda seed: run(seed, "shared", name))


def test_every_follower_is_in_a_simulation() -> None:
    """What yields asynchronously or watches records is read to its end by a program here, or says why not."""
    root = Path(standfast.__file__).parent
    files = [path for path in root.rglob("*.py") if path.relative_to(root).parts[0] not in APART]
    found = {
        name
        for path in files
        for name in followers_in(path.relative_to(root).with_suffix("").parts[0], path.read_text("utf-8"))
    }

    assert found == FOLLOWERS.keys() | OTHERS.keys()
    assert {name for names in FOLLOWERS.values() for name in names} <= OF_REQUESTS.keys() | OF_THE_REST.keys()


def followers_in(file: str, source: str) -> list[str]:
    """Return the functions of a module that yield asynchronously or watch records, and the iterators."""
    found: list[str] = []
    if not any(word in source for word in ("yield", "watch", "__aiter__", "__anext__", "AsyncIter", "AsyncGen")):
        return found

    def look(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                look(child, name)
                continue
            inner = f"{name}.{child.name}" if name else child.name
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and _is_follower(child):
                found.append(f"{file} {inner}")
            look(child, inner)

    look(ast.parse(source), "")
    return found


def _is_follower(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if function.name in ("__aiter__", "__anext__"):
        return True
    if any("contextmanager" in ast.unparse(each) for each in function.decorator_list):
        return False
    nodes = list(_own_nodes(function))
    if isinstance(function, ast.AsyncFunctionDef) and any(isinstance(each, ast.Yield) for each in nodes):
        return True
    returns = "" if function.returns is None else ast.unparse(function.returns)
    is_watching = any(isinstance(each, ast.Call) and _name(each.func) == "watch" for each in nodes)
    return is_watching or returns.startswith(("AsyncIterator[", "AsyncGenerator["))


def _own_nodes(node: ast.AST) -> list[ast.AST]:
    """Return the nodes of a function without those of functions in it."""
    nodes: list[ast.AST] = []
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            nodes += [child, *_own_nodes(child)]
    return nodes


def _name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else ""
