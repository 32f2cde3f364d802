"""``standfast serve``: serve an application over HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from standfast.cli.exits import NOT_LOADED, end
from standfast.cli.loading import Wanted, load, made
from standfast.cli.targets import Target
from standfast.durations import seconds, typed
from standfast.errors import InvalidFlowError, MissingExtraError
from standfast.transports.app import App

if TYPE_CHECKING:
    import contextlib
    import socket
    from collections.abc import Callable

    from standfast.transports.edge import Edge

APP: Final = Wanted("app", App, "shop.web:app", "sf.App(url, flows=[...])")
TOKEN: Final = "STANDFAST_TOKEN"  # noqa: S105 -- the name of a variable, and no token
HOST, PORT = "127.0.0.1", 8_000


def _limit(name: str, default: str | int | None, words: str) -> Callable[[Any], Any]:
    kind = int if default is None or isinstance(default, int) else str
    metavar = "TIME" if kind is str else "NUMBER"
    return click.option(name, type=kind, metavar=metavar, default=default, show_default=default is not None, help=words)


@click.command()
@click.argument("name", metavar="MODULE:APP")
@click.option("--host", metavar="ADDRESS", help=f"Where to listen.  [default: {HOST}]")
@click.option("--port", metavar="NUMBER", type=int, help=f"Where to listen; 0 for any.  [default: {PORT}]")
@click.option("--uds", metavar="FILE", default="", help="Listen at a unix socket that only its owner can open.")
@click.option(
    "--trust-proxy",
    "proxies",
    metavar="ADDRESS",
    multiple=True,
    help="A proxy, or a network of them, that says where requests come from; unix for one at --uds. May be repeated.",
)
@_limit("--header-bytes", 32_768, "Bytes of the headers of one request.")
@_limit("--headers", 100, "How many headers one request has.")
@_limit("--header-time", "10s", "Time for headers to arrive.")
@_limit("--body-time", "60s", "Time for a body to arrive, at any address.")
@_limit("--body-rate", 500, "Bytes of a body that arrive in a second, on average.")
@_limit("--body-grace", "5s", "Time before that is looked at.")
@_limit("--idle", "75s", "Time that a connection may be open between two requests.")
@_limit("--connections", 2_000, "How many connections are open.")
@_limit("--connections-per-address", None, "How many of them from one address.  [default: half of them]")
@click.option("--grace", metavar="TIME", default="10s", show_default=True, help="Time for requests to end.")
@click.option("--app-dir", metavar="FOLDER", default=".", show_default=True, help="Where to look for the module.")
@click.option("--quiet", is_flag=True, help="Say nothing but why it failed.")
@click.pass_context
def serve(context: click.Context, /, name: str, app_dir: str, **given: Any) -> None:  # noqa: ANN401 -- click hands over texts and numbers
    """Serve an application until a signal says to stop.

    MODULE:APP names an sf.App, or a function that returns one; without :APP it is called app. SIGTERM or SIGINT takes
    no more requests and lets those under way end; a second one ends it at once, and others go on with its runs when
    they notice.

    An application without authentication is served on this machine only, and to those who have its token: it is shown
    on the terminal, or is what STANDFAST_TOKEN says. At --uds the file decides, and no token is needed.

    \b
    standfast serve shop.web:app --port 8080
    """  # noqa: D301 -- click keeps the lines after a backspace as they are
    if context.ensure_object(Target).store:
        raise click.UsageError("The application says which store it works on, so --store means nothing here.")
    if given["uds"] and (given["host"] is not None or given["port"] is not None):
        raise click.UsageError("--uds is another place to listen than --host and --port; give one of them.")
    grace = seconds(typed(given["grace"]), what="grace")
    edge = _edge(given)
    found = load(name, app_dir, APP)
    context.exit(asyncio.run(_run(found, name, given, edge, grace)))


def _edge(given: dict[str, Any]) -> Edge:
    """Return what the options say about what is taken from anybody."""
    from standfast.cli.serve_listener import connections, descriptors  # noqa: PLC0415 -- not on every system
    from standfast.transports.edge import Edge, EdgeLimits  # noqa: PLC0415 -- for this command only

    times: dict[str, Any] = {each: typed(given[each]) for each in ("header_time", "body_time", "body_grace", "idle")}
    counts: dict[str, Any] = {each: given[each] for each in ("header_bytes", "headers", "body_rate")}
    try:
        limits = EdgeLimits(
            **times,
            **counts,
            connections=connections(given["connections"], descriptors()),
            per_address=given["connections_per_address"],
        )
        return Edge(limits, given["proxies"], is_private=bool(given["uds"]))
    except InvalidFlowError as problem:
        raise click.UsageError(str(problem)) from None


async def _run(found: object, name: str, given: dict[str, Any], edge: Edge, grace: float) -> int:
    try:
        from standfast.cli.serve_running import run  # noqa: PLC0415 -- needs uvicorn, which is an extra
    except ModuleNotFoundError as problem:
        raise MissingExtraError("serving flows", "standfast[serve]") from problem
    app = await made(found, name, APP)
    token = "" if app.is_guarded else _token(app, name, given, is_needed=not edge.is_private)
    with _listening(app, given) as listener:
        return await run(app, name, listener, edge, grace, shows=token, quiet=given["quiet"])


def _listening(app: App, given: dict[str, Any]) -> contextlib.AbstractContextManager[socket.socket]:
    from standfast.cli.serve_listener import on_file, on_port  # noqa: PLC0415 -- see above

    if given["uds"]:
        return on_file(given["uds"])
    port = PORT if given["port"] is None else given["port"]
    return on_port(given["host"] or HOST, port, app.limits.patience)


def _token(app: App, name: str, given: dict[str, Any], *, is_needed: bool) -> str:
    """Give an application without authentication its token; return it if it is to be shown.

    It is shown on a terminal only: what is printed elsewhere is kept, in a journal or a file that others read.
    """
    host = given["host"] or HOST
    if is_needed and not _is_this_machine(host):
        advice = "Give the app authenticate=..., for instance sf.BearerTokens({...}), or leave --host at 127.0.0.1."
        end(f"without authentication, {name} is served on this machine only, not on {host}", NOT_LOADED, advice)
    if known := os.environ.get(TOKEN, ""):
        try:
            app.token = known
        except InvalidFlowError as problem:
            end(f"{TOKEN} is no token: {problem.problem}", NOT_LOADED, "Make one with sf.new_token().")
        return ""
    if not is_needed:
        return ""
    if given["quiet"] or not sys.stdout.isatty():
        advice = f"Set {TOKEN} to one of sf.new_token(), listen with --uds, or give the app authenticate=..."
        end(f"{name} has no authentication, and there is no terminal to show its token on", NOT_LOADED, advice)
    return app.token


def _is_this_machine(host: str) -> bool:
    from standfast.transports.loopback import is_loopback  # noqa: PLC0415 -- for this command only

    return is_loopback(host)
