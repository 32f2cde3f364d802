"""``standfast runs``: start, list, show and follow runs of workflows, and signal them."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, Unpack, cast, get_args

import click
import msgspec
from msgspec import Struct, to_builtins
from msgspec.structs import asdict

import standfast as sf
from standfast.cli.output import json_option, print_json, print_table, terminal_width
from standfast.cli.target import (
    LENGTH,
    MOMENT,
    MOST_COMPLETED,
    NOT_COMPLETED,
    Target,
    carried_out,
    completing,
    key_of,
    target_options,
)
from standfast.clock import MICROSECONDS
from standfast.errors import RunNotFoundError
from standfast.locks.inspect import arguments_of, length, moment, one_line
from standfast.locks.run_locks import RunLockInfo
from standfast.redaction import mask_data, mask_text
from standfast.workflows.catalog import list_declared
from standfast.workflows.failures import failure_lines
from standfast.workflows.queries import HistoryEntry, RunInfo, read_history
from standfast.workflows.records import Status
from standfast.workflows.run_index import RunFilters
from standfast.workflows.timeline import Timeline, timeline_lines

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.workflows.failures import Failure
    from standfast.workflows.queries import Page
    from standfast.workflows.run_index import RunCount


# --- runs and their histories as text and as JSON, without secrets -------------------------------------------------

LONGEST: Final = 300
"""How many characters of a value are printed as text; JSON has all."""

COLOURS: Final = {
    "completed": "green",
    "failed": "red",
    "timed_out": "red",
    "quarantined": "red",
    "cancelled": "yellow",
    "suspended": "blue",
}


def shown(value: object, longest: int = LONGEST) -> str:
    """Return a value as one line of JSON, not too long."""
    text = one_line(msgspec.json.encode(mask_data(value)).decode())
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters; --json shows all)"


def as_data(told: RunInfo | HistoryEntry) -> dict[str, Any]:
    """Return how a run is, or a line of its history, as JSON-shaped data."""
    return {name: mask_data(value) for name, value in asdict(told).items()} | {"failure": failure_data(told.failure)}


def failure_data(failure: Failure | None) -> dict[str, Any] | None:
    """Return what was raised as JSON-shaped data."""
    if failure is None:
        return None
    told = {"type": failure.type, "message": mask_text(failure.message), "trace": failure.trace}
    return told | {"cause": failure_data(failure.cause)}


def status_words(run: RunInfo) -> str:
    """Return how a run is in a few words, what it waits for included."""
    words = run.status.replace("_", " ")
    if run.has_ended or not run.waits_for:
        return words if run.cancel is None else f"{words}: {one_line(mask_text(run.cancel))}"
    waits = f"{words}, waits for {one_line(mask_text(run.waits_for))}"
    return waits if run.until is None else f"{waits}, until {moment(run.until)} at the latest"


def coloured(status: str, words: str) -> str:
    """Return words in the colour of a status."""
    return click.style(words, fg=COLOURS.get(status))


def history_line(entry: HistoryEntry, since: Instant) -> str:
    """Return one line of a history: when after the start, what, and what came of it."""
    when = length(max(0.0, (entry.at - since) / MICROSECONDS))
    line = f"{entry.number:>5}  +{when:<9} {entry.kind:<10} {one_line(entry.id)}"
    if entry.failure is not None:
        return f"{line}  raised {one_line(entry.failure.type)}: {one_line(mask_text(entry.failure.message))}"
    if entry.until is not None:
        line = f"{line}  until {moment(entry.until)}"
    return line if entry.value is None else f"{line}  {shown(entry.value, 120)}"


# --- what all commands on runs share: an engine that drives nothing, the argument, and its completion --------------

F = TypeVar("F", bound="Callable[..., Any]")
T = TypeVar("T")


@asynccontextmanager
async def talking(target: Target, *, looks: bool = False) -> AsyncGenerator[sf.Engine]:
    """Open an engine that drives no runs and only talks to them, or only looks at them."""
    async with target.opened(looks=looks) as space, sf.Engine(space, drive=False) as engine:
        yield engine


def ask_engine(target: Target, work: Callable[[sf.Engine], Awaitable[T]], *, looks: bool = False) -> T:
    """Open an engine that drives no runs, let ``work`` ask it for something, and close it; see :func:`carried_out`."""

    async def ask() -> T:
        async with talking(target, looks=looks) as engine:
            return await work(engine)

    return carried_out(ask())


async def _runs(target: Target) -> list[str]:
    async with talking(target) as engine:
        return [run.id for run in (await engine.list(limit=MOST_COMPLETED * 5, newest_first=True)).runs]


complete_run: Final = completing(_runs)
"""Completes the id of a run, the newest first."""


async def _workflows(target: Target) -> list[str]:
    async with target.opened() as space:
        return [each.name for each in await list_declared(space)]


complete_workflow: Final = completing(_workflows)
"""Completes the name of a workflow that workers have, or had."""


def run_argument(command: F) -> F:
    """Let a command take the id of a run."""
    return click.argument("run_id", metavar="RUN", shell_complete=complete_run)(command)


# --- ``standfast runs list``: which runs there are, and how they are -----------------------------------------------

STATUSES = get_args(Status)

MOST_WORDS: Final = 100
"""How many characters say how a run is in a list."""


def moment_options(command: F) -> F:
    """Let a command choose runs by when they were started and when they ended."""
    for name, text in (
        ("ended-before", "Only runs that ended before this moment."),
        ("ended-after", "Only runs that ended at this moment or later."),
        ("started-before", "Only runs that were started before this moment."),
        ("started-after", "Only runs that were started at this moment or later; '2 hours' is 2 hours ago."),
    ):
        command = click.option(f"--{name}", type=MOMENT, metavar="MOMENT", help=text)(command)
    return command


def filter_options(command: F) -> F:
    """Let a command choose runs, as :meth:`standfast.Engine.list` does."""
    command = click.option("--tag", metavar="TAG", help="Only runs with this tag.")(moment_options(command))
    command = click.option("--parent", metavar="RUN", help="Only the children of this run.")(command)
    statuses = click.Choice(STATUSES)
    command = click.option("--status", multiple=True, type=statuses, help="Only this status; may be repeated.")(command)
    return click.option("--workflow", metavar="NAME", help="Only runs of this workflow.")(command)


def filters_in(options: dict[str, Any]) -> RunFilters:
    """Return what :func:`filter_options` has read."""
    names = RunFilters.__annotations__
    return cast("RunFilters", {name: options[name] for name in names if options[name] not in (None, ())})


@click.command("list")
@filter_options
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many to list.")
@click.option("--after", metavar="PLACE", help="Continue after a page, with the value that it printed.")
@click.option("--newest-first/--oldest-first", default=True, help="Begin with the latest change, or with the earliest.")
@json_option
@target_options
@click.pass_obj
def list_runs(target: Target, /, *, as_json: bool, **options: Any) -> None:  # noqa: ANN401 -- options, as click passes them
    """List and count runs, the last changed first.

    With --started-after or --started-before they are listed by their start.
    """
    filters, place = filters_in(options), {name: options[name] for name in ("limit", "after", "newest_first")}

    async def read(engine: sf.Engine) -> tuple[Page, RunCount]:
        return await engine.list(**place, **filters), await engine.count(**filters)

    page, count = ask_engine(target, read, looks=True)
    if as_json:
        print_json({"runs": [as_data(run) for run in page.runs], "next": page.next, "count": asdict(count)})
    elif page.runs:
        print_table(("RUN", "WORKFLOW", "STARTED", "TOOK", "STATUS"), [_row(run) for run in page.runs])
        if page.next is not None:
            click.echo(f"{len(page.runs):,} of {count}; continue with --after {page.next}")
    else:
        go_on = "" if page.next is None else f" so far; continue with --after {page.next}"
        click.echo(f"there are no such runs{go_on}")


def _row(run: RunInfo) -> tuple[str, ...]:
    name = f"{run.workflow}@{run.version}" if run.version else run.workflow
    took = length(run.seconds) if run.has_ended else ""
    words = status_words(run)
    if run.failure is not None and not (run.status == "cancelled" and run.cancel):  # ``runs show`` has all of it
        kind = run.failure.type.rpartition(".")[2]
        words = f"{words}: {one_line(kind)}: {one_line(mask_text(run.failure.message))}"[:MOST_WORDS]
    return one_line(run.id), one_line(name), moment(run.started_at), took, words


# --- ``standfast runs show``: everything about one run -------------------------------------------------------------

MOST_LINES: Final = 1_000
"""How many lines of locks are searched for what a run holds."""

MOST_CHILDREN: Final = 100

WIDEST: Final = 120
"""How many characters a line of a timeline has where there is no terminal."""


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
    timeline: Timeline


@click.command("show")
@run_argument
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=50,
    show_default=True,
    help="The most entries of its history; the latest are shown.",
)
@json_option
@target_options
@click.pass_obj
def show_run(target: Target, run_id: str, limit: int, *, as_json: bool) -> None:
    """Show everything about RUN. It shows its status, its waits, its locks and its history, and changes nothing."""

    async def read(engine: sf.Engine) -> Shown:
        run, history = await engine.get(run_id), await engine.history(run_id)
        holds, queues = await _places(engine.space, run_id)
        lock = await engine.space.run_locks.get(run.workflow, run_id)
        children, timeline = await _children(engine, history), await engine.timeline(run_id)
        return Shown(run, history, holds, queues, children, lock, timeline)

    told = ask_engine(target, read, looks=True)
    last = told.history[-limit:] if limit else ()
    if as_json:
        print_json(
            {
                "run": as_data(told.run),
                "history": [as_data(entry) for entry in last],
                "more": len(told.history) > limit,
                "holds": told.holds,
                "queues": told.queues,
                "children": [as_data(child) for child in told.children],
                "lock": told.lock,
                "timeline": mask_data(to_builtins(told.timeline)),
            }
        )
        return
    click.echo(coloured(told.run.status, f"{one_line(run_id)}: {status_words(told.run)}"))
    for line in _lines(told):
        click.echo(line)
    number = "1 entry" if len(told.history) == 1 else f"{len(told.history):,} entries"
    click.echo(f"history:  {number}" + (f", the last {len(last)} of them" if len(last) < len(told.history) else ""))
    for entry in last:
        click.echo(history_line(entry, told.run.started_at))


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


def _lines(told: Shown) -> Iterator[str]:
    """Yield everything about a run but its status and its history."""
    run = told.run
    name = f"{run.workflow}@{run.version}" if run.version else run.workflow
    driven = f"driven by worker {one_line(run.owner)}" if run.owner else "not driven now"
    deaths = f"; workers that died with it in a row: {run.deaths}" if run.deaths else ""
    yield f"workflow: {one_line(name)}"
    yield f"started:  {moment(run.started_at)}, last changed {length(run.seconds)} later"
    yield f"taken up: {'once' if run.claims == 1 else f'{run.claims} times'}, {driven}{deaths}"
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
    if told.timeline.spans:
        first, *others = timeline_lines(told.timeline, width=terminal_width() or WIDEST)
        yield f"timeline: {first}"
        yield from (one_line(mask_text(line)) for line in others)


def _belongings(told: Shown) -> Iterator[str]:
    for place in told.holds:
        yield f"holds:    {place.kind} {one_line(place.key)}, fence {place.fence}"
    for place in told.queues:
        yield f"queues:   for {place.kind} {one_line(place.key)}, {place.place} in front"
    for child in told.children:
        yield f"child:    {one_line(child.id)}: {status_words(child)}"


# --- ``standfast runs tail``: follow a run until it has ended ------------------------------------------------------

LOOK_EVERY = 1.0
"""Seconds between two looks if no notification comes earlier."""


@click.command("tail")
@run_argument
@json_option
@target_options
@click.pass_context
def tail_run(context: click.Context, run_id: str, *, as_json: bool) -> None:
    """Print what RUN has done and what it does, until it ends.

    Exits with 0 if it completed and with 5 if it ended otherwise. With --json, one JSON document a line.
    """
    ended = carried_out(follow(context.ensure_object(Target), run_id, as_json=as_json))
    context.exit(0 if ended.status == "completed" else NOT_COMPLETED)


async def follow(target: Target, run_id: str, *, as_json: bool) -> RunInfo:
    """Print what a run has done and what it does; return how it ended."""
    async with talking(target) as engine:
        space, number, said = engine.space, 0, ""
        async with space.watch(space.key("life", run_id), space.key("step", run_id)) as watch:
            while True:
                run = await engine.get(run_id)  # before the history: what it did to get there is then among it
                number += await _tell_history(space, run, number, as_json=as_json)
                if (words := status_words(run)) != said:
                    _tell_status(run, as_json=as_json)
                    said = words
                if run.has_ended:
                    return run
                await watch.wait(LOOK_EVERY)


async def _tell_history(space: sf.Space, run: RunInfo, number: int, *, as_json: bool) -> int:
    """Print what is new in a history; return the number of its entries."""
    entries = await read_history(space, run.id, first=number)
    for entry in entries:
        if as_json:
            click.echo(msgspec.json.encode({"entry": as_data(entry)}).decode())
        else:
            click.echo(history_line(entry, run.started_at))
    return len(entries)


def _tell_status(run: RunInfo, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode({"run": as_data(run)}).decode())
        return
    click.echo(coloured(run.status, status_words(run)))
    if run.status == "completed":
        click.echo(f"result: {shown(run.result)}")
    for line in failure_lines(run.failure) if run.failure is not None else ():
        click.echo(f"  {line}")


# --- ``standfast runs signal``: durable when the command returns --------------------------------------------------


@click.command("signal")
@run_argument
@click.argument("name")
@click.argument("value", metavar="[JSON]", default="null")
@click.option("--text", is_flag=True, help="The value is plain text, not JSON.")
@click.option(
    "--id", "signal_id", metavar="ID", help="A signal that is sent again with the same id is the same signal."
)
@json_option
@target_options
@click.pass_obj
def signal_run(target: Target, /, run_id: str, name: str, value: str, **options: Any) -> None:  # noqa: ANN401 -- options, as click passes them
    """Send the signal NAME to RUN, with a value if one is given. The signal waits until the run takes it."""
    try:
        sent: object = value if options["text"] else msgspec.json.decode(value)
    except msgspec.DecodeError:
        raise click.UsageError(f"The value is not JSON: {value!r:.80}. Plain text needs --text.") from None
    is_new = ask_engine(target, lambda engine: engine.signal(run_id, name, sent, signal_id=options["signal_id"]))
    if options["as_json"]:
        print_json({"run": run_id, "signal": name, "is_new": is_new})
    else:
        words = "is sent to" if is_new else "was sent before to"
        click.echo(f"{one_line(name)} {words} {one_line(run_id)}")


# --- ``standfast runs start``: start a run by the name of its workflow, without its code ---------------------------


class Options(TypedDict):
    """What the command takes besides the name."""

    given: str
    run_id: str | None
    key: str | None
    delay: Duration
    tags: tuple[str, ...]
    unknown: bool
    wait: bool
    as_json: bool


@click.command("start")
@click.argument("name", shell_complete=complete_workflow)
@click.option(
    "--input",
    "given",
    metavar="JSON",
    default="{}",
    help="The arguments: an object by name, or an array by position; - reads them from stdin.",
)
@click.option(
    "--id", "run_id", metavar="ID", help="The id of the run; the same start with the same id is the same run."
)
@click.option("--key", metavar="TEXT", help="An idempotency key: works like an id, where the id does not matter.")
@click.option("--delay", type=LENGTH, default="0s", help='How long to wait before it begins, such as "5 minutes".')
@click.option("--tag", "tags", metavar="WORD", multiple=True, help="A tag to find it by; may be repeated.")
@click.option("--unknown", is_flag=True, help="Start it even if no worker has had this workflow yet.")
@click.option("--wait", is_flag=True, help="Follow the run until it has ended, as tail does.")
@json_option
@target_options
@click.pass_context
def start_run(context: click.Context, /, name: str, **options: Unpack[Options]) -> None:
    """Start a run of the workflow NAME. It is durable when the command returns, and a worker executes it.

    Workers tell the store which workflows they have, so the code is not needed here. With --wait, exits with 0 if the
    run completed and with 5 if it ended otherwise.
    """
    target = context.ensure_object(Target)
    arguments = _parsed_input(sys.stdin.read() if options["given"] == "-" else options["given"])

    async def start(engine: sf.Engine) -> tuple[RunInfo, bool]:
        run = await engine.start(
            name,
            *(arguments if isinstance(arguments, list) else ()),
            kwargs=arguments if isinstance(arguments, dict) else None,
            id=options["run_id"],
            idempotency_key=options["key"],
            delay=options["delay"],
            tags=options["tags"],
            unknown="start" if options["unknown"] else "raise",
        )
        return await run.info(), run.is_new

    info, is_new = ask_engine(target, start)
    _report_start(target, info, is_new=is_new, options=options)
    if options["wait"]:
        ended = asyncio.run(follow(target, info.id, as_json=options["as_json"]))
        context.exit(0 if ended.status == "completed" else NOT_COMPLETED)


def _parsed_input(text: str) -> dict[str, Any] | list[Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any] | list[Any])
    except msgspec.ValidationError:
        problem = f'The input must be an object, {{"name": value}}, or an array, [value]: {text!r:.80}'
        raise click.UsageError(problem) from None
    except msgspec.DecodeError as problem:
        raise click.UsageError(f"The input is not JSON ({problem}): {text!r:.80}") from None


def _report_start(target: Target, info: RunInfo, *, is_new: bool, options: Options) -> None:
    if options["as_json"]:
        told = {"run": as_data(info), "is_new": is_new}
        if options["wait"]:  # one document a line, as those that follow
            click.echo(msgspec.json.encode(told).decode())
        else:
            print_json(told)
        return
    name = one_line(info.id)
    click.echo(f"{name} is started" if is_new else f"{name} was started before: {status_words(info)}")
    if not options["wait"]:
        command = target.command("runs", "tail", *arguments_of(info.id))
        click.echo(click.style(f"follow it with: {command}", dim=True), err=True)


# --- ``standfast runs``: look at the runs of workflows, and talk to them -------------------------------------------


@click.group()
def runs() -> None:
    """Start, list, follow and change runs of workflows."""


for _command in (start_run, list_runs, show_run, tail_run, signal_run):
    runs.add_command(_command)
