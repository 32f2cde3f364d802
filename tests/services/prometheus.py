"""Prometheus 2.42 and its promtool, from Debian's packages: it scrapes what the settings of a test name."""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING, final

from tests.services.http import answers
from tests.services.places import fetched

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services.kind import Kind


def promtool() -> Path:
    """Return the tool that checks settings and rules."""
    return fetched("prometheus/usr/bin/promtool")


@final
class Prometheus:
    """A Prometheus of a test's own; ``behind`` is the path of its settings."""

    orderly = signal.SIGTERM

    def program(self) -> Path:
        """Return the server."""
        return fetched("prometheus/usr/bin/prometheus")

    def prepare(self, folder: Path, behind: str) -> None:
        """Keep a copy of the settings."""
        shutil.copy(behind, folder / "settings.yml")

    def command(self, folder: Path, port: int) -> list[str]:
        """Run it with its data in the folder."""
        return [
            str(self.program()),
            f"--config.file={folder / 'settings.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]

    def url(self, folder: Path, port: int) -> str:
        """Return its address."""
        del folder
        return f"http://127.0.0.1:{port}"

    def ready(self, url: str) -> bool:
        """Get an answer."""
        return answers(url, "/-/ready")


KINDS: dict[str, Kind] = {"prometheus": Prometheus()}
