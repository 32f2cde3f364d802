"""``standfast runs start``: start a run by the name of its workflow, without its code."""

from __future__ import annotations

import asyncio
import shlex
import sys
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import click
import msgspec

from standfast.cli.exits import NOT_COMPLETED, NOT_THERE, NOT_TYPED, fail
from standfast.cli.printing import json_option, print_json
from standfast.cli.runs_showing import as_data, status_words
from standfast.cli.runs_tail import follow
from standfast.cli.runs_target import talking
from standfast.cli.targets import Target, target_options
from standfast.errors import InvalidDurationError, InvalidWorkflowError, UnknownWorkflowError, WrongArgumentsError
from standfast.locks.explaining.explanation import one_line

if TYPE_CHECKING:
    from standfast.workflows.operating.information import RunInfo


class Options(TypedDict):
    """What the command takes besides the name."""

    given: str
    run_id: str | None
    key: str | None
    delay: str
    tags: tuple[str, ...]
    unknown: bool
    wait: bool
    as_json: bool


@click.command("start")
@click.argument("name")
@click.option(
    "--input",
    "given",
    metavar="JSON",
    default="{}",
    help="The arguments: an object by name, or an array by place; - reads it from stdin.",
)
@click.option("--id", "run_id", metavar="ID", help="The run's id; the same start with the same id is the same run.")
@click.option("--key", metavar="TEXT", help="An idempotency key: like an id, for a run whose id does not matter.")
@click.option("--delay", metavar="DURATION", default="0s", help='How long to wait before it begins, like "5 minutes".')
@click.option("--tag", "tags", metavar="WORD", multiple=True, help="A word to find it by; may be repeated.")
@click.option("--unknown", is_flag=True, help="Start it also if no worker has had such a workflow yet.")
@click.option("--wait", is_flag=True, help="Follow the run until it has ended, as tail does.")
@json_option
@target_options
@click.pass_context
def start_run(context: click.Context, /, name: str, **options: Unpack[Options]) -> None:
    """Start a run of the workflow NAME. It is durable when the command returns, and a worker takes it up.

    Workers tell the store which workflows they have, so the code is not needed here. With --wait, exits with 0 if the
    run completed and with 5 if it ended otherwise.
    """
    target = context.ensure_object(Target)
    arguments = _parsed(sys.stdin.read() if options["given"] == "-" else options["given"])
    try:
        info, is_new = asyncio.run(_start(target, name, arguments, options))
    except UnknownWorkflowError as problem:
        fail(problem, NOT_THERE)
    except (WrongArgumentsError, InvalidWorkflowError, InvalidDurationError) as problem:
        fail(problem, NOT_TYPED)
    _report(target, info, is_new=is_new, options=options)
    if options["wait"]:
        ended = asyncio.run(follow(target, info.id, as_json=options["as_json"]))
        context.exit(0 if ended.status == "completed" else NOT_COMPLETED)


def _parsed(text: str) -> dict[str, Any] | list[Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any] | list[Any])
    except msgspec.ValidationError:
        problem = f'The input must be an object, {{"name": value}}, or an array, [value]: {text!r:.80}'
        raise click.UsageError(problem) from None
    except msgspec.DecodeError as problem:
        raise click.UsageError(f"The input is not JSON ({problem}): {text!r:.80}") from None


async def _start(
    target: Target, name: str, arguments: dict[str, Any] | list[Any], options: Options
) -> tuple[RunInfo, bool]:
    async with talking(target) as engine:
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


def _report(target: Target, info: RunInfo, *, is_new: bool, options: Options) -> None:
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
        named = [("--namespace", target.namespace), ("--tenant", target.tenant)]
        where = [word for option, value in named if value != "default" for word in (option, value)]
        command = shlex.join(["standfast", "runs", "tail", *where, info.id])
        click.echo(click.style(f"follow it with: {one_line(command)}", dim=True), err=True)
