"""``standfast runs cancel``, ``retry`` and ``signal``: durable when the command returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from standfast.cli.asking import confirm, yes_option
from standfast.cli.exits import NOT_THERE, end
from standfast.cli.printing import json_option, print_json
from standfast.cli.runs_showing import as_data, status_words
from standfast.cli.runs_target import carried_out, run_argument, talking
from standfast.cli.targets import Target, target_options
from standfast.flows.cancelling import note_operator
from standfast.flows.viewing import is_over
from standfast.locks.explaining.explanation import one_line

if TYPE_CHECKING:
    from standfast.workflows.operating.information import RunInfo


@click.command("cancel")
@run_argument
@click.option("--reason", metavar="TEXT", default="an operator asked for it", show_default=True, help="Why.")
@click.option("--force", is_flag=True, help="End it at once, without its code: nothing is cleaned up.")
@yes_option
@json_option
@target_options
@click.pass_obj
def cancel_run(target: Target, run_id: str, reason: str, *, force: bool, yes: bool, as_json: bool) -> None:
    """Ask RUN to stop: its code is told where it waits, and may clean up. Its children are cancelled too.

    It returns when that is written. To see the run end, use tail. A run whose code is not there, or does not take its
    input, is told nothing: end it with --force.
    """
    confirm(f"{'End' if force else 'Cancel'} the run {one_line(run_id)}?", yes=yes)
    before, after = carried_out(_cancel(target, run_id, reason, force=force))
    if before.has_ended:
        end(f"the run {one_line(run_id)} has ended already: {status_words(before)}", NOT_THERE)
    said = "has been ended" if force else "is asked to stop"
    _report(f"{one_line(run_id)} {said}: {one_line(reason)}", after, as_json=as_json)


async def _cancel(target: Target, run_id: str, reason: str, *, force: bool) -> tuple[RunInfo, RunInfo]:
    async with talking(target) as engine:
        before = await engine.get(run_id)
        await note_operator(engine.space, run_id, before.tags)
        return before, await engine.cancel(run_id, reason, force=force)


@click.command("retry")
@run_argument
@click.option("--step", metavar="ID", help="Go on from this step, in place of the one that failed.")
@yes_option
@json_option
@target_options
@click.pass_obj
def retry_run(target: Target, run_id: str, step: str | None, *, yes: bool, as_json: bool) -> None:
    """Let RUN go on that failed, was cancelled, has timed out, or is quarantined.

    What it has recorded is not done again: it goes on with the step that failed. A request that has ended stays as it
    is, since its caller was told: send it again.
    """
    confirm(f"Let the run {one_line(run_id)} go on?", yes=yes)
    before, after = carried_out(_retry(target, run_id, step))
    if not before.has_ended and before.status != "quarantined":
        end(f"the run {one_line(run_id)} has not ended: {status_words(before)}", NOT_THERE)
    _report(f"{one_line(run_id)} goes on as soon as a worker takes it up", after, as_json=as_json)


async def _retry(target: Target, run_id: str, step: str | None) -> tuple[RunInfo, RunInfo]:
    async with talking(target) as engine:
        before = await engine.get(run_id)
        if before.has_ended and await is_over(engine.space, run_id, before.tags):
            words = f"the run {one_line(run_id)} is that of a request, which has ended: {status_words(before)}"
            end(words, NOT_THERE, "Whoever waited for it has been told so. Send the request again.")
        return before, await engine.retry(run_id, step=step)


@click.command("signal")
@run_argument
@click.argument("name")
@click.argument("value", metavar="[JSON]", default="null")
@click.option("--text", is_flag=True, help="The value is plain text, not JSON.")
@click.option("--id", "signal_id", metavar="ID", help="Sent again with the same id, it is the same signal.")
@json_option
@target_options
@click.pass_obj
def signal_run(target: Target, /, run_id: str, name: str, value: str, **options: Any) -> None:  # noqa: ANN401 -- options, as click passes them
    """Send the signal NAME to RUN, with a value if there is one. It waits until the run takes it."""
    sent = value if options["text"] else _parsed(value)
    is_new = carried_out(_signal(target, run_id, name, sent, options["signal_id"]))
    if options["as_json"]:
        print_json({"run": run_id, "signal": name, "is_new": is_new})
    else:
        words = "is sent to" if is_new else "was sent before to"
        click.echo(f"{one_line(name)} {words} {one_line(run_id)}")


def _parsed(value: str) -> object:
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        raise click.UsageError(f"The value is not JSON: {value!r:.80}. Plain text needs --text.") from None


async def _signal(target: Target, run_id: str, name: str, value: object, signal_id: str | None) -> bool:
    async with talking(target) as engine:
        return await engine.signal(run_id, name, value, signal_id=signal_id)


def _report(words: str, info: RunInfo, *, as_json: bool) -> None:
    if as_json:
        print_json({"run": as_data(info)})
    else:
        click.echo(words)
