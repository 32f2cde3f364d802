"""Processes that tests are spread over, forked from one that has collected them: that takes ten seconds of CPU.

``pytest -n 4`` lets each of its processes import and collect everything. Here one does, the template, which runs no
test: it forks whenever xdist wants a process, also in place of one that has crashed. What the template says while it
collects, each fork says again, so that xdist sees processes like its own. Scheduling and reports are xdist's.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, final

import pytest
from _pytest.tmpdir import TempPathFactory
from xdist import dsession, remote, workermanage
from xdist.plugin import _sys_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from execnet import XSpec

START: Final = """
import marshal, socket, sys
from _pytest.config import _prepareconfig
with socket.socket(fileno=int(sys.argv[1])) as jobs:
    sys.path[:], arguments, program, run = marshal.loads(jobs.recv(1 << 20))
    config = _prepareconfig(arguments, None)
    from tests.forked_workers import collect
    collect(config, jobs, program, run)
"""
LONGEST: Final = 1 << 20
LENGTH: Final = 4
"""Bytes that say how long a message is."""


def pytest_configure(config: pytest.Config) -> None:
    """Give xdist its processes from here."""
    if not hasattr(config, "workerinput") and sys.platform == "linux":
        setattr(dsession, "NodeManager", ForkedNodes)  # noqa: B010 -- it is a name of another module


def loads(data: bytes) -> Any:
    """Return what a process of this test run has sent, tuples as tuples."""
    return marshal.loads(data)  # noqa: S302 -- it is one of ours, and the same interpreter


@final
class Channel:
    """One end of a connection, as xdist uses a channel of execnet; what is said before there is one is kept."""

    def __init__(self, connection: socket.socket | None = None) -> None:
        self.gateway: Final = SimpleNamespace(execmodel=SimpleNamespace(RLock=threading.RLock, Event=threading.Event))
        self._connection = connection
        self._said: list[bytes] = []
        self._sending: Final = threading.Lock()

    def connect(self, connection: socket.socket) -> None:
        """Say what was said so far."""
        self._connection = connection
        connection.sendall(b"".join(self._said))
        self._said.clear()

    def send(self, message: Any) -> None:
        """Send a message, or keep it."""
        data = marshal.dumps(message)
        framed = len(data).to_bytes(LENGTH, "big") + data
        with self._sending:
            if self._connection is None:
                self._said.append(framed)
            else:
                self._connection.sendall(framed)

    def setcallback(self, callback: Callable[[Any], object], endmarker: object) -> None:
        """Call back for each message from now on, and at the end, in a thread."""
        threading.Thread(target=self._receive, args=(callback, endmarker), daemon=True).start()

    def _receive(self, callback: Callable[[Any], object], endmarker: object) -> None:
        assert self._connection is not None
        with contextlib.suppress(OSError), self._connection.makefile("rb") as received:
            while length := received.read(LENGTH):
                callback(loads(received.read(int.from_bytes(length, "big"))))
        callback(endmarker)

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            self._connection.close()

    def _getremoteerror(self) -> None:
        """Return nothing: xdist then says that the process is gone."""


# --- the process that spreads the tests ---------------------------------------------------------------------------


@final
class ForkedNodes(workermanage.NodeManager):  # type: ignore[misc]  # xdist has no types
    """The processes of xdist, each a fork of the template."""

    def setup_nodes(
        self, putevent: Callable[[tuple[str, dict[str, Any]]], None]
    ) -> list[workermanage.WorkerController]:
        """Start the template, and as many processes as wanted when it has collected."""
        self._jobs, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ends: list[Channel] = []
        with theirs:
            self._template = subprocess.Popen(
                [sys.executable, "-c", START, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTEST_XDIST_TESTRUNUID": self.testrunuid, "PYTEST_XDIST_WORKER": "template"},
                pass_fds=[theirs.fileno()],
            )
        arguments = [str(each) for each in self.config.invocation_params.args]
        self._jobs.send(marshal.dumps((_sys_path, arguments, Path(sys.argv[0]).name, self.testrunuid)))
        nodes: list[workermanage.WorkerController] = super().setup_nodes(putevent)
        return nodes

    def setup_node(
        self, spec: XSpec, putevent: Callable[[tuple[str, dict[str, Any]]], None]
    ) -> workermanage.WorkerController:
        """Have one more process forked."""
        node = workermanage.WorkerController(self, SimpleNamespace(id=spec.id, spec=spec), self.config, putevent)
        self.config.hook.pytest_configure_node(node=node)
        ours, theirs = socket.socketpair()
        channel = Channel(ours)
        self._ends.append(channel)
        factory: TempPathFactory = getattr(self.config, "_tmp_path_factory")  # noqa: B009 -- private, and all there is
        with theirs:
            job = marshal.dumps((node.workerinput, str(factory.getbasetemp() / f"popen-{spec.id}")))
            socket.send_fds(self._jobs, [job], [theirs.fileno()])
        node.channel = channel
        channel.setcallback(node.process_from_remote, endmarker=workermanage.Marker.END)
        return node

    def teardown_nodes(self) -> None:
        """End all processes."""
        for channel in self._ends:
            channel.close()
        self._jobs.close()
        try:
            self._template.wait(self.EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._template.terminate()
            self._template.wait()


# --- the template, and its forks ----------------------------------------------------------------------------------


def collect(config: Any, jobs: socket.socket, program: str, run: str) -> None:
    """Collect, and fork for each process that is wanted; in the fork, run the tests that it is told to, and return."""
    remote.setup_config(config, None)
    config._parser.prog = program
    config.workerinput, config.workeroutput = {"workerid": "template", "testrunuid": run}, {}
    channel = Channel()
    remote.interactor = remote.WorkerInteractor(config, channel)
    config.pluginmanager.register(Forking(jobs, channel))
    config.hook.pytest_cmdline_main(config=config)
    channel.close()


@final
class Forking:
    """What the template does instead of running tests."""

    def __init__(self, jobs: socket.socket, said: Channel) -> None:
        self._jobs, self._said = jobs, said

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Return in each fork, which goes on to run tests; the template ends here, after all of them."""
        assert threading.active_count() == 1, "a process with threads must not fork"
        forks = []
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests and their processes
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._jobs, LONGEST, 1)
            if not data:
                break
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGINT, handler)
                self._jobs.close()
                be_worker(session.config, *loads(data))
                self._said.connect(socket.socket(fileno=descriptors[0]))
                return
            forks.append(pid)
            os.close(descriptors[0])
        for pid in forks:
            os.waitpid(pid, 0)
        os._exit(0)


def be_worker(config: Any, given: dict[str, Any], folder: str) -> None:
    """Take what makes a process this one: its name, its folder for files, and what its tests print."""
    config.workerinput.update(given)
    remote.interactor.workerid = given["workerid"]
    os.environ.update(PYTEST_XDIST_WORKER=given["workerid"], PYTEST_XDIST_WORKER_COUNT=str(given["workercount"]))
    config.option.basetemp = folder
    config._tmp_path_factory = TempPathFactory.from_config(config, _ispytest=True)
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
