"""``standfast cloudflare``: the project to deploy, so that a store can be opened on Cloudflare."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Final

import click
from msgspec import Struct

from standfast.cli.output import json_option, print_json
from standfast.cli.target import end

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
"""What Cloudflare takes as the name of a worker: it becomes part of a host name."""

WRANGLER: Final = """\
// How Cloudflare's wrangler deploys the store. `standfast cloudflare init` wrote it, and leaves your changes alone.
{
  "name": "%s",
  "main": "worker.js",
  // The worker is one plain file that needs no building.
  "no_bundle": true,
  // What the runtime does as of this day; older versions of wrangler know no later one.
  "compatibility_date": "2025-11-01",
  "workers_dev": true,
  // Give it a name of your own instead: "routes": [{ "pattern": "standfast.example.com", "custom_domain": true }],
  "observability": { "enabled": true },
  // One object a namespace of the store, with its own SQLite database.
  "durable_objects": { "bindings": [{ "name": "OBJECTS", "class_name": "StandfastObject" }] },
  // What is listed here has happened: add to it, never change it. Deleting a class deletes everything in it.
  "migrations": [{ "tag": "v1", "new_sqlite_classes": ["StandfastObject"] }]
}
"""

README: Final = """\
# A Standfast store on Cloudflare

`worker.js` comes with Standfast: leave it as it is. `standfast cloudflare init` in a newer version replaces it.

1. Deploy it: `npx wrangler deploy`
2. Give it a secret of 16 characters or more, of which you keep a copy in your own vault:
   `python3 -c 'import secrets; print(secrets.token_urlsafe(32))'`, then `npx wrangler secret put SECRET`
3. Install the driver where your program runs: `pip install 'standfast[cloudflare]'`
4. Open it with the name that step 1 printed: `cloudflare://:SECRET@%s.YOUR-SUBDOMAIN.workers.dev`

To try it on this machine: `echo SECRET=only-for-this-machine > .dev.vars`, then `npx wrangler dev`, and open
`cloudflare://:only-for-this-machine@localhost:8787?tls=false`. A secret has no spaces and no comma.

To change the secret: put both, the new and the old one, with a comma between them; give the new one to all programs;
put the new one alone.
"""

IGNORED: Final = ".dev.vars\n.wrangler/\nnode_modules/\n"


class WrittenFile(Struct, frozen=True):
    """A file of the project, and what was done about it: ``written``, ``replaced``, ``unchanged`` or ``kept``."""

    file: str
    did: str


class Project(Struct, frozen=True):
    """What ``standfast cloudflare init`` has made, and what to type next."""

    folder: str
    files: tuple[WrittenFile, ...]
    next: tuple[str, ...]


def worker_source() -> str:
    """Return the worker: one JavaScript module."""
    return resources.files("standfast.stores").joinpath("cloudflare", "worker.js").read_text(encoding="utf-8")


@click.group()
def cloudflare() -> None:
    """Keep a store on Cloudflare, in Durable Objects."""


@cloudflare.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", default="standfast", show_default=True, help="The name of the worker.")
@json_option
def init(folder: Path, name: str, *, as_json: bool) -> None:
    """Write the project to deploy. It has the worker, its settings, and the commands to run next.

    In a folder that has a project, the worker is replaced by that of this version, and everything else stays.
    """
    if _NAME.fullmatch(name) is None:
        raise click.BadParameter("up to 63 of a-z, 0-9 and '-', with no '-' at either end", param_hint="--name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = (
            _write(folder / "worker.js", worker_source(), replace=True),
            _write(folder / "wrangler.jsonc", WRANGLER % name),
            _write(folder / "README.md", README % name),
            _write(folder / ".gitignore", IGNORED),
        )
    except OSError as problem:
        end(f"{problem.filename or folder} cannot be written: {problem.strerror}")
    project = Project(str(folder), files, (f"cd {folder}", "npx wrangler deploy", "npx wrangler secret put SECRET"))
    if as_json:
        print_json(project)
        return
    for each in project.files:
        click.echo(f"{each.did:9}  {folder / each.file}")
    click.echo("next:")
    for command in project.next:
        click.echo(f"  {command}")


def _write(path: Path, text: str, *, replace: bool = False) -> WrittenFile:
    before = path.read_text(encoding="utf-8") if path.exists() else None
    if before == text:
        return WrittenFile(path.name, "unchanged")
    if before is not None and not replace:
        return WrittenFile(path.name, "kept")
    path.write_text(text, encoding="utf-8")
    return WrittenFile(path.name, "written" if before is None else "replaced")
