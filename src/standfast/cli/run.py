"""``standfast run``: run a program under a durable lock."""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING, Any

import click

from standfast.cli.exits import NOT_EXECUTABLE, NOT_FOUND, NOT_FREE, NOT_RUN, end, fail
from standfast.cli.naming import complete_key, family_option, key_of
from standfast.cli.running import Job, run_job
from standfast.cli.targets import Target, target_options
from standfast.durations import seconds, typed
from standfast.errors import HoldTimeoutError, StandfastError, WithdrawnError, WouldWaitError
from standfast.locks.options import LONGEST_NOTE

if TYPE_CHECKING:
    from collections.abc import Callable

    import standfast as sf
    from standfast.keys import Key
    from standfast.locks import Holding, HoldOptions


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--lock", "words", metavar="KEY", multiple=True, required=True, help="The key.", shell_complete=complete_key
)
@family_option
@click.option("--timeout", metavar="TIME", help="Wait at most so long, such as 10s.")
@click.option("--no-wait", is_flag=True, help="Do not wait at all.")
@click.option("--lease", metavar="TIME", help="How long others wait for us if we are not heard of any more [30s].")
@click.option("--max-hold", metavar="TIME", help="Take the lock away, and end the command, after so long.")
@click.option("--grace", metavar="TIME", default="10s", show_default=True, help="Time to end after SIGTERM, if lost.")
@click.option("--permits", type=click.IntRange(1), help="Use a semaphore with so many permits.")
@click.option("--weight", type=click.IntRange(1), default=1, show_default=True, help="How many permits to take.")
@click.option("--mode", metavar="MODE", help="Use a lock with modes, and hold it in this one.")
@click.option("--modes", metavar="A,B", default="read", show_default=True, help="The modes that are shared.")
@click.option("--alone", metavar="A,B", default="write", show_default=True, help="The modes that are not.")
@click.option("--note", metavar="TEXT", help="A few words for people who look at the line [the name of the command].")
@target_options
@click.argument("command", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(context: click.Context, /, words: tuple[str, ...], family: str | None, **options: Any) -> None:  # noqa: ANN401 -- options, as click passes them
    """Run COMMAND while holding a durable lock, and exit with its exit code.

    Signals are passed on, the lease is kept, and if the lock is lost the command is ended. It finds STANDFAST_KEY and
    STANDFAST_FENCE in its environment.

    \b
    standfast run --lock nightly-report --timeout 10m -- ./report --full
    """  # noqa: D301 -- click keeps the lines after a backspace as they are
    command: tuple[str, ...] = options["command"]
    _refuse_unusable(options)
    _find(command[0])
    key = key_of(words, family)
    try:
        job = Job(command, key, _holding(key, options), seconds(typed(options["grace"]), what="grace"))
        code = asyncio.run(run_job(context.ensure_object(Target), job))
    except (HoldTimeoutError, WouldWaitError, WithdrawnError) as problem:
        fail(problem, NOT_FREE)
    except StandfastError as problem:
        fail(problem, NOT_RUN)
    context.exit(code)


def _refuse_unusable(options: dict[str, Any]) -> None:
    if options["permits"] and options["mode"]:
        raise click.UsageError("--permits makes a semaphore and --mode a lock with modes; choose one.")
    if options["no_wait"] and options["timeout"]:
        raise click.UsageError("--no-wait does not wait at all, so --timeout means nothing; choose one.")
    if options["weight"] > 1 and not options["permits"]:
        raise click.UsageError("--weight takes several permits; say how many there are with --permits.")


def _find(name: str) -> None:
    """End at once if there is no such command: nobody wants to wait for a lock to find that out."""
    if shutil.which(name) is not None:
        return
    if "/" in name and os.path.exists(name):  # noqa: PTH110 -- what the user typed, as it is
        end(f"{name} cannot be run: it is not an executable file", NOT_EXECUTABLE)
    end(f"there is no command {name}", NOT_FOUND, "Check its name and PATH.")


def _holding(key: Key | str, options: dict[str, Any]) -> Callable[[sf.Space], Holding]:
    chosen: HoldOptions = {"on_lost": "tell", "note": _note(options)}
    for name in ("timeout", "lease", "max_hold"):
        if options[name] is not None:
            chosen[name] = typed(options[name])

    def holding(space: sf.Space) -> Holding:
        if options["mode"]:
            modes = space.mode_lock(key, modes=_names(options["modes"]), alone=_names(options["alone"]))
            return (modes.try_hold if options["no_wait"] else modes.hold)(options["mode"], **chosen)
        if options["permits"]:
            permits = space.semaphore(key, permits=options["permits"])
            return (permits.try_hold if options["no_wait"] else permits.hold)(options["weight"], **chosen)
        mutex = space.mutex(key)
        return (mutex.try_hold if options["no_wait"] else mutex.hold)(**chosen)

    return holding


def _note(options: dict[str, Any]) -> str:
    """Return what is said about the hold. Not the arguments of the command: there may be secrets among them."""
    note: str | None = options["note"]
    if note is not None:
        return note
    name: str = options["command"][0].rpartition("/")[2]
    return "".join(each for each in name if each.isprintable())[:LONGEST_NOTE]


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)
