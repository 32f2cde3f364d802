"""``standfast runs show``: everything about one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Struct

from standfast.cli.naming import key_of
from standfast.cli.printing import json_option, print_json
from standfast.cli.runs_showing import as_data, coloured, history_line, shown, status_words
from standfast.cli.runs_target import carried_out, run_argument, talking
from standfast.cli.targets import Target, target_options
from standfast.errors import RunNotFoundError
from standfast.locks.explaining.explanation import length, moment, one_line
from standfast.locks.runs.run_line import RunLockInfo
from standfast.workflows.operating.information import HistoryEntry, RunInfo
from standfast.workflows.storing.failure_log import failure_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    import standfast as sf

MOST_LINES: Final = 1_000
"""How many lines of locks are looked through for what a run holds."""

MOST_CHILDREN: Final = 100


class Place(Struct, frozen=True):
    """A place of a run in the line of a lock."""

    key: str
    kind: str
    entry: str
    fence: int | None = None
    place: int | None = None


class Shown(Struct, frozen=True):
    """What is shown of a run."""

    run: RunInfo
    history: tuple[HistoryEntry, ...]
    holds: list[Place]
    queues: list[Place]
    children: list[RunInfo]
    lock: RunLockInfo | None


@click.command("show")
@run_argument
@click.option("--limit", type=click.IntRange(0), default=50, show_default=True, help="Lines of history, the last ones.")
@json_option
@target_options
@click.pass_obj
def show_run(target: Target, run_id: str, limit: int, *, as_json: bool) -> None:
    """Show everything about RUN: how it is, what it waits for, holds and has done. Nothing is changed by looking."""
    told = carried_out(_read(target, run_id))
    if as_json:
        print_json(_data(told, limit))
        return
    click.echo(coloured(told.run.status, f"{one_line(run_id)}: {status_words(told.run)}"))
    for line in _lines(told, limit):
        click.echo(line)


async def _read(target: Target, run_id: str) -> Shown:
    async with talking(target) as engine:
        run, history = await engine.get(run_id), await engine.history(run_id)
        holds, queues = await _places(engine.space, run_id)
        lock = await engine.space.run_locks.get(run.workflow, run_id)
        return Shown(run, history, holds, queues, await _children(engine, history), lock)


async def _places(space: sf.Space, run_id: str) -> tuple[list[Place], list[Place]]:
    """Return what a run holds, and what it waits for, in the lines of locks."""
    holds: list[Place] = []
    queues: list[Place] = []
    number = 0
    async for line in space.lines():
        number += 1
        if number > MOST_LINES:
            break
        told = await space.explain(key_of(line.parts, line.family or None))
        holds += [
            Place(told.key, told.kind, each.entry, fence=each.fence) for each in told.holders if each.run == run_id
        ]
        queues += [
            Place(told.key, told.kind, each.entry, place=each.place) for each in told.waiters if each.run == run_id
        ]
    return holds, queues


async def _children(engine: sf.Engine, history: tuple[HistoryEntry, ...]) -> list[RunInfo]:
    names = [entry.value for entry in history if entry.kind == "child" and isinstance(entry.value, str)]
    found: list[RunInfo] = []
    for name in names[:MOST_CHILDREN]:
        try:
            found.append(await engine.get(name))
        except RunNotFoundError:  # it was purged
            continue
    return found


def _data(told: Shown, limit: int) -> dict[str, Any]:
    entries = told.history[-limit:] if limit else ()
    return {
        "run": as_data(told.run),
        "history": [as_data(entry) for entry in entries],
        "more": len(told.history) > limit,
        "holds": told.holds,
        "queues": told.queues,
        "children": [as_data(child) for child in told.children],
        "lock": told.lock,
    }


def _lines(told: Shown, limit: int) -> Iterator[str]:
    run = told.run
    name = f"{run.workflow}@{run.version}" if run.version else run.workflow
    yield f"workflow: {one_line(name)}"
    yield f"started:  {moment(run.started_at)}, last changed {length(run.seconds)} later"
    yield f"taken up: {'once' if run.claims == 1 else f'{run.claims} times'}, {_owner(run)}"
    if told.lock is not None and not told.lock.worker:
        yield f"run lock: held by {one_line(told.lock.holder)} until {moment(told.lock.expires_at)}"
    for title, value in (("input:   ", run.input), ("progress:", run.progress), ("result:  ", run.result)):
        if value is not None:
            yield f"{title} {shown(value)}"
    for title, names in (("parent:  ", (run.parent,)), ("tags:    ", run.tags), ("limits:  ", run.lines)):
        if any(names):
            yield f"{title} {', '.join(map(one_line, names))}"
    if run.failure is not None:
        yield click.style("raised:", fg="red")
        yield from (f"  {line}" for line in failure_lines(run.failure))
    yield from _belongings(told)
    yield from _history(told, limit)


def _owner(run: RunInfo) -> str:
    deaths = f"; workers that died with it in a row: {run.deaths}" if run.deaths else ""
    return (f"driven by worker {one_line(run.owner)}" if run.owner else "driven by nobody now") + deaths


def _belongings(told: Shown) -> Iterator[str]:
    for place in told.holds:
        yield f"holds:    {place.kind} {one_line(place.key)}, fence {place.fence}"
    for place in told.queues:
        yield f"queues:   for {place.kind} {one_line(place.key)}, {place.place} in front"
    for child in told.children:
        yield f"child:    {one_line(child.id)}: {status_words(child)}"


def _history(told: Shown, limit: int) -> Iterator[str]:
    entries = told.history[-limit:] if limit else ()
    left_out = len(told.history) - len(entries)
    number = "1 entry" if len(told.history) == 1 else f"{len(told.history):,} entries"
    yield f"history:  {number}" + (f", the last {len(entries)} of them" if left_out else "")
    yield from (history_line(entry, told.run.started_at) for entry in entries)
