"""What ``standfast runs`` does to runs besides looking: query, update, restart, fork, resume, purge and erase them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from standfast.cli import bulk as bulk  # noqa: PLC0414 -- it adds its commands to ``runs``
from standfast.cli.output import json_option, print_json
from standfast.cli.runs import (
    as_data,
    ask_engine,
    run_argument,
    runs,
    shown,
    status_words,
)
from standfast.cli.target import (
    LENGTH,
    NOT_THERE,
    Target,
    carried_out,
    confirm,
    load,
    made,
    target_options,
    yes_option,
)
from standfast.cli.worker import ENGINE
from standfast.locks.inspect import counted, one_line
from standfast.redaction import mask_data

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import standfast as sf
    from standfast.workflows.queries import RunInfo


def _values(words: tuple[str, ...], *, as_text: bool) -> list[Any]:
    """Return the values of arguments: JSON, or plain text."""
    if as_text:
        return list(words)
    found: list[Any] = []
    for word in words:
        try:
            found.append(msgspec.json.decode(sys.stdin.buffer.read() if word == "-" else word))
        except msgspec.DecodeError:
            raise click.UsageError(f"An argument is not JSON: {word!r:.80}. Plain text needs --text.") from None
    return found


def _talk_arguments(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command take the run that it talks to, the name of a handler, and its arguments."""
    command = click.option("--text", is_flag=True, help="The arguments are plain text, not JSON.")(command)
    command = click.argument("words", metavar="[JSON]...", nargs=-1)(command)
    command = click.argument("name")(command)
    return run_argument(command)


def _answer(run_id: str, name: str, answer: object, *, as_json: bool) -> None:
    if as_json:
        print_json({"run": run_id, "name": name, "answer": mask_data(msgspec.to_builtins(answer))})
    else:
        click.echo(shown(msgspec.to_builtins(answer), sys.maxsize))


# --- ``standfast runs update`` and ``query`` -----------------------------------------------------------------------


