"""``standfast worker``: drive the runs of an engine."""

from __future__ import annotations

import asyncio

import click

from standfast.cli.loading import Wanted, load, made
from standfast.cli.printing import json_option
from standfast.cli.targets import Target
from standfast.cli.worker_serving import serve
from standfast.cli.worker_telling import Telling
from standfast.durations import seconds, typed
from standfast.workflows.engine import Engine

ENGINE = Wanted("engine", Engine, "shop.flows:engine", "sf.Engine(url, workflows=[...])")


@click.command()
@click.argument("name", metavar="MODULE:ENGINE")
@click.option("--grace", metavar="TIME", default="10s", show_default=True, help="Time for steps to end when stopped.")
@click.option("--app-dir", metavar="FOLDER", default=".", show_default=True, help="Where to look for the module.")
@click.option("--quiet", is_flag=True, help="Say nothing but why it failed.")
@json_option
@click.pass_context
def worker(context: click.Context, name: str, grace: str, app_dir: str, *, quiet: bool, as_json: bool) -> None:
    """Drive the runs of an engine until a signal says to stop.

    MODULE:ENGINE names an sf.Engine, or a function that returns one; without :ENGINE it is called engine. SIGTERM or
    SIGINT hands every run back, so that others go on with it at once; a second one waits for no step.

    \b
    standfast worker shop.flows:engine --grace 30s
    """  # noqa: D301 -- click keeps the lines after a backspace as they are
    if context.ensure_object(Target).store:
        raise click.UsageError("The engine says which store it works on, so --store means nothing here.")
    limit = seconds(typed(grace), what="grace")
    found = load(name, app_dir, ENGINE)
    telling = Telling("json" if as_json else "quiet" if quiet else "text")
    context.exit(asyncio.run(_run(found, name, telling, limit)))


async def _run(found: object, name: str, telling: Telling, grace: float) -> int:
    return await serve(await made(found, name, ENGINE), telling, grace)
