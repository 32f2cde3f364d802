"""A stage for adversaries: an application in a real process of ``standfast serve``, alone or behind a real proxy.

with served("tests.integration.adversary.desk:proxied", "--header-time", "1s") as stage:
    wire.exchange(stage.behind("nginx"), wire.post("note"))
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import httpx

from tests import services
from tests.fork_server import ForkedPopen
from tests.integration.cli.programs import PATIENCE, ROOT, SHOWN, Program

if TYPE_CHECKING:
    from collections.abc import Iterator

DESK: Final = "tests.integration.adversary.desk"
FRONTS: Final = ("none", "nginx", "haproxy")
"""What may stand in front of a server."""

BARE: Final = "bare.example"
"""The host under which a proxy does nothing but pass on."""

ADA: Final = {"X-Auth-User": "ada"}


@final
class Stage:
    """A server, and what stands in front of it.

    Attributes:
        url: Where it listens itself.
        program: Its process.
    """

    def __init__(self, program: Program, log: Path, url: str, stack: ExitStack) -> None:
        self.program, self._log, self.url, self._stack = program, log, url, stack
        self._fronts: Final = {"none": url}

    def behind(self, front: str) -> str:
        """Return where a client reaches it through one of `FRONTS`, which is started when it is asked for."""
        if front not in self._fronts:
            self._fronts[front] = self._stack.enter_context(services.private(front, behind=self.url)).url
        return self._fronts[front]

    def log(self) -> str:
        """Return what it has logged."""
        return self._log.read_text(encoding="utf-8")

    def call(self, action: str, headers: dict[str, str] | None = None, **inputs: Any) -> httpx.Response:
        """Call an action of the desk directly, with a connection of its own."""
        given = SHOWN | ADA | {"Connection": "close"} | (headers or {})
        return httpx.post(f"{self.url}/flows/desk/{action}", json=inputs, headers=given, timeout=PATIENCE)

    def is_well(self) -> bool:
        """Return True if an ordinary request is answered."""
        return self.call("noted").status_code == httpx.codes.OK


@contextmanager
def served(name: str, *options: str, **started: Any) -> Iterator[Stage]:
    """Serve an application.

    Args:
        name: Of the application: ``module:attribute``, below the root of the repository.
        options: More options of ``standfast serve``.
        started: How the process is started.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="standfast-")))
        log = stack.enter_context((folder / "log").open("wb"))
        place = () if "--uds" in options else ("--port", "0")
        command = ("serve", name, "--app-dir", str(ROOT), *place, *options)
        program = Program(f"sqlite:///{folder}/store.db", *command, stderr=log, **started)
        stack.callback(_end, program)
        said = program.hear()
        found = re.search(r"at (\S+) \(process", said)
        assert found is not None, said
        yield Stage(program, folder / "log", found[1], stack)


@contextmanager
def under_uvicorn(name: str, http: str) -> Iterator[str]:
    """Serve an application with a uvicorn of one's own, and return where it listens.

    Args:
        name: Of the application.
        http: Which implementation of HTTP it has: ``httptools``, ``h11``, or a class by its name.
    """
    command = [sys.executable, "-m", "uvicorn", name, "--http", http, "--port", "0", "--no-access-log"]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="standfast-"))
        environment = os.environ | {"STANDFAST_STORE": f"sqlite:///{folder}/store.db", "PYTHONPATH": str(ROOT / "src")}
        process = ForkedPopen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        stack.enter_context(process)
        stack.callback(process.kill)
        assert process.stderr is not None
        found = next(filter(None, (re.search(r"running on (http://\S+)", line) for line in process.stderr)))
        yield found[1]


def _end(program: Program) -> None:
    if program.process.poll() is None:
        program.process.kill()
    program.process.wait(PATIENCE)
    for stream in (program.process.stdin, program.process.stdout):
        if stream is not None:
            stream.close()
