"""MariaDB 10.11, from Debian's packages."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from typing import TYPE_CHECKING, final
from urllib.parse import urlsplit

import asyncmy

from tests.services.commands import run
from tests.services.places import fetched, libraries
from tests.services.templates import copy_template

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services.kind import Kind

USER = DATABASE = "standfast"
TABLES = ("mysql_system_tables", "mysql_system_tables_data", "mysql_performance_tables", "maria_add_gis_sp_bootstrap")


@final
class MariaDB:
    """A server with one user, who may do anything, and a database of the same name."""

    orderly = signal.SIGTERM

    def program(self) -> Path:
        """Return the server."""
        return fetched("debian/usr/sbin/mariadbd")

    def prepare(self, folder: Path, behind: str) -> None:
        """Copy a data folder; making one takes a while."""
        del behind
        copy_template("mysql", folder, self._build)

    def _build(self, folder: Path) -> None:
        secret = secrets.token_hex(8)
        (folder / "secret").write_text(secret)
        (folder / "data").mkdir()
        tables = [(fetched("debian/usr/share/mysql") / f"{name}.sql").read_text() for name in TABLES]
        user = [
            "flush privileges;",
            f"create database {DATABASE};",
            f"create user '{USER}'@'%' identified by '{secret}';",
            f"grant all on *.* to '{USER}'@'%' with grant option;",
        ]
        statements = "\n".join(["create database mysql;", "use mysql;", *tables, *user, ""])
        command = [*self._command(folder), "--bootstrap", "--skip-log-bin"]
        environment = os.environ | {"LD_LIBRARY_PATH": libraries()}
        run(*command, cwd=folder, given=statements, environment=environment)

    def _command(self, folder: Path) -> list[str]:
        share = fetched("debian/usr/share/mysql")
        settings = {
            "datadir": folder / "data",
            "lc-messages-dir": share,
            "character-sets-dir": share / "charsets",
            "innodb-buffer-pool-size": "128M",
            "innodb-log-file-size": "48M",
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        superuser = [] if os.geteuid() else ["--user=root"]  # must be said, or it refuses
        return [str(self.program()), "--no-defaults", *options, *superuser]

    def command(self, folder: Path, port: int) -> list[str]:
        """Run it with a log for replication, as most are run; every commit is synced."""
        network = ["--bind-address=127.0.0.1", f"--port={port}", "--socket=socket", "--skip-name-resolve"]
        limits = ["--max-connections=300", "--log-bin=log-bin", "--sync-binlog=1", "--default-time-zone=+00:00"]
        return [*self._command(folder), *network, *limits]

    def url(self, folder: Path, port: int) -> str:
        """Return the URL of the database."""
        return f"mysql://{USER}:{(folder / 'secret').read_text()}@127.0.0.1:{port}/{DATABASE}"

    def ready(self, url: str) -> bool:
        """Log in."""
        try:
            asyncio.run(log_in(url))
        except (OSError, asyncmy.errors.Error):
            return False
        return True


async def log_in(url: str) -> None:
    """Open a connection and close it."""
    parts = urlsplit(url)
    connection = await asyncmy.connect(
        host=parts.hostname, port=parts.port or 0, user=parts.username, password=parts.password or "", connect_timeout=5
    )
    await connection.ensure_closed()


KINDS: dict[str, Kind] = {"mysql": MariaDB()}
