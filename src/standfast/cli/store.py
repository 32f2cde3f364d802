"""``standfast export``, ``import``, ``thaw``, ``fence`` and ``accept-loss``: move a store, or start anew on one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from standfast.audit import accept_loss, export_store, fence_store, import_store, thaw_store
from standfast.cli.output import json_option, print_json
from standfast.cli.target import NOT_THERE, Target, confirm, end, store_option, yes_option
from standfast.stores.backend import EXPORTED, OPEN

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from standfast.stores.transfer import ExportFooter


# --- ``standfast fence``: after a backup was restored, void what the store says is held ----------------------------


@click.command("fence")
@yes_option
@json_option
@store_option
@click.pass_obj
def fence_all(target: Target, /, *, yes: bool, as_json: bool) -> None:
    """Void what processes hold, after a backup was restored.

    Every process that the store knows of counts as dead, in all namespaces and tenants. Run it on a store that was
    restored from a backup, before any program is started on it. What was held when the backup was made is held no
    longer, and the next holder gets a higher fence. New workers resume the runs.
    """
    confirm("Every process that uses this store loses what it holds. Go on?", yes=yes)
    fenced = target.ask_store(lambda store: fence_store(store, actor=target.actor))
    if as_json:
        print_json(fenced)
    else:
        click.echo(f"fenced {fenced.presences:,} processes, {fenced.workers:,} of them workers")


# --- ``standfast accept-loss``: after a failover lost acknowledged commits, go on with what is there ----------------


@click.command("accept-loss")
@click.option(
    "--seen", metavar="FENCE", type=click.IntRange(0), default=0, help="The highest fence that is known elsewhere."
)
@yes_option
@json_option
@store_option
@click.pass_obj
def accept_the_loss(target: Target, /, seen: int, *, yes: bool, as_json: bool) -> None:
    """Continue after a store has lost commits that it acknowledged.

    For a store whose processes ended with StoreRewoundError: a replica without the last commits took over. Every fence
    from now on is higher than any that was given out, the lost ones included, and every process that the store knows
    of counts as dead, in all namespaces and tenants. First find out what was lost. Then run this, and start the
    processes again.

    \b
    standfast accept-loss --store postgresql://db/app --yes
    """  # noqa: D301 -- click keeps the lines after a backspace as they are
    confirm("What was lost stays lost, and every process loses what it holds. Go on?", yes=yes)
    fenced = target.ask_store(lambda store: accept_loss(store, seen=seen, actor=target.actor))
    if as_json:
        print_json(fenced)
    else:
        click.echo(f"accepted: every fence is above {fenced.above} from now on")
        click.echo(f"fenced {fenced.presences:,} processes, {fenced.workers:,} of them workers; start them anew")


# --- files that a store is exported to and imported from, and the progress of that ---------------------------------

PIPE: Final = "-"


@contextlib.contextmanager
def new_file(name: str) -> Generator[BinaryIO]:
    """Write to a file that is there only when all of it is, for its owner alone; ``-`` is stdout."""
    if name == PIPE:
        yield sys.stdout.buffer
        return
    path = Path(name)
    if path.exists():
        end(f"{name} is there already", advice="Name another file, or remove it.")
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(part, "xb", opener=_for_owner) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        _sync_folder(path.parent)
    except OSError as problem:
        end(f"{name} cannot be written: {problem.strerror}")
    finally:
        part.unlink(missing_ok=True)


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def existing_file(name: str) -> Generator[BinaryIO]:
    """Read a file from its beginning as often as needed; ``-`` is stdin, which is kept in a file for that."""
    if name != PIPE:
        try:
            file = Path(name).open("rb")  # noqa: SIM115 -- closed below
        except OSError as problem:
            end(f"{name} cannot be read: {problem.strerror}")
        with file:
            yield file
        return
    with tempfile.TemporaryFile() as spool:
        shutil.copyfileobj(sys.stdin.buffer, spool)
        spool.seek(0)
        yield spool


@contextlib.contextmanager
def telling(verb: str) -> Generator[Callable[..., None]]:
    """Tell a terminal how many records were moved; yields a function that takes the number so far, and that of all."""
    is_shown = sys.stderr.isatty()
    has_told = False

    def tell(done: int, of: int | None = None) -> None:
        nonlocal has_told
        if is_shown:
            rest = "" if of is None else f" of {of:,}"
            click.echo(f"\r{verb} {done:,}{rest} records", nl=False, err=True)
            has_told = True

    try:
        yield tell
    finally:
        if has_told:
            click.echo(err=True)


# --- ``standfast export``: everything in a store, as a file, once it takes no more writes --------------------------


@click.command("export")
@click.argument("file", metavar="FILE", type=click.Path(allow_dash=True))
@click.option(
    "--namespace",
    "namespaces",
    metavar="NAME",
    multiple=True,
    help="Only this namespace; may be repeated.  [default: all]",
)
@yes_option
@json_option
@store_option
@click.pass_obj
def export_all(target: Target, /, file: str, namespaces: tuple[str, ...], *, yes: bool, as_json: bool) -> None:
    """Write everything in the store to FILE. That is all namespaces and tenants; '-' is stdout.

    From then on the store refuses all writes, and programs that use it get StoreMovedError. Import the file into
    another store, and let the programs open that one. To keep using this store instead, run 'standfast thaw'.

    Processes do not move: what they held is released, and other workers resume their runs.

    With --namespace the whole store is frozen, too. Thaw it once that namespace is no longer used here.
    """
    confirm("This store takes no writes from then on. Export it?", yes=yes)
    if not namespaces and "namespace" in target.said and target.namespace != "default":
        namespaces = (target.namespace,)  # said in front of the command

    async def export() -> ExportFooter:
        async with target.opened_store() as store:
            with telling("exported") as tell:
                return await export_store(store, new_file(file), tell, namespaces=namespaces, actor=target.actor)

    footer = asyncio.run(export())
    if as_json and file != PIPE:
        facts = {"records": footer.records, "highest_version": footer.highest, "sha256": footer.sha256}
        print_json({"file": file, **facts})
    else:
        click.echo(f"exported {footer.records:,} records; the store takes no more writes", err=file == PIPE)


# --- ``standfast import``: everything in a file, into an empty store -----------------------------------------------


@click.command("import")
@click.argument("file", metavar="FILE", type=click.Path(allow_dash=True))
@json_option
@store_option
@click.pass_obj
def import_all(target: Target, /, file: str, *, as_json: bool) -> None:
    """Import FILE into the store, which must be empty.

    '-' is stdin. Nothing is written unless the file is complete. Until all of it is imported, the store refuses other
    writes. If this is interrupted, run it again with the same file.
    """

    async def write() -> ExportFooter:
        with existing_file(file) as source:
            async with target.opened_store(create=True) as store:
                with telling("imported") as tell:
                    return await import_store(store, source, file, tell, actor=target.actor)

    footer = asyncio.run(write())
    if as_json:
        print_json({"file": file, "records": footer.records, "highest_version": footer.highest})
    else:
        click.echo(f"imported {footer.records:,} records; the store is in use from now on")


# --- ``standfast thaw``: let a store take writes again that was exported, or not imported to the end ---------------

_REASONS = {
    True: "It was exported: if another store is used in its place, both would grant the same locks.",
    False: "An import into it is not finished: it holds only a part of what the file has.",
}


@click.command("thaw")
@yes_option
@json_option
@store_option
@click.pass_obj
def thaw(target: Target, /, *, yes: bool, as_json: bool) -> None:
    """Let an exported store take writes again.

    Do this only if no other store is used in its place.
    """
    reason = target.ask_store(lambda store: store.transfer().frozen())
    if reason == OPEN:
        end("the store is not frozen", NOT_THERE)
    confirm(f"{_REASONS[reason == EXPORTED]} Let it take writes again?", yes=yes)
    target.ask_store(lambda store: thaw_store(store, actor=target.actor))
    if as_json:
        print_json({"thawed": True})
    else:
        click.echo("the store takes writes again")