@click.command("update")
@_talk_arguments
@click.option("--timeout", type=LENGTH, default="30s", show_default=True, help="How long to wait for the answer.")
@click.option(
    "--id", "update_id", metavar="ID", help="An update that is sent again with the same id is the same update."
)
@json_option
@target_options
@click.pass_obj
def update_run(target: Target, /, run_id: str, name: str, words: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401 -- options, as click passes them
    """Ask RUN to change something, and print the answer. NAME is a handler of its ctx.on_update.

    A worker that has its code answers. Without one there is no answer in time, but the update may still be done later.
    """
    values, given = _values(words, as_text=options["text"]), {each: options[each] for each in ("timeout", "update_id")}
    answer = ask_engine(target, lambda engine: engine.update(run_id, name, *values, **given))
    _answer(run_id, name, answer, as_json=options["as_json"])


@click.command("query")
@_talk_arguments
@click.option(
    "--engine", "engine_name", metavar="MODULE:ENGINE", required=True, help="The engine that has the code of the run."
)
@click.option("--app-dir", metavar="FOLDER", default=".", show_default=True, help="Where to look for the module.")
@json_option
@click.pass_context
def query_run(context: click.Context, /, run_id: str, name: str, words: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401 -- options, as click passes them
    """Ask RUN something, and print the answer. NAME is a handler of its ctx.on_query. Nothing is recorded.

    Its history is replayed here, so its code is needed: name the engine that has it, as for a worker. It works for runs
    that are executed elsewhere, and for runs that have ended.
    """
    if context.ensure_object(Target).store:
        raise click.UsageError("The engine says which store it works on, so --store means nothing here.")
    found = load(options["engine_name"], options["app_dir"], ENGINE)
    values = _values(words, as_text=options["text"])

    async def query() -> object:
        engine = await made(found, options["engine_name"], ENGINE)
        await engine.open(drive=False)
        try:
            answer: object = await engine.query(run_id, name, *values)
            return answer
        finally:
            await engine.aclose()

    _answer(run_id, name, carried_out(query()), as_json=options["as_json"])


# --- ``standfast runs restart``, ``fork`` and ``resume`` -----------------------------------------------------------

_new_id = click.option("--id", "new_id", metavar="ID", help="The id of the new run.")


@click.command("restart")
@run_argument
@_new_id
@json_option
@target_options
@click.pass_obj
def restart_run(target: Target, run_id: str, new_id: str | None, *, as_json: bool) -> None:
    """Start a new run with the input of RUN, from the beginning. RUN stays as it is. Its code is not needed here."""
    words = f"with the input of {one_line(run_id)}"
    _start(target, lambda engine: engine.restart(run_id, id=new_id), words, as_json=as_json)


@click.command("fork")
@run_argument
@click.argument("step")
@_new_id
@json_option
@target_options
@click.pass_obj
def fork_run(target: Target, run_id: str, step: str, new_id: str | None, *, as_json: bool) -> None:
    """Start a new run that resumes from STEP of RUN. RUN stays as it is.

    What RUN recorded before the step is not executed again; the step and everything after it are. Steps have the names
    that show prints: charge, charge#2, g1.0/charge.
    """
    words = f"from {one_line(step)} of {one_line(run_id)}"
    _start(target, lambda engine: engine.fork(run_id, step, id=new_id), words, as_json=as_json)


def _start(target: Target, start: Callable[[sf.Engine], Awaitable[sf.Run[Any]]], words: str, *, as_json: bool) -> None:
    """Start a run after another one, and print it; ``words`` say what it begins with."""

    async def started(engine: sf.Engine) -> tuple[RunInfo, bool]:
        run = await start(engine)
        return await run.info(), run.is_new

    info, is_new = ask_engine(target, started)
    if as_json:
        print_json({"run": as_data(info), "is_new": is_new})
    elif is_new:
        click.echo(f"{one_line(info.id)} is started, {words}")
    else:
        click.echo(f"{one_line(info.id)} was started before: {status_words(info)}")


@click.command("resume")
@run_argument
@json_option
@target_options
@click.pass_obj
def resume_run(target: Target, run_id: str, *, as_json: bool) -> None:
    """Let workers check RUN now, and print its status.

    Workers check by themselves from time to time; this makes it happen at once.
    """
    info = ask_engine(target, lambda engine: engine.resume(run_id))
    if as_json:
        print_json({"run": as_data(info)})
    else:
        click.echo(f"{one_line(run_id)}: {status_words(info)}")
    if info.has_ended:
        raise click.exceptions.Exit(NOT_THERE)


# --- ``standfast runs erase`` --------------------------------------------------------------------------------------


@click.command("erase")
@click.argument("name", metavar="TENANT")
@yes_option
@json_option
@target_options
@click.pass_obj
def erase_tenant(target: Target, name: str, *, yes: bool, as_json: bool) -> None:
    """Delete everything of TENANT in the namespace. It deletes runs, states, locks and keys, and cannot be undone.

    Unfinished runs are cancelled by force first. Before this, stop the programs that work for the tenant: what they
    write meanwhile may remain.
    """
    if "tenant" in target.said and target.tenant != name:
        raise click.UsageError(f"--tenant says {target.tenant!r}, and the argument {name!r}; say the same twice.")
    target.tenant = name
    question = f"Delete everything of the tenant {one_line(name)} in the namespace {one_line(target.namespace)}?"
    confirm(question, yes=yes)
    erased = ask_engine(target, lambda engine: engine.erase(tenant=name))
    if as_json:
        print_json({"tenant": name, "records": erased})
    else:
        click.echo(f"erased the tenant {one_line(name)}: {counted(erased, 'record')} besides those of its runs")


for _command in (update_run, query_run, restart_run, fork_run, resume_run, erase_tenant):
    runs.add_command(_command)
