"""``standfast serve``: serve an application over HTTP."""

from __future__ import annotations

import asyncio
from typing import Final

import click

from standfast.cli.exits import NOT_LOADED, end
from standfast.cli.loading import Wanted, load, made
from standfast.cli.targets import Target
from standfast.durations import seconds, typed
from standfast.errors import MissingExtraError
from standfast.transports.app import App

APP: Final = Wanted("app", App, "shop.web:app", "sf.App(url, flows=[...])")


@click.command()
@click.argument("name", metavar="MODULE:APP")
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", metavar="NUMBER", default=8000, show_default=True, help="Where to listen; 0 for any.")
@click.option("--grace", metavar="TIME", default="10s", show_default=True, help="Time for requests to end.")
@click.option("--app-dir", metavar="FOLDER", default=".", show_default=True, help="Where to look for the module.")
@click.option("--quiet", is_flag=True, help="Say nothing but why it failed.")
@click.pass_context
def serve(context: click.Context, name: str, host: str, port: int, grace: str, app_dir: str, *, quiet: bool) -> None:
    """Serve an application until a signal says to stop.

    MODULE:APP names an sf.App, or a function that returns one; without :APP it is called app. SIGTERM or SIGINT takes
    no more requests and lets those under way end; a second one ends it at once, and others go on with its runs when
    they notice. For anybody else than this machine to be served, the application has to have authentication.

    \b
    standfast serve shop.web:app --port 8080
    """  # noqa: D301 -- click keeps the lines after a backspace as they are
    if context.ensure_object(Target).store:
        raise click.UsageError("The application says which store it works on, so --store means nothing here.")
    limit = seconds(typed(grace), what="grace")
    found = load(name, app_dir, APP)
    context.exit(asyncio.run(_run(found, name, (host, port), limit, quiet=quiet)))


async def _run(found: object, name: str, place: tuple[str, int], grace: float, *, quiet: bool) -> int:
    try:
        from standfast.cli.serve_running import run  # noqa: PLC0415 -- needs uvicorn, which is an extra
    except ModuleNotFoundError as problem:
        raise MissingExtraError("serving flows", "standfast[serve]") from problem
    app = await made(found, name, APP)
    if not app.is_guarded and not _is_this_machine(place[0]):
        advice = "Give the app authenticate=..., for instance sf.BearerTokens({...}), or leave --host at 127.0.0.1."
        end(f"without authentication, {name} is served on this machine only, not on {place[0]}", NOT_LOADED, advice)
    return await run(app, name, place, grace, quiet=quiet)


def _is_this_machine(host: str) -> bool:
    from standfast.transports.loopback import is_loopback  # noqa: PLC0415 -- needs starlette, which is an extra

    return is_loopback(host)
