"""``standfast runs cancel``, ``retry`` and ``purge``: one run by its id, or in bulk all runs that a filter chooses.

In bulk the runs are counted first, up to a bound, and some of them are named. Then the operator confirms. Each run is
changed on its own: one that cannot be changed does not stop the others, and is reported at the end.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

import click

from standfast.cli.output import json_option, print_json
from standfast.cli.runs import (
    as_data,
    ask_engine,
    complete_run,
    complete_workflow,
    moment_options,
    runs,
    status_words,
    talking,
)
from standfast.cli.target import (
    INTERRUPTED,
    NOT_THERE,
    PARTLY_DONE,
    Target,
    asked,
    carried_out,
    confirm,
    end,
    target_options,
    yes_option,
)
from standfast.clock import monotonic
from standfast.flows.bulk import COUNTED, SHOWN, Bulk, Changed, cancel_many, change_all, purge_many, retry_many
from standfast.flows.view import is_over, note_operator
from standfast.locks.inspect import arguments_of, one_line
from standfast.workflows.records import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    import standfast as sf
    from standfast.workflows.queries import RunInfo
    from standfast.workflows.run_index import RunCount

F = TypeVar("F", bound="Callable[..., Any]")

STATUSES: Final = get_args(Status)
FILTERS: Final = ("workflow", "tag", "started_after", "started_before", "ended_after", "ended_before")
TOLD_EVERY: Final = 5.0
"""Seconds between two lines of progress where there is no terminal."""

TOLD: Final = 20
"""How many failures are printed as text; JSON has all."""


def filter_options(command: F) -> F:
    """Let a command on one run take many by a filter, with a dry run and a question."""
    command = click.option("--dry-run", is_flag=True, help="Only print how many runs are meant, and name some.")(
        command
    )
    command = click.option("--tag", metavar="TAG", help="Only runs with this tag.")(moment_options(command))
    text = "Only runs of this workflow."
    command = click.option("--workflow", metavar="NAME", help=text, shell_complete=complete_workflow)(command)
    text = "All runs with this status; may be repeated."
    return click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES), help=text)(command)


def is_bulk(run_id: str | None, options: dict[str, Any]) -> bool:
    """Return True if runs are chosen by a filter, and not by an id; refuse both, and neither."""
    said = [name for name in ("statuses", *FILTERS) if options[name]]
    if run_id is not None and said:
        raise click.UsageError("Name one run, or say which runs are meant by options, not both.")
    if run_id is None and not said:
        words = "Name a run, or say which runs are meant: --status, --workflow, --tag, --started-before and others."
        raise click.UsageError(words)
    return run_id is None


def carry_out(target: Target, bulk: Bulk, options: dict[str, Any]) -> None:
    """Count the runs that are meant, ask, change them, and end with an exit code that says how that went."""
    statuses = frozenset(options["statuses"]) or bulk.statuses
    if vain := statuses - bulk.statuses:
        raise click.UsageError(f"Runs that are {', '.join(sorted(vain))} cannot be {bulk.done}.")
    chosen: dict[str, Any] = {name: options[name] for name in FILTERS if options[name] is not None}
    chosen["status"] = statuses

    async def look(engine: sf.Engine) -> tuple[RunCount, tuple[RunInfo, ...]]:
        count = await engine.count(**chosen, most=COUNTED)
        return count, (await engine.list(**chosen, limit=SHOWN)).runs

    count, first = ask_engine(target, look)
    if options["dry_run"] and options["as_json"]:
        facts = {"count": count.number, "has_more": count.has_more, "first": [run.id for run in first]}
        print_json({**facts, "dry_run": True})
        return
    if options["dry_run"]:
        click.echo(f"would {bulk.verb} {_some(str(count))}; nothing was done")
        for line in _lines(count, first):
            click.echo(line)
        return
    if not count.number:
        end(f"there are no runs to {bulk.verb} that are so", NOT_THERE)
    _ask(bulk, count, first, yes=options["yes"])
    changed = Changed(failed={})
    try:
        carried_out(_change_all(target, bulk, chosen, count, changed))
    except _InterruptedByUserError:
        advice = "The others are unchanged. To continue, give the same command again."
        end(f"interrupted: {bulk.told(f'{changed.done:,} of {_some(str(count))}')}", INTERRUPTED, advice)
    _report(bulk, changed, as_json=options["as_json"])


def _some(number: str) -> str:
    return "1 run" if number == "1" else f"{number} runs"


def _lines(count: RunCount, first: tuple[RunInfo, ...]) -> list[str]:
    lines = [f"  {one_line(run.id)}  {one_line(run.workflow)}  {status_words(run)}" for run in first]
    return [*lines, "  ..."] if count.has_more or count.number > len(first) else lines


def _ask(bulk: Bulk, count: RunCount, first: tuple[RunInfo, ...], *, yes: bool) -> None:
    """Let the number of runs be typed, so that it is read."""
    if yes:
        return
    question = f"To {bulk.verb} {_some(str(count))}, type {count.number}"

    def ask() -> str:
        for line in _lines(count, first):
            click.echo(line, err=True)
        typed: str = click.prompt(question, default="", show_default=False, err=True)
        return typed

    if asked(ask).replace(",", "").rstrip("+") != str(count.number):
        end("nothing was done")


class _InterruptedByUserError(Exception):
    """Ctrl-C was typed; what was under way by then has been done."""


async def _change_all(target: Target, bulk: Bulk, chosen: dict[str, Any], count: RunCount, changed: Changed) -> None:
    """Change each run, and write the progress to stderr: a terminal sees every run, a file a line now and then."""
    is_terminal, has_told, told_at, is_interrupted = sys.stderr.isatty(), False, monotonic(), False

    def interrupt() -> None:
        nonlocal is_interrupted
        is_interrupted = True

    def after_each() -> None:
        nonlocal has_told, told_at
        failures = f", {len(changed.failed):,} failed" if changed.failed else ""
        progress = f"{bulk.told(f'{changed.done:,} of {_some(str(count))}')}{failures}"
        if is_terminal:
            click.echo(f"\r{progress}", nl=False, err=True)
            has_told = True
        elif monotonic() - told_at >= TOLD_EVERY:
            click.echo(progress, err=True)
            told_at = monotonic()
        if is_interrupted:
            raise _InterruptedByUserError

    async with talking(target) as engine:
        with suppress(NotImplementedError, RuntimeError, ValueError):  # only the main thread hears signals
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupt)
        try:
            await change_all(engine, bulk, chosen, changed, after_each)
        finally:
            if has_told:
                click.echo(err=True)


def _report(bulk: Bulk, changed: Changed, *, as_json: bool) -> None:
    if as_json:
        print_json({"done": changed.done, "failed": changed.failed})
    else:
        click.echo(bulk.told(_some(f"{changed.done:,}")))
        for run_id, problem in list(changed.failed.items())[:TOLD]:
            click.echo(f"  not {one_line(run_id)}: {one_line(problem)}", err=True)
        if len(changed.failed) > TOLD:
            click.echo(f"  and {len(changed.failed) - TOLD:,} more were not", err=True)
    if changed.failed:
        raise click.exceptions.Exit(PARTLY_DONE)


# --- ``standfast runs cancel`` -------------------------------------------------------------------------------------

_run = click.argument("run_id", metavar="[RUN]", required=False, shell_complete=complete_run)


@click.command("cancel")
@_run
@filter_options
@click.option(
    "--reason", metavar="TEXT", default="an operator asked for it", show_default=True, help="Why, for the record."
)
@click.option("--force", is_flag=True, help="End it at once, without its code: nothing is cleaned up.")
@yes_option
@json_option
@target_options
@click.pass_obj
def cancel_run(target: Target, /, run_id: str | None, reason: str, *, force: bool, **options: Any) -> None:  # noqa: ANN401 -- options, as click passes them
    """Ask RUN to stop, or all runs that a filter chooses. Children are cancelled too.

    The code of a run is cancelled where it waits. The command returns when that is recorded; to see the run end, use
    tail. A run whose code no worker has, or whose input its code does not take, cannot be asked: end it with --force.
    """
    if is_bulk(run_id, options):
        carry_out(target, cancel_many(reason, force=force), options)
        return
    run_id = run_id or ""
    name = one_line(run_id)
    confirm(f"{'End' if force else 'Cancel'} the run {name}?", yes=options["yes"])

    async def cancel(engine: sf.Engine) -> tuple[RunInfo, RunInfo]:
        before = await engine.get(run_id)
        await note_operator(engine.space, run_id, before.tags)
        return before, await engine.cancel(run_id, reason, force=force)

    before, after = ask_engine(target, cancel)
    if before.has_ended:
        end(f"the run {name} has ended already: {status_words(before)}", NOT_THERE)
    said = "has been ended" if force else "is asked to stop"
    _tell(f"{name} {said}: {one_line(reason)}", after, options)


def _tell(words: str, info: RunInfo, options: dict[str, Any]) -> None:
    if options["as_json"]:
        print_json({"run": as_data(info)})
    else:
        click.echo(words)


# --- ``standfast runs retry`` --------------------------------------------------------------------------------------


@click.command("retry")
@_run
@filter_options
@click.option("--step", metavar="ID", help="Resume from this step instead of the one that failed.")
@yes_option
@json_option
@target_options
@click.pass_obj
def retry_run(target: Target, /, run_id: str | None, step: str | None, **options: Any) -> None:  # noqa: ANN401 -- options, as click passes them
    """Resume RUN, or all runs that a filter chooses.

    It failed, was cancelled, timed out or is quarantined. What it has recorded is not executed again: it resumes with
    the step that failed. The run of a request that has ended is not resumed, since its caller has the outcome:
    send the request again.
    """
    if is_bulk(run_id, options):
        carry_out(target, retry_many(step=step), options)
        return
    run_id = run_id or ""
    name = one_line(run_id)
    confirm(f"Resume the run {name}?", yes=options["yes"])

    async def retry(engine: sf.Engine) -> tuple[RunInfo, RunInfo]:
        before = await engine.get(run_id)
        if before.has_ended and await is_over(engine.space, run_id, before.tags):
            words = f"the run {name} is that of a request, which has ended: {status_words(before)}"
            end(words, NOT_THERE, "Its caller has the answer. Send the request again.")
        if before.status == "completed":
            again = target.command("runs", "start", "--input", "JSON", *arguments_of(before.workflow))
            advice = f"To run the workflow once more, start a new run: {again}"
            end(f"the run {name} has completed, so there is nothing to retry", NOT_THERE, advice)
        return before, await engine.retry(run_id, step=step)

    before, after = ask_engine(target, retry)
    if not before.has_ended and before.status != "quarantined":
        end(f"the run {name} has not ended: {status_words(before)}", NOT_THERE)
    _tell(f"{name} resumes as soon as a worker claims it", after, options)


# --- ``standfast runs purge`` --------------------------------------------------------------------------------------


@click.command("purge")
@_run
@filter_options
@click.option("--force", is_flag=True, help="Also if it has not ended: it is cancelled by force first.")
@yes_option
@json_option
@target_options
@click.pass_obj
def purge_run(target: Target, /, run_id: str | None, *, force: bool, **options: Any) -> None:  # noqa: ANN401 -- options, as click passes them
    """Delete RUN, or all runs that a filter chooses.

    It must have ended, and everything that it has started is deleted, too. Only its idempotency key remains, so that
    what was done once is not done again. It cannot be undone.
    """
    if is_bulk(run_id, options):
        carry_out(target, purge_many(force=force), options)
        return
    name = one_line(run_id or "")
    confirm(f"Delete the run {name} with everything that it has started?", yes=options["yes"])
    purged = ask_engine(target, lambda engine: engine.purge(run_id or "", force=force))
    if options["as_json"]:
        print_json({"run": run_id, "purged": purged})
    else:
        click.echo(f"purged {name}: {purged:,} {'run' if purged == 1 else 'runs'}")


for _command in (cancel_run, retry_run, purge_run):
    runs.add_command(_command)
