"""``standfast mcp``: offer the tools of an application over stdin and stdout."""

from __future__ import annotations

import asyncio

import click

from standfast.cli.exits import NOT_LOADED, end
from standfast.cli.loading import load, made
from standfast.cli.printing import print_table
from standfast.cli.serve import APP
from standfast.cli.targets import Target
from standfast.flows.arrival import Principal


@click.command()
@click.argument("name", metavar="MODULE:APP")
@click.option("--as", "user", metavar="USER", default="", help="Who calls the tools; nobody by name if not given.")
@click.option("--role", "roles", metavar="ROLE", multiple=True, help="A role that the user has; may be given again.")
@click.option("--list", "is_list", is_flag=True, help="Say which tools there are and what they collide by, and end.")
@click.option("--app-dir", metavar="FOLDER", default=".", show_default=True, help="Where to look for the module.")
@click.pass_context
def mcp(context: click.Context, name: str, user: str, roles: tuple[str, ...], app_dir: str, *, is_list: bool) -> None:
    """Offer the tools of an application to the program that starts this one.

    It speaks the Model Context Protocol over stdin and stdout, until stdin ends. MODULE:APP names an sf.App with tools,
    or a function that returns one. Whoever starts it is trusted: there are no credentials. Tools are called for the
    tenant of --tenant.

    \b
    standfast mcp shop.web:app --as ada --role clerk
    standfast mcp shop.web:app --list
    """  # noqa: D301 -- click keeps the lines after a backspace as they are
    target = context.ensure_object(Target)
    if target.store:
        raise click.UsageError("The application says which store it works on, so --store means nothing here.")
    found = load(name, app_dir, APP)
    principal = Principal(target.tenant, user, frozenset(roles))
    asyncio.run(_run(found, name, None if is_list else principal))


async def _run(found: object, name: str, principal: Principal | None) -> None:
    app = await made(found, name, APP)
    if not app.toolbox:
        end(f"{name} has no tools", NOT_LOADED, "Say which there are: sf.App(url, flows=[shop], tools=[shop]).")
    if principal is None:
        print_table(("tool", "policy", "collides by", "roles"), app.toolbox.rows())
        return
    async with app:
        await app.serve_tools(principal)
