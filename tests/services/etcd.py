"""etcd 3.5, from Debian's packages: one member that is a cluster of its own."""

from __future__ import annotations

import http.client
import json
import signal
from contextlib import closing
from typing import TYPE_CHECKING, final
from urllib.parse import urlsplit

from tests.services.places import fetched
from tests.services.server_process import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services.kind import Kind


def healthy(host: str) -> bool:
    """Tell whether a member is part of a cluster that has a leader."""
    with closing(http.client.HTTPConnection(host, timeout=5)) as connection:
        try:
            connection.request("GET", "/health")
            return bool(json.loads(connection.getresponse().read()).get("health") == "true")
        except (OSError, http.client.HTTPException, ValueError):
            return False


@final
class Etcd:
    """A cluster without users; every member compacts its history after five minutes.

    One by itself has the times that the docs recommend; several share a small machine, and have those of etcd.
    """

    orderly = signal.SIGTERM

    def program(self) -> Path:
        """Return the server."""
        return fetched("etcd/usr/bin/etcd")

    def prepare(self, folder: Path, behind: str) -> None:
        """Choose a port for the other members, if there were any."""
        (folder / "peer").write_text(behind or str(free_port()))

    def command(self, folder: Path, port: int) -> list[str]:
        """Run it; in a test's own cluster ``behind`` has named the ports of all members, this one's first.

        Behind a slash may follow the port by which the others reach a member.
        """
        own, *others = [peer.partition("/") for peer in (folder / "peer").read_text().split(",")]
        lines = {name: f"http://127.0.0.1:{line or name}" for name, _, line in (own, *others)}
        members = ",".join(f"m{name}={line}" for name, line in lines.items())
        client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{own[0]}"
        return [
            str(self.program()),
            *("--name", f"m{own[0]}", "--data-dir", str(folder / "data"), "--log-level", "warn"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", lines[own[0]]),
            *("--initial-cluster", members),
            *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", "5m"),
            *(() if others else ("--heartbeat-interval", "50", "--election-timeout", "500")),
        ]

    def url(self, folder: Path, port: int) -> str:
        """Return the URL of the keys below a prefix."""
        del folder
        return f"etcd://127.0.0.1:{port}/standfast"

    def ready(self, url: str) -> bool:
        """See that it has a leader; a member of several does not wait for the others."""
        return healthy(urlsplit(url).netloc)


KINDS: dict[str, Kind] = {"etcd": Etcd()}
