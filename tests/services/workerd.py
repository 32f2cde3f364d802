"""Cloudflare's runtime, ``workerd`` from an npm package, with the worker that this package ships."""

from __future__ import annotations

import json
import re
import secrets
import signal
from typing import TYPE_CHECKING, final

from standfast.cli.cloudflare import WRANGLER, worker_source
from tests.services.http import answers
from tests.services.places import fetched

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services.kind import Kind

SETTINGS = """\
using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [(name = "main", worker = .main), (name = "data", disk = (path = "{folder}/data", writable = true))],
  sockets = [(name = "http", http = (), service = "main")]
);
const main :Workerd.Worker = (
  modules = [(name = "{main}", esModule = embed "{main}")],
  compatibilityDate = "{date}",
  bindings = [
    (name = "SECRET", text = "{secret}"),
    (name = "SWEEP_SECONDS", text = "1"),
    (name = "{binding}", durableObjectNamespace = "{objects}")
  ],
  durableObjectNamespaces = [(className = "{objects}", uniqueKey = "standfast", enableSql = true)],
  durableObjectStorage = (localDisk = "data")
);
"""


def settings_of(folder: Path, secret: str) -> str:
    """Write the worker; return what the settings of ``standfast cloudflare init`` are for the runtime alone."""
    written = json.loads(re.sub(r"^\s*//.*$", "", WRANGLER % "standfast", flags=re.MULTILINE))
    [binding] = written["durable_objects"]["bindings"]
    assert written["migrations"][0]["new_sqlite_classes"] == [binding["class_name"]]
    (folder / written["main"]).write_text(worker_source())
    names = {"main": written["main"], "binding": binding["name"], "objects": binding["class_name"]}
    return SETTINGS.format(folder=folder, secret=secret, date=written["compatibility_date"], **names)


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
        (folder / "settings.capnp").write_text(settings_of(folder, secret))

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
