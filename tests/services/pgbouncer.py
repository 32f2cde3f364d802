"""pgbouncer 1.18 in transaction mode, from Debian's packages."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, final
from urllib.parse import urlsplit

from tests.services.identity import hand_over, ordinary
from tests.services.places import fetched
from tests.services.postgresql import can_log_in

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services.kind import Kind

SETTINGS = """
[databases]
* = host={host} port={backend} pool_size=20

[pgbouncer]
listen_addr = 127.0.0.1
unix_socket_dir =
pool_mode = transaction
max_client_conn = 1000
auth_type = scram-sha-256
auth_file = {folder}/users
ignore_startup_parameters = extra_float_digits
server_login_retry = 1
server_connect_timeout = 2
listen_port = {port}
"""


@final
class PgBouncer:
    """A pooler in front of a PostgreSQL: a session ends with each transaction, and a user keeps password and name."""

    orderly = signal.SIGINT

    def program(self) -> Path:
        """Return the pooler."""
        return fetched("debian/usr/sbin/pgbouncer")

    def prepare(self, folder: Path, behind: str) -> None:
        """Write down the server behind, and who may log in."""
        user = urlsplit(behind)
        (folder / "behind").write_text(behind)
        (folder / "users").write_text(f'"{user.username}" "{user.password}"\n')
        hand_over(folder)

    def command(self, folder: Path, port: int) -> list[str]:
        """Run it with settings for the port."""
        server = urlsplit((folder / "behind").read_text())
        settings = SETTINGS.format(host=server.hostname, backend=server.port, folder=folder, port=port)
        (folder / "settings").write_text(settings)
        return [*ordinary(), str(self.program()), str(folder / "settings")]

    def url(self, folder: Path, port: int) -> str:
        """Return the URL of the database behind, through the pooler."""
        server = urlsplit((folder / "behind").read_text())
        return server._replace(netloc=f"{server.username}:{server.password}@127.0.0.1:{port}").geturl()

    def ready(self, url: str) -> bool:
        """Log in to the server behind."""
        return can_log_in(url)


KINDS: dict[str, Kind] = {"pgbouncer": PgBouncer()}
