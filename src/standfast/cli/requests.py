"""``standfast requests``: look at the requests of an application, and ask them to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from standfast.cli.output import json_option, print_json, print_table
from standfast.cli.runs import ask_engine, shown
from standfast.cli.target import (
    MOMENT,
    MOST_COMPLETED,
    NOT_THERE,
    Target,
    completing,
    confirm,
    end,
    target_options,
    yes_option,
)
from standfast.clock import seconds_between
from standfast.flows.request_list import (
    MOST_LISTED,
    STATUSES,
    VERDICTS,
    cancel_request,
    count_requests,
    list_requests,
    read_request,
)
from standfast.locks.inspect import length, moment, one_line
from standfast.redaction import mask_data, mask_text

if TYPE_CHECKING:
    from collections.abc import Callable

    import standfast as sf
    from standfast.flows.request import RequestInfo

F = TypeVar("F", bound="Callable[..., Any]")


async def _names(target: Target) -> list[str]:
    async with target.opened() as space:
        return [each.id for each in (await list_requests(space, "default", limit=MOST_COMPLETED)).requests]


def _argument(command: F) -> F:
    return click.argument("request_id", metavar="REQUEST", shell_complete=completing(_names))(command)


def _of(command: F) -> F:
    text = "The tenant of the users who sent the requests."
    return click.option("--of", "sender", metavar="TENANT", default="default", show_default=True, help=text)(command)


@click.command("list")
@click.option("--status", multiple=True, type=click.Choice(STATUSES), help="Only this status; may be repeated.")
@click.option("--verdict", type=click.Choice(VERDICTS), help="Only requests with this verdict on arrival.")
@click.option("--flow", metavar="NAME", help="Only requests of this flow.")
@click.option("--action", metavar="NAME", help="Only requests of this action.")
@click.option("--user", metavar="NAME", help="Only requests of this user.")
@click.option(
    "--received-after", type=MOMENT, metavar="MOMENT", help="Only requests that came at this moment or later."
)
@click.option(
    "--received-before", type=MOMENT, metavar="MOMENT", help="Only requests that came before; '2 hours' is 2 hours ago."
)
@_of
@click.option("--count", "counting", is_flag=True, help="Only print how many there are, up to 1,000.")
@click.option("--limit", type=click.IntRange(1, MOST_LISTED), default=100, show_default=True, help="How many to list.")
@click.option("--after", metavar="PLACE", help="Continue after a page, with the value that it printed.")
@json_option
@target_options
@click.pass_obj
def show_list(target: Target, /, sender: str, *, counting: bool, as_json: bool, **options: Any) -> None:  # noqa: ANN401 -- options, as click passes them
    """List requests, newest first. These are all that wait or run, and those that ended in the last hour.

    A request that runs in the process of its caller, and need not wait, leaves no record and is not listed.
    """
    if counting:
        filters = {name: value for name, value in options.items() if name not in ("limit", "after")}
        count = target.ask(lambda space: count_requests(space, sender, **filters), looks=True)
        if as_json:
            print_json({"count": count.number, "more": count.has_more})
        else:
            click.echo(str(count))
        return
    page = target.ask(lambda space: list_requests(space, sender, **options), looks=True)
    if as_json:
        print_json({"requests": [_data(each) for each in page.requests], "next": page.next})
        return
    if page.requests:
        titles = ("REQUEST", "ACTION", "USER", "RECEIVED", "VERDICT", "WAITED", "TOOK", "STATUS")
        print_table(titles, [_row(each) for each in page.requests])
    elif page.next is None:
        click.echo("there are no such requests")
    if page.next is not None:
        click.echo(f"perhaps more; continue with --after {page.next}")


def _data(info: RequestInfo) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins({name: getattr(info, name) for name in info.__struct_fields__})
    waited = seconds_between(info.received_at, info.started_at) if info.started_at else None
    return told | {"waited": waited, "result": mask_data(info.result), "error": mask_text(info.error)}


def _row(info: RequestInfo) -> tuple[str, ...]:
    waited = length(seconds_between(info.received_at, info.started_at)) if info.started_at else ""
    took = length(seconds_between(info.started_at, info.ended_at)) if info.started_at and info.ended_at else ""
    return (
        info.id,
        one_line(f"{info.flow}.{info.action}"),
        one_line(info.user),
        moment(info.received_at),
        info.verdict,
        waited,
        took,
        _status(info),
    )


def _status(info: RequestInfo) -> str:
    return f"{info.status}: {one_line(mask_text(info.error))}" if info.error else info.status


@click.command("show")
@_argument
@_of
@json_option
@target_options
@click.pass_obj
def show_request(target: Target, request_id: str, sender: str, *, as_json: bool) -> None:
    """Show REQUEST: its user, its times, its status and its result. It changes nothing."""
    info = target.ask(lambda space: read_request(space, sender, request_id), looks=True)
    if as_json:
        print_json({"request": _data(info)})
        return
    click.echo(click.style(f"{info.id}: {_status(info)}", bold=True))
    click.echo(f"action:    {one_line(f'{info.flow}.{info.action}')}, by {info.transport}")
    if info.policy:
        click.echo(f"policy:    {one_line(info.policy)}{f', {info.verdict}' if info.verdict else ''}")
    session = f", session {one_line(info.session)}" if info.session else ""
    click.echo(f"user:      {one_line(info.user) or 'without a name'}{session}")
    for title, at in (("received", info.received_at), ("started", info.started_at), ("ended", info.ended_at)):
        if at:
            click.echo(f"{title + ':':<10} {moment(at)}")
    if info.attempt > 1:
        click.echo(f"attempts:  {info.attempt:,}")
    if info.cancelled_by or info.by:
        click.echo(f"by:        {one_line(info.cancelled_by or info.by)}")
    if info.result is not None:
        click.echo(f"result:    {shown(info.result)}")


@click.command("cancel")
@_argument
@_of
@click.option(
    "--reason", metavar="TEXT", default="an operator asked for it", show_default=True, help="Why, for the record."
)
@yes_option
@json_option
@target_options
@click.pass_obj
def stop_request(target: Target, request_id: str, sender: str, reason: str, *, yes: bool, as_json: bool) -> None:
    """Ask REQUEST to stop, whether it waits or runs. The command returns when that is recorded."""
    name = one_line(request_id)
    confirm(f"Cancel the request {name}?", yes=yes)

    async def cancel(engine: sf.Engine) -> tuple[RequestInfo, RequestInfo]:
        before = await read_request(engine.space, sender, request_id)
        return before, await cancel_request(engine, sender, request_id, reason)

    before, after = ask_engine(target, cancel)
    if before.has_ended:
        end(f"the request {name} has ended already: {_status(before)}", NOT_THERE)
    if as_json:
        print_json({"request": _data(after)})
    else:
        click.echo(f"{name} is asked to stop: {one_line(reason)}")


@click.group()
def requests() -> None:
    """List the requests of an application, and cancel them."""


for _command in (show_list, show_request, stop_request):
    requests.add_command(_command)
