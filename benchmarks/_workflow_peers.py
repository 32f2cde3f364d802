"""The peers in durable workflows: set up, started, asked in turn, and put to rest in between."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from benchmarks._workflow_windows import Taking, Window, p50, rate
from benchmarks.harness import ENVIRONMENTS, ROOT, peer_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from benchmarks.harness import Measure

PACKAGES: Final = ("dbos==3.3.0", "restate-sdk==1.2.0", "hypercorn==0.18.0")
SERVER: Final = "@restatedev/restate-server@1.7.12"
BINARY: Final = "node_modules/@restatedev/restate-server-*/bin/restate-server"  # not the script that starts it
DBOS_WAL, DBOS, RESTATE = "DBOS in WAL", "DBOS as shipped", "Restate"

DBOS_SECONDS: Final = 4.0  # shorter windows understate it
RESTATE_SECONDS: Final = 1.5
SHORT: Final = 0.5  # in the round that does not count
SLEEPERS: Final = 1_000
BACKLOGS: Final = {"0.01": 300, "default": 12}


class Peer:
    """A process of a peer. Between its turns it is stopped, so that its polling takes nothing from the others."""

    def __init__(self, *command: str, rests: bool = True) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, encoding="utf-8")
        self._rests = rests
        assert self._hear() == "ready"
        self._rest()

    def ask(self, what: str, **more: object) -> Any:  # noqa: ANN401 -- whatever JSON the process answers
        """Let it measure something; return its figures."""
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(f"{json.dumps({'what': what, **more})}\n")
        self._process.stdin.flush()
        figures = self._hear()
        self._rest()
        return figures

    def _hear(self) -> Any:  # noqa: ANN401 -- whatever JSON the process answers
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with code {self._process.wait()}")
        return json.loads(line)

    def _rest(self) -> None:
        if self._rests:
            self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """Let it end, and see to it that it does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGCONT)
        with contextlib.suppress(OSError):  # it is dead already
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Peers:
    """Everybody who could be had, by name. Who could not is in ``absent``, with the reason."""

    def __init__(self, folder: Path, python: Path | None, server: Path | None) -> None:
        self._folder, self._python, self._server = folder, python, server
        self._peers: dict[str, Peer] = {}
        self._windows: dict[tuple[str, int, int], Taking[Window]] = {}

    @property
    def absent(self) -> Mapping[str, str]:
        """Who could not be asked, and why."""
        if self._python is None:
            return dict.fromkeys(("DBOS", RESTATE), "not to be had")
        return {} if self._server else {RESTATE: "its server is not to be had"}

    @property
    def names(self) -> list[str]:
        """Who can be asked."""
        everyone = {DBOS_WAL: self._python, DBOS: self._python, RESTATE: self._python and self._server}
        return [name for name, there in everyone.items() if there]

    def runs(self, at_once: int, steps: int, *, every_round: bool) -> dict[str, Measure]:
        """Return measures of runs a second; those that are not part of a bar are measured once."""
        return {name: self._taking(name, at_once, steps, every_round=every_round).figure(rate) for name in self.names}

    def latencies(self, steps: int) -> dict[str, Measure]:
        """Return measures of the time from a start to its result, one after another."""
        return {name: self._taking(name, 1, steps, every_round=False).figure(p50) for name in self.names}

    def queues(self) -> dict[str, Measure]:
        """Return measures of runs of one step a second that take turns."""
        measures: dict[str, Measure] = {}
        if self._python:
            measures["DBOS at a 10 ms poll"] = lambda: self._dbos_queue("0.01")
            measures["DBOS by default"] = functools.cache(lambda: self._dbos_queue("default"))
        if RESTATE in self.names:
            measures[RESTATE] = lambda: float(self._peer(RESTATE).ask("queue", backlog=20, seconds=RESTATE_SECONDS))
        return measures

    def sleepers(self) -> dict[str, Measure]:
        """Return measures of the kB that a sleeping run adds to its worker."""
        if not self._python:
            return {}
        return {"DBOS": functools.cache(lambda: float(self._dbos("naps", "wal").ask("sleepers", count=SLEEPERS)))}

    def _taking(self, name: str, at_once: int, steps: int, *, every_round: bool) -> Taking[Window]:
        measure = self._measure(name, at_once, steps)
        if not every_round or name == DBOS:
            measure = functools.cache(functools.partial(measure, short=False))
        return self._windows.setdefault((name, at_once, steps), Taking(measure))

    def _measure(self, name: str, at_once: int, steps: int) -> Callable[..., Window]:
        turns = itertools.count()

        def measure(*, short: bool = True) -> Window:
            seconds = RESTATE_SECONDS if name == RESTATE else DBOS_SECONDS
            is_warm_up = short and next(turns) == 0
            order = {"at_once": at_once, "steps": steps, "seconds": SHORT if is_warm_up else seconds}
            return Window(*self._peer(name).ask("runs", **order))

        return measure

    def _peer(self, name: str) -> Peer:
        if name != RESTATE:
            return self._dbos(name, "shipped" if name == DBOS else "wal")
        return self._peers.get(name) or self._start(
            name, "benchmarks._workflow_restate", str(self._server), str(self._folder / "restate"), rests=False
        )

    def _dbos(self, name: str, journal: str, poll: str = "") -> Peer:
        path = self._folder / f"{name.replace(' ', '-')}.dbos"
        return self._peers.get(name) or self._start(name, "benchmarks._workflow_dbos", str(path), journal, poll)

    def _dbos_queue(self, poll: str) -> float:
        peer = self._dbos(f"queue {poll}", "wal", poll)
        return float(peer.ask("queue", backlog=BACKLOGS[poll], seconds=DBOS_SECONDS))

    def _start(self, name: str, module: str, *arguments: str, rests: bool = True) -> Peer:
        peer = self._peers[name] = Peer(str(self._python), "-m", module, *arguments, rests=rests)
        return peer

    def close(self) -> None:
        """Let all of them end."""
        for peer in self._peers.values():
            peer.close()


@contextlib.contextmanager
def peers(folder: Path) -> Iterator[Peers]:
    """Set up whoever can be had; each is started when it is asked for the first time."""
    everyone = Peers(folder, peer_environment("workflows", *PACKAGES), restate_server())
    try:
        yield everyone
    finally:
        everyone.close()


def restate_server() -> Path | None:
    """Return the server, fetched on first use; None, loudly, if it cannot be had."""
    home = ENVIRONMENTS / "restate-server"
    ready = home / "ready"
    try:
        if not ready.exists() or ready.read_text(encoding="utf-8") != SERVER:
            _fetch(home)
            ready.write_text(SERVER, encoding="utf-8")
        return next(home.glob(BINARY))
    except (OSError, subprocess.CalledProcessError, StopIteration) as error:
        print(f"!! Restate is left out, {SERVER} could not be set up: {error!r}", file=sys.stderr)
        return None


def _fetch(home: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm")
    print(f"setting up a peer in {home.relative_to(ROOT)}: {SERVER}", file=sys.stderr)
    home.mkdir(parents=True, exist_ok=True)
    options = ("--silent", "--no-fund", "--no-audit", "--no-save", "--prefix", str(home))
    subprocess.run([npm, "install", *options, SERVER], check=True, stdout=subprocess.DEVNULL)
