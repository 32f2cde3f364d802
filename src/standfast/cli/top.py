"""``standfast top``: one screen of everything, live in the terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click

from standfast.cli.output import json_option, print_json
from standfast.cli.runs import COLOURS, talking
from standfast.cli.status import UNFINISHED, as_data, command_of, look, threshold_options
from standfast.cli.target import NOT_LOADED, Target, carried_out, end, target_options
from standfast.errors import StoreError
from standfast.locks.inspect import length, moment, one_line
from standfast.redaction import mask_text

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from rich.console import Console, RenderableType

    import standfast as sf
    from standfast.durations import Duration
    from standfast.stores.protocol import Watch
    from standfast.workflows.overview import Overview

FASTEST: Final = 0.5
"""Seconds between two looks at least, however much happens."""

SLOWEST: Final = 2.0
"""Seconds between two looks at most, also if nothing happens: what is shown grows old."""

TIMES: Final = 20
"""A look may take no more than this part of the time: on a large or slow store there are fewer of them."""

MOST_WORKERS: Final = 10
CUT: Final = ("WORKFLOWS", "WORKER")
"""Columns that are cut first."""

ENDED: Final = ("completed", "failed", "timed_out", "cancelled")
WATCHED: Final = ("ready", "runs", "worker", "line", "schedule")
QUITS: Final = (b"q", b"Q", b"\x03")


@click.command()
@click.option("--once", is_flag=True, help="Print one screen, and exit.")
@threshold_options
@json_option
@target_options
@click.pass_obj
def top(target: Target, lately: Duration, patience: Duration, *, once: bool, as_json: bool) -> None:
    """Show workers, runs, lines and problems, live. Quit with q or Ctrl-C. It changes nothing.

    The screen is updated when something happens, at most twice a second. --json prints one document, as status does.
    """
    try:
        from rich.console import Console  # noqa: PLC0415 -- comes with an extra
    except ModuleNotFoundError:
        advice = "Install it with: pip install 'standfast[top]'. Without it, standfast status shows the same once."
        end("top needs the package rich, which is not installed", NOT_LOADED, advice)
    if sys.stdin.isatty():  # the window counts, also after it was made smaller, not what an environment said of another
        os.environ.pop("COLUMNS", None)
        os.environ.pop("LINES", None)
    console = Console(highlight=False)
    if not once and not as_json and not (console.is_terminal and sys.stdin.isatty()):
        raise click.UsageError("There is no terminal to draw on; --once prints one screen.")
    with suppress(KeyboardInterrupt):
        carried_out(_run(target, (lately, patience), console, once=once, as_json=as_json))


async def _run(
    target: Target, looks: tuple[Duration, Duration], console: Console, *, once: bool, as_json: bool
) -> None:
    async with talking(target, looks=once or as_json) as engine:
        if once or as_json:
            seen = await look(engine, target, *looks)
            if as_json:
                print_json(as_data(seen))
            else:
                console.print(drawn(seen, target))
            return
        async with engine.space.watch(*(engine.space.key(kind) for kind in WATCHED)) as watch:
            await _live(target, looks, console, engine, watch)


async def _live(
    target: Target, looks: tuple[Duration, Duration], console: Console, engine: sf.Engine, watch: Watch
) -> None:
    from rich.live import Live  # noqa: PLC0415 -- comes with an extra

    time, quits = asyncio.get_running_loop().time, asyncio.Event()
    with _keys(quits.set), Live(console=console, screen=True, auto_refresh=False) as live:
        while not quits.is_set():
            began = time()
            try:
                shown: RenderableType = drawn(await look(engine, target, *looks), target)
            except StoreError as problem:  # it may come back
                shown = f"the store does not answer: {one_line(mask_text(str(problem)))}"
            live.update(shown, refresh=True)
            took = time() - began
            await _pause(quits, watch, max(FASTEST, took * TIMES / (TIMES - 1)), max(SLOWEST, took * TIMES))


async def _pause(quits: asyncio.Event, watch: Watch, least: float, most: float) -> None:
    """Wait until something has happened, but not too long, and not too short; or until it is to end."""
    with suppress(TimeoutError):
        async with asyncio.timeout(least):
            await quits.wait()
    if quits.is_set():
        return
    changed, quitting = asyncio.ensure_future(watch.wait(most - least)), asyncio.ensure_future(quits.wait())
    try:
        await asyncio.wait({changed, quitting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (changed, quitting):
            task.cancel()
        await asyncio.gather(changed, quitting, return_exceptions=True)


@contextmanager
def _keys(quit_now: Callable[[], None]) -> Generator[None]:
    """Read single keys while the block runs."""
    import termios  # noqa: PLC0415 -- there is none on Windows
    import tty  # noqa: PLC0415 -- there is none on Windows

    file, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(file)

    def read() -> None:
        keys = os.read(file, 64)
        if not keys or any(key in keys for key in QUITS):
            quit_now()

    tty.setcbreak(file)
    loop.add_reader(file, read)
    try:
        yield
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)


# --- drawing ---------------------------------------------------------------------------------------------------------


def drawn(seen: Overview, target: Target) -> RenderableType:
    """Return one screen. What does not fit into the width of the terminal is cut, not folded."""
    from rich.console import Group  # noqa: PLC0415 -- comes with an extra
    from rich.text import Text  # noqa: PLC0415 -- comes with an extra

    store = seen.store
    head = Text(no_wrap=True, overflow="ellipsis")
    head.append("standfast top", style="bold")
    head.append(f"  {moment(seen.at)}  round trip {store.round_trip * 1000:.3g} ms", style="dim")
    head.append(f"  {one_line(seen.namespace)}/{one_line(seen.tenant)} of {one_line(store.address)}")
    parts: list[RenderableType] = [head, *_runs(seen), *_concerns(seen, target), _workers(seen)]
    if seen.lines:
        parts.append(_lines(seen))
    parts.append(Text("q quits", style="dim"))
    return Group(*parts)


def _runs(seen: Overview) -> list[RenderableType]:
    from rich.text import Text  # noqa: PLC0415 -- comes with an extra

    rows: list[RenderableType] = []
    rate = f"{seen.ended} in the last minute, {seen.ended.number / 60:.3g} a second"
    for title, statuses, more in (("runs ", UNFINISHED, f"{seen.ready} ready"), ("ended", ENDED, rate)):
        row = Text(no_wrap=True, overflow="ellipsis")
        row.append(f"{title}  ", style="bold")
        for status in statuses:
            count = seen.runs[status]
            style = COLOURS.get(status, "") if count.number else "dim"
            row.append(f"{count} {status.replace('_', ' ')}  ", style=style)
        row.append(more)
        rows.append(row)
    return rows


def _concerns(seen: Overview, target: Target) -> list[RenderableType]:
    from rich.text import Text  # noqa: PLC0415 -- comes with an extra

    if not seen.concerns:
        return [Text("nothing needs a person", style="green")]
    lines: list[RenderableType] = [Text("needs a person", style="bold red")]
    for concern in seen.concerns:
        line = Text(f"  {concern.words}", style="red", no_wrap=True, overflow="ellipsis")
        lines.append(line)
        if concern.command:
            lines.append(Text(f"    {command_of(concern, target)}", style="dim", no_wrap=True, overflow="ellipsis"))
    return lines


def _workers(seen: Overview) -> RenderableType:
    from rich.table import Table  # noqa: PLC0415 -- comes with an extra

    table = Table(box=None, expand=False, pad_edge=False)
    for title in ("HOST", "PROCESS", "HEARD", "RUNS", "WORKFLOWS", "WORKER"):
        table.add_column(title, no_wrap=True, overflow="ellipsis", min_width=None if title in CUT else 7)
    busiest = sorted(seen.workers, key=lambda worker: (worker.is_alive, -worker.runs))
    for worker in busiest[:MOST_WORKERS]:
        silent_for = "dead" if worker.silent_for is None else length(worker.silent_for)
        names = ", ".join(f"{name}@{version}" if version else name for name, version in worker.workflows)
        runs = f"{worker.runs:,}{'+' if worker.more else ''}"
        facts = (worker.host, str(worker.process), silent_for, runs, names, worker.id)
        table.add_row(*map(one_line, facts), style="" if worker.is_alive else "red")
    left_out = len(seen.workers) - MOST_WORKERS
    if left_out > 0:
        table.add_row(f"and {left_out:,} more")
    if not seen.workers:
        table.add_row("none")
    return table


def _lines(seen: Overview) -> RenderableType:
    from rich.table import Table  # noqa: PLC0415 -- comes with an extra

    table = Table(box=None, expand=False, pad_edge=False)
    for title in ("LINE", "KIND", "HELD BY", "HELD FOR", "WAITING", "OLDEST WAIT"):
        table.add_column(title, no_wrap=True, overflow="ellipsis")
    for line in seen.lines:
        held = "" if line.held_for is None else length(line.held_for)
        facts = (line.key, line.kind, line.holder, held, f"{line.waiting:,}", length(line.waited or 0.0))
        table.add_row(*map(one_line, facts))
    return table
