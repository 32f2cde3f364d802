"""Cloudflare's runtime, ``workerd`` from an npm package, with the worker that this package ships."""

from __future__ import annotations

import secrets
import shutil
import signal
from typing import TYPE_CHECKING, final

from tests.services.http import answers
from tests.services.places import ROOT, fetched

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services.kind import Kind

WORKER = ROOT / "src" / "standfast" / "stores" / "cloudflare" / "worker.js"

SETTINGS = """\
using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [(name = "main", worker = .main), (name = "data", disk = (path = "{folder}/data", writable = true))],
  sockets = [(name = "http", http = (), service = "main")]
);
const main :Workerd.Worker = (
  modules = [(name = "worker.js", esModule = embed "worker.js")],
  compatibilityDate = "2026-10-01",
  bindings = [
    (name = "SECRET", text = "{secret}"),
    (name = "SWEEP_SECONDS", text = "1"),
    (name = "OBJECTS", durableObjectNamespace = "StandfastObject")
  ],
  durableObjectNamespaces = [(className = "StandfastObject", uniqueKey = "standfast", enableSql = true)],
  durableObjectStorage = (localDisk = "data")
);
"""


@final
class Workerd:
    """The worker with objects that are kept in a folder."""

    orderly = signal.SIGINT  # at SIGTERM it waits until the last WebSocket is closed by the other end

    def program(self) -> Path:
        """Return the server."""
        return fetched("cloudflare/package/bin/workerd")

    def prepare(self, folder: Path, behind: str) -> None:
        """Think of a secret, unless ``behind`` is one, and write the settings."""
        secret = behind or secrets.token_hex(16)
        (folder / "secret").write_text(secret)
        (folder / "data").mkdir()
        shutil.copy(WORKER, folder / "worker.js")
        (folder / "settings.capnp").write_text(SETTINGS.format(folder=folder, secret=secret))

    def command(self, folder: Path, port: int) -> list[str]:
        """Run it."""
        return [
            str(self.program()),
            "serve",
            str(folder / "settings.capnp"),
            "--experimental",
            "--socket-addr",
            f"http=127.0.0.1:{port}",
        ]

    def url(self, folder: Path, port: int) -> str:
        """Return the URL of the worker, with its secret."""
        return f"cloudflare://:{(folder / 'secret').read_text()}@127.0.0.1:{port}?tls=false"

    def ready(self, url: str) -> bool:
        """Get an answer."""
        return answers(url, "/")


KINDS: dict[str, Kind] = {"cloudflare": Workerd()}
