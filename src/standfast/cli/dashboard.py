"""``standfast dashboard``: look at any store in a browser, without the code of the application."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, Final

import click

from standfast.cli.target import Target, target_options
from standfast.errors import MissingExtraError

if TYPE_CHECKING:
    import uvicorn

    from standfast.web.dashboard import Dashboard

PORT: Final = 8765
HOST: Final = "127.0.0.1"
GRACE: Final = 2
"""Seconds that pages have to end when the command is stopped."""

LONGEST_USER: Final = 100
"""Characters of the name under which the audit has what is done in the dashboard."""


@click.command()
@click.argument("url", required=False, default="")
@click.option("--port", type=click.IntRange(0, 65_535), default=PORT, show_default=True, help="The port; 0 for any.")
@click.option("--read-only", is_flag=True, help="Show everything but values, and allow no changes.")
@target_options
@click.pass_obj
def dashboard(target: Target, url: str, port: int, *, read_only: bool) -> None:
    """Open a store in a browser. It shows runs, lines, schedules and workers, and why something waits.

    URL names the store, as --store and STANDFAST_STORE do. The printed address opens the dashboard once, in one
    browser, which stays signed in. The dashboard listens on this machine only. To share it, mount sf.web.Dashboard in
    an application that has authentication.

    \b
    standfast dashboard sqlite:///standfast.db
    """  # noqa: D301 -- click keeps the lines after a backspace as they are
    target.store = url or target.store
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after it has stopped
        asyncio.run(_serve(target, port, read_only=read_only))


async def _serve(target: Target, port: int, *, read_only: bool) -> None:
    try:
        import uvicorn  # noqa: PLC0415 -- for this command only

        from standfast.cli.http_server import address_of, on_port  # noqa: PLC0415 -- it needs uvicorn too
        from standfast.web.dashboard import Dashboard  # noqa: PLC0415 -- for this command only
        from standfast.web.dashboard.access import OneTimeToken  # noqa: PLC0415 -- for this command only
    except ModuleNotFoundError as problem:
        raise MissingExtraError("standfast dashboard", "standfast[dashboard,serve]") from problem
    from standfast.flows.request import Principal  # noqa: PLC0415 -- for this command only

    token = OneTimeToken(Principal(target.tenant, target.actor.name[:LONGEST_USER], frozenset({"operator"})))
    level = "read" if read_only else "all"
    async with target.opened(looks=read_only) as space:
        app = Dashboard(space, authenticate=token, access=lambda _principal: level, hosts=(HOST, "localhost"))
        with on_port(HOST, port, 30.0) as listener:
            config = uvicorn.Config(
                app, lifespan="off", log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE
            )
            server = uvicorn.Server(config)
            click.echo(f"open {address_of(listener)}/?token={token.token}")
            click.echo("It works once. Stop with Ctrl-C.")
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # uvicorn raises it again: all is closed first
            async with app, asyncio.TaskGroup() as tasks:
                draining = tasks.create_task(_drain(server, app))
                await server.serve(sockets=[listener])
                draining.cancel()


async def _drain(server: uvicorn.Server, app: Dashboard) -> None:
    """Let the streams of pages end when the server is to stop: it waits for them, and tells none."""
    while not server.should_exit:  # noqa: ASYNC110 -- a flag of uvicorn, which has no event for it
        await asyncio.sleep(0.2)
    app.drain()
