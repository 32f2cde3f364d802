"""``standfast serve``: serve an application over HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from standfast.cli.output import configure_log, log_options, print_table
from standfast.cli.probes import listen_at, listen_option
from standfast.cli.target import LENGTH, NOT_LOADED, Target, Wanted, end, load, made
from standfast.durations import seconds
from standfast.errors import DeclarationError, MissingExtraError
from standfast.flows.request import Principal

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.web.app import App
    from standfast.web.edge import Edge


# --- ``standfast serve``: serve an application over HTTP -----------------------------------------------------------

TOKEN: Final = "STANDFAST_TOKEN"  # noqa: S105 -- the name of a variable, and no token
HOST, PORT = "127.0.0.1", 8_000


def _app() -> Wanted[App]:
    """Return the application that is wanted; its class needs an extra."""
    try:
        from standfast.web.app import App  # noqa: PLC0415 -- comes with an extra
    except ModuleNotFoundError as problem:
        raise MissingExtraError("serving flows", "standfast[serve]") from problem
    return Wanted("app", App, "shop.web:app", "sf.App(url, flows=[...])")


def _limit(name: str, default: str | int | None, words: str) -> Callable[[Any], Any]:
    is_time = isinstance(default, str)
    kind, metavar = (LENGTH, "TIME") if is_time else (int, "NUMBER")
    return click.option(name, type=kind, metavar=metavar, default=default, show_default=default is not None, help=words)


@click.command()
@click.argument("name", metavar="MODULE:APP")
@click.option("--host", metavar="ADDRESS", help=f"The address to listen at.  [default: {HOST}]")
@click.option("--port", metavar="NUMBER", type=int, help=f"The port to listen on; 0 for any.  [default: {PORT}]")
@click.option("--uds", metavar="FILE", default="", help="Listen at a unix socket that only its owner can open.")
@click.option(
    "--trust-proxy",
    "proxies",
    metavar="ADDRESS",
    multiple=True,
    help="A proxy, or a network of them, that may say where requests come from; unix: at --uds. May be repeated.",
)
@_limit("--header-bytes", 32_768, "The most bytes of headers in one request.")
@_limit("--headers", 100, "The most headers in one request.")
@_limit("--header-time", "10s", "Time for the headers to arrive.")
@_limit("--body-time", "60s", "Time for a body to arrive, whatever the address.")
@_limit("--body-rate", 500, "The fewest bytes of a body that must arrive in a second, on average.")
@_limit("--body-grace", "5s", "Time before --body-rate is checked.")
@_limit("--idle", "75s", "Time that a connection may stay open between two requests.")
@_limit("--connections", 2_000, "The most open connections.")
@_limit("--connections-per-address", None, "The most of them from one address.  [default: half of them]")
@listen_option
@click.option("--grace", type=LENGTH, default="10s", show_default=True, help="Time for requests to end when stopped.")
@click.option("--app-dir", metavar="FOLDER", default=".", show_default=True, help="Where to look for the module.")
@click.option("--quiet", is_flag=True, help="Print nothing but why it failed.")
@log_options
@click.pass_context
def serve(context: click.Context, /, name: str, app_dir: str, **given: Any) -> None:  # noqa: ANN401 -- click hands over texts and numbers
    """Serve an application until a signal stops it.

    MODULE:APP names an sf.App, or a function that returns one; the default for APP is app. After SIGTERM or SIGINT it
    takes no more requests and lets those under way end. A second signal ends it at once; other processes resume its
    runs when they notice.

    An application without authentication is served on this machine only, to callers that have its token. The token is
    shown on the terminal, or set by STANDFAST_TOKEN. At --uds the mode of the file decides, and no token is needed.

    \b
    standfast serve shop.web:app --port 8080
    """  # noqa: D301 -- click keeps the lines after a backspace as they are
    if context.ensure_object(Target).store:
        raise click.UsageError("The application says which store it works on, so --store means nothing here.")
    if given["uds"] and (given["host"] is not None or given["port"] is not None):
        raise click.UsageError("--uds is another place to listen than --host and --port; give one of them.")
    grace = seconds(given["grace"])
    try:
        edge = _edge(given)
    except ModuleNotFoundError as problem:
        raise MissingExtraError("serving flows", "standfast[serve]") from problem
    found = load(name, app_dir, _app())
    given["has_log"] = configure_log(given["log_format"], given["log_level"])
    context.exit(asyncio.run(_run_server(found, name, given, edge, grace)))


def _edge(given: dict[str, Any]) -> Edge:
    """Return the limits of connections that the options give, and the proxies that are trusted."""
    from standfast.cli.http_server import connections, descriptors  # noqa: PLC0415 -- comes with an extra
    from standfast.web.edge import Edge, EdgeLimits  # noqa: PLC0415 -- for this command only

    times: dict[str, Any] = {each: given[each] for each in ("header_time", "body_time", "body_grace", "idle")}
    counts: dict[str, Any] = {each: given[each] for each in ("header_bytes", "headers", "body_rate")}
    try:
        limits = EdgeLimits(
            **times,
            **counts,
            connections=connections(given["connections"], descriptors()),
            per_address=given["connections_per_address"],
        )
        return Edge(limits, given["proxies"], is_private=bool(given["uds"]))
    except DeclarationError as problem:
        raise click.UsageError(str(problem)) from None


async def _run_server(found: object, name: str, given: dict[str, Any], edge: Edge, grace: float) -> int:
    from standfast.cli.http_server import on_file, on_port, run  # noqa: PLC0415 -- comes with an extra

    app = await made(found, name, _app())
    token = "" if app.is_guarded else _token(app, name, given, is_needed=not edge.is_private)
    if given["uds"]:
        place = on_file(given["uds"])
    else:
        port = PORT if given["port"] is None else given["port"]
        place = on_port(given["host"] or HOST, port, app.limits.patience)
    with place as listener:
        more: dict[str, Any] = {"has_log": given["has_log"], "place": listen_at(given["listen"])}
        return await run(app, name, listener, edge, grace, shows=token, quiet=given["quiet"], **more)


def _token(app: App, name: str, given: dict[str, Any], *, is_needed: bool) -> str:
    """Give an application without authentication its token; return it if it is to be shown.

    It is shown on a terminal only: what is printed elsewhere is kept, in a journal or a file that others read.
    """
    from standfast.web.asgi import is_loopback  # noqa: PLC0415 -- for this command only

    host = given["host"] or HOST
    if is_needed and not is_loopback(host):
        advice = "Give the app authenticate=..., for instance sf.web.BearerTokens({...}), or leave --host at 127.0.0.1."
        end(f"without authentication, {name} is served on this machine only, not on {host}", NOT_LOADED, advice)
    if known := os.environ.get(TOKEN, ""):
        try:
            app.token = known
        except DeclarationError as problem:
            end(f"{TOKEN} is no token: {problem.problem}", NOT_LOADED, "Make one with sf.web.new_token().")
        return ""
    if not is_needed:
        return ""
    if given["quiet"] or not sys.stdout.isatty():
        advice = f"Set {TOKEN} to one of sf.web.new_token(), listen with --uds, or give the app authenticate=..."
        end(f"{name} has no authentication, and there is no terminal to show its token on", NOT_LOADED, advice)
    return app.token


# --- ``standfast mcp``: offer the tools of an application over stdin and stdout ------------------------------------


@click.command()
@click.argument("name", metavar="MODULE:APP")
@click.option(
    "--as", "user", metavar="USER", default="", help="The user who calls the tools; by default one without a name."
)
@click.option("--role", "roles", metavar="ROLE", multiple=True, help="A role of the user; may be repeated.")
@click.option("--list", "is_list", is_flag=True, help="List the tools and what they collide by, and exit.")
@click.option("--app-dir", metavar="FOLDER", default=".", show_default=True, help="Where to look for the module.")
@click.pass_context
def mcp(context: click.Context, name: str, user: str, roles: tuple[str, ...], app_dir: str, *, is_list: bool) -> None:
    """Serve the tools of an application over stdin and stdout.

    It speaks the Model Context Protocol to the program that starts it, until stdin ends. MODULE:APP names an sf.App
    with tools, or a function that returns one. The user is trusted: there are no credentials. --tenant names the tenant
    that tools are called for.

    \b
    standfast mcp shop.web:app --as ada --role clerk
    standfast mcp shop.web:app --list
    """  # noqa: D301 -- click keeps the lines after a backspace as they are
    target = context.ensure_object(Target)
    if target.store:
        raise click.UsageError("The application says which store it works on, so --store means nothing here.")
    found = load(name, app_dir, _app())
    principal = Principal(target.tenant, user, frozenset(roles))
    asyncio.run(_run(found, name, None if is_list else principal))


async def _run(found: object, name: str, principal: Principal | None) -> None:
    app = await made(found, name, _app())
    if not app.toolbox:
        end(f"{name} has no tools", NOT_LOADED, "Say which there are: sf.App(url, flows=[shop], tools=[shop]).")
    if principal is None:
        print_table(("tool", "policy", "collides by", "roles"), app.toolbox.rows())
        return
    async with app:
        await app.serve_tools(principal)
