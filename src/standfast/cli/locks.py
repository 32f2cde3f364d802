"""``standfast locks``: look at locks, and operate on them."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from standfast.cli.output import json_option, print_explanation, print_json, print_table
from standfast.cli.target import (
    NOT_THERE,
    Target,
    confirm,
    end,
    key_arguments,
    key_of,
    target_options,
    yes_option,
)
from standfast.locks.inspect import LISTED, MOST_LISTED, arguments_of, explain, length, one_line, stored_records
from standfast.locks.survey import read_lines
from standfast.scope import address_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import standfast as sf
    from standfast.keys import Key
    from standfast.locks.inspect import ExplainedHolder, Explanation, LineSummary


NEAR: Final = 3
"""How many similar names are suggested for one under which nothing is stored."""

# --- ``standfast locks explain``: who holds a key, who waits for it, and how long it may take ----------------------


@click.command("explain")
@key_arguments
@click.option(
    "--limit", type=click.IntRange(0, MOST_LISTED), default=LISTED, show_default=True, help="Waiters to list."
)
@json_option
@target_options
@click.pass_obj
def explain_lock(target: Target, words: tuple[str, ...], family: str | None, limit: int, *, as_json: bool) -> None:
    """Say who holds KEY and who waits for it.

    It says since when, too, and how long it may take. It changes nothing. It is the same answer as lock.explain() in
    Python.
    """
    key = key_of(words, family)

    async def read(space: sf.Space) -> tuple[Explanation, Sequence[str] | None]:
        address, near = await _find(space, key)
        return await explain(space, address, limit=limit), near

    told, near = target.ask(read, looks=True)
    if as_json:
        print_json(told.as_json())
    else:
        print_explanation(told.as_text())
    _tell_near(near)


async def _find(space: sf.Space, key: Key | str) -> tuple[tuple[str, ...], Sequence[str] | None]:
    """Return the address of the line of a key, or of the line that lists show by that name.

    The second value is None if that line is in use, else names that are similar.
    Lines of requests, limits and schedules have no key of their own: lists name them in words.
    """
    address = address_of(key)
    seen = await space.read(place := space.key("line", *address))
    if seen.version(place):
        return address, None
    names = {line.key: line.address for line in (await read_lines(space)).lines}
    name = str(key)
    return names.get(name, address), None if name in names else difflib.get_close_matches(name, names, NEAR)


def _tell_near(near: Sequence[str] | None) -> None:
    """Say that nothing is stored under a name, and which names are like it."""
    if near is not None:
        likes = f"; like it: {', '.join(map(one_line, near))}" if near else ""
        click.echo(f"nothing is stored under this name{likes}", err=True)


# --- ``standfast locks inspect``: the records of a line, as they are stored ----------------------------------------


@click.command("inspect")
@key_arguments
@click.option(
    "--limit", type=click.IntRange(0, MOST_LISTED), default=LISTED, show_default=True, help="Waiters to show."
)
@json_option
@target_options
@click.pass_obj
def inspect_lock(target: Target, words: tuple[str, ...], family: str | None, limit: int, *, as_json: bool) -> None:
    """Show the records that are stored for KEY.

    They are its head, grants, presences and waiters, with their versions: for bug reports. To find out who holds a key,
    use explain. It changes nothing.
    """
    key = key_of(words, family)

    async def read(space: sf.Space) -> tuple[list[dict[str, Any]], Sequence[str] | None]:
        address, near = await _find(space, key)
        return await stored_records(space, address, limit=limit), near

    records, near = target.ask(read, looks=True)
    if as_json:
        print_json({"records": records})
        return
    for record in records:
        expiry = "" if record["expires_at"] is None else f", expires at {record['expires_at']}"
        title = f"{record['record']} {record['parts']}, version {record['version']}{expiry}"
        click.echo(click.style(title, bold=True))
        click.echo("  " + msgspec.json.encode(record["value"]).decode())
    if not records:
        click.echo("nothing is stored: it is not held, and nothing waits for it")
        _tell_near(near)


# --- ``standfast locks list``: which keys are held or waited for ---------------------------------------------------


@click.command("list")
@click.option("--limit", type=click.IntRange(1), default=1_000, show_default=True, help="How many to list.")
@json_option
@target_options
@click.pass_obj
def list_locks(target: Target, limit: int, *, as_json: bool) -> None:
    """List the keys that are held or waited for. It changes nothing."""

    async def read(space: sf.Space) -> list[LineSummary]:
        found: list[LineSummary] = []
        async for line in space.lines():
            found.append(line)
            if len(found) > limit:
                break
        return found

    found = target.ask(read, looks=True)
    listed, more = found[:limit], len(found) > limit
    if as_json:
        print_json({"lines": [line.as_json() for line in listed], "more": more})
    elif listed:
        print_table(("KEY", "KIND", "HOLDERS", "WAITING", "HELD FOR"), [_row(line) for line in listed])
        if more:
            click.echo(f"and more; list them with --limit {limit * 10}")
    else:
        click.echo("no key is held or waited for")


def _row(line: LineSummary) -> tuple[str, ...]:
    of = f" of {line.permits}" if line.kind == "semaphore" else ""
    held = "" if line.held_for is None else length(line.held_for)
    return one_line(line.key), line.kind, f"{line.holders}{of}", str(line.waiting), held


# --- ``standfast locks release``: evict a holder -------------------------------------------------------------------


@click.command("release")
@key_arguments
@click.option("--entry", metavar="ID", help="The holder with this entry; see explain.")
@click.option("--holder", metavar="OWNER", help="The holder with this owner; see explain.")
@click.option("--all", "all_holders", is_flag=True, help="All holders.")
@yes_option
@json_option
@target_options
@click.pass_obj
def release_lock(target: Target, /, words: tuple[str, ...], family: str | None, **options: Any) -> None:  # noqa: ANN401 -- options, as click passes them
    """Evict the holder of KEY by force. The next in line holds it then.

    The fence moves on: what the former holder still writes with its fence is refused. If its process is alive, its code
    is cancelled. Without --entry, --holder or --all there must be exactly one holder.
    """
    key = key_of(words, family)
    line = (*(("--family", family) if family else ()), *arguments_of(*words))

    async def look(space: sf.Space) -> tuple[Explanation, Sequence[ExplainedHolder]]:
        address, near = await _find(space, key)
        told = await explain(space, address, limit=0)
        _refuse_ended_elsewhere(target, address, told.key)
        if not told.holders:
            _tell_near(near)
        return told, _choose(target, told, line, options)

    async def release(space: sf.Space) -> list[ExplainedHolder]:
        lock = space.mutex(key)
        return [holder for holder in chosen if await lock.force_release(holder.entry)]

    told, chosen = target.ask(look)
    owners = ", ".join(one_line(holder.owner) for holder in chosen)
    confirm(f"Release {one_line(told.key)} by force, held by {owners}?", yes=options["yes"])
    _report_release(told, target.ask(release), as_json=options["as_json"])


def _report_release(told: Explanation, released: list[ExplainedHolder], *, as_json: bool) -> None:
    name = one_line(told.key)
    if as_json:
        facts = [{"entry": each.entry, "owner": each.owner, "fence": each.fence} for each in released]
        print_json({"key": told.key, "released": facts})
    else:
        for each in released:
            click.echo(f"released {name}: {one_line(each.owner)} no longer holds it; fence {each.fence} is void")
    if not released:
        end(f"no holder was released from {name}: its holder left meanwhile", NOT_THERE)


def _refuse_ended_elsewhere(target: Target, address: tuple[str, ...], name: str) -> None:
    """Refuse to evict what a request or a run holds as such: it is asked to stop, and leaves its line itself."""
    holder = {"request": "request", "limit": "run"}.get(address[0])
    if holder is not None:
        look = target.command("locks", "explain", *arguments_of(name))
        stop = target.command(f"{holder}s", "cancel", holder.upper())
        advice = f"See which with: {look}\nAsk it to stop with: {stop}"
        end(f"{one_line(name)} is no lock: a {holder} holds it", NOT_THERE, advice)


def _choose(
    target: Target, told: Explanation, line: tuple[str, ...], options: dict[str, Any]
) -> Sequence[ExplainedHolder]:
    entry, owner, all_holders = options["entry"], options["holder"], options["all_holders"]
    chosen = [
        holder
        for holder in told.holders
        if (entry is None or holder.entry == entry) and (owner is None or holder.owner == owner)
    ]
    if not chosen:
        advice = f"To cancel a waiter: {target.command('locks', 'withdraw', '--entry', entry, *line)}" if entry else ""
        named: str = entry or owner or ""
        who = f"{one_line(named)} does not hold" if named else "there is no holder of"
        end(f"{who} {one_line(told.key)}", NOT_THERE, advice)
    if len(chosen) > 1 and not all_holders:
        entries = ", ".join(holder.entry for holder in chosen[:10])
        raise click.UsageError(f"There are {len(chosen)} holders; choose with --entry ID, or take --all: {entries}")
    return chosen


# --- ``standfast locks withdraw``: cancel a waiter -----------------------------------------------------------------


@click.command("withdraw")
@key_arguments
@click.option("--entry", metavar="ID", required=True, help="The waiter with this entry; see explain.")
@yes_option
@json_option
@target_options
@click.pass_obj
def withdraw_waiter(
    target: Target, words: tuple[str, ...], family: str | None, entry: str, *, yes: bool, as_json: bool
) -> None:
    """Cancel a waiter in the line of KEY. A waiter that holds the key by now keeps it: use release.

    If its process is alive, it gets WithdrawnError, and does not enter the line again by itself.
    """
    key = key_of(words, family)
    confirm(f"Withdraw {one_line(entry)} from the line of {one_line(str(key))}?", yes=yes)
    if not target.ask(lambda space: space.mutex(key).withdraw(entry)):
        line = (*(("--family", family) if family else ()), *arguments_of(*words))
        see, evict = target.command("locks", "explain", *line), target.command("locks", "release", *line)
        advice = f"See who does with: {see}\nTo evict a holder: {evict}"
        end(f"{one_line(entry)} does not wait for {one_line(str(key))}", NOT_THERE, advice)
    if as_json:
        print_json({"key": str(key), "withdrawn": entry})
    else:
        click.echo(f"withdrawn from {one_line(str(key))}: {one_line(entry)} no longer waits")


# --- ``standfast locks``: look at locks, and operate on them -------------------------------------------------------


@click.group()
def locks() -> None:
    """List and explain locks, evict holders and cancel waiters."""


for _command in (list_locks, inspect_lock, explain_lock, release_lock, withdraw_waiter):
    locks.add_command(_command)
