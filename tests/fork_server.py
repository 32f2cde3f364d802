"""Processes that tests start, forked from one that has imported everything: milliseconds instead of half a second.

``ForkedPopen`` is ``subprocess.Popen``, and ``forked_exec`` is ``asyncio.create_subprocess_exec``. A command that is
this interpreter with a module, some code or a script is forked from a server, one for each process of tests; any
other command, and any option that a fork cannot honour, gives a real process as before. The new process is a child of
the one that asked: it is waited for, killed and counted as always.

Where a fresh interpreter is the point (what an import loads, seeds of hashes, entry points), tests use ``subprocess``.
``make prove`` forks nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import inspect
import io
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import types
import warnings
from pathlib import Path
from typing import Any, AnyStr, Final, final
from unittest import mock

import msgspec

from tests.sizes import PROVE

ROOT: Final = Path(__file__).resolve().parents[1]
PRELOADED: Final = (
    "asyncio.subprocess",
    "apsw",
    "sqlite3",
    "starlette.applications",
    "uvicorn",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
    "standfast.blocking",
    "standfast.cli",
    "standfast.cli.audit",
    "standfast.cli.limits",
    "standfast.cli.operations",
    "standfast.cli.requests",
    "standfast.cli.schedules",
    "standfast.cli.serve",
    "standfast.cli.status",
    "standfast.cli.store",
    "standfast.cli.worker",
    "standfast.stores.sqlite",
    "standfast.web",
)
BAKED_IN: Final = ("GLIBC_", "LANG", "LC_", "LD_", "MALLOC_", "PYTHON", "TZ")
"""What variables begin with that an interpreter reads as it starts: where they differ, a fork will not do."""

SUBREAPER: Final = 36  # PR_SET_CHILD_SUBREAPER
LONGEST: Final = 1 << 20
START: Final = "import sys; sys.path[0] = sys.argv[1]; from tests.fork_server import serve; serve(int(sys.argv[2]))"


class Job(msgspec.Struct):
    """A command of this interpreter, and what it finds when it starts."""

    options: list[str]
    way: str
    program: str
    arguments: list[str]
    environment: dict[bytes, bytes]
    folder: str
    umask: int
    has_own_session: bool
    process_group: int


# --- the server ---------------------------------------------------------------------------------------------------


def serve(channel: int) -> None:
    """Fork for each job that comes until the other end is closed; in the fork, do the job and return."""
    base = sys.path[1:]
    for name in PRELOADED:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a process with threads must not fork"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests and their processes
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=channel) as jobs:
        found = next_job(jobs)
    if found is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        do(found, base)


def next_job(jobs: socket.socket) -> Job | None:
    """Return the job in a new process, and nothing in the server when there are no more."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(jobs, LONGEST, 3)
        if not data:
            return None
        told, tell = os.pipe()
        begun, begin = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid:  # its parent is now the process of tests, which asked to have orphans
                os.write(tell, str(pid).encode())
                os._exit(0)
            os.close(begin)
            os.read(begun, 1)
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
            for descriptor in (told, tell, begun, *descriptors):
                os.close(descriptor)
            return msgspec.msgpack.decode(data, type=Job)
        os.waitpid(between, 0)
        jobs.send(os.read(told, 32))
        os.write(begin, b"!")
        for descriptor in (told, tell, begun, begin, *descriptors):
            os.close(descriptor)


def do(job: Job, base: list[str]) -> None:
    """Be the interpreter that was asked for, from its options to its end."""
    if job.has_own_session:
        os.setsid()
    if job.process_group >= 0:
        os.setpgid(0, job.process_group)
    if job.umask >= 0:
        os.umask(job.umask)
    os.chdir(job.folder)
    os.environb.clear()
    os.environb.update(job.environment)
    if os.isatty(1) and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    for option in job.options:
        sys.warnoptions.append(option)
        warnings._processoptions([option])  # type: ignore[attr-defined]  # the interpreter calls it for -W
    first = {"-m": job.folder, "-c": ""}.get(job.way, str(Path(job.program).resolve().parent))
    chosen = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [first, *chosen, *base]
    importlib.invalidate_caches()
    sys.argv[:] = [job.way or job.program, *job.arguments]
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    if job.way == "-m":
        runpy._run_module_as_main(job.program)  # type: ignore[attr-defined]  # the interpreter calls it for -m
        return
    code = job.program
    if not job.way:
        main.__file__ = job.program
        code = Path(job.program).read_text(encoding="utf-8")
    exec(compile(code, "<string>" if job.way else job.program, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 -- it is the interpreter here


# --- the tests ----------------------------------------------------------------------------------------------------


@final
class ForkServer:
    """The process that forks for this one, and the way to it."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._asking: Final = threading.Lock()
        self.pid: Final = os.getpid()
        with theirs:
            self._process: Final = subprocess.Popen(
                [sys.executable, "-c", START, str(ROOT), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
                env=environment,
                pass_fds=[theirs.fileno()],
            )

    def start(self, job: Job, descriptors: list[int]) -> int:
        """Start a process with its three standard streams; return its number when it is a child of this one."""
        with self._asking:
            adopt(orphans=True)
            try:
                socket.send_fds(self._channel, [msgspec.msgpack.encode(job)], descriptors)
                return int(self._channel.recv(32))
            finally:
                adopt(orphans=False)

    def close(self) -> None:
        """End the server."""
        self._channel.close()
        self._process.wait()


def adopt(*, orphans: bool) -> None:
    """Say whether processes below this one whose parent ends become its children."""
    if ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, int(orphans), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


servers: Final[list[ForkServer]] = []


def server() -> ForkServer:
    """Return the server of this process, started when it is asked for the first time."""
    if not servers or servers[-1].pid != os.getpid():
        servers.append(ForkServer())
    return servers[-1]


def close() -> None:
    """End the server of this process, if it has one."""
    if servers and servers[-1].pid == os.getpid():
        servers.pop().close()


ASKED: Final = inspect.signature(getattr(subprocess.Popen, "_execute_child"))  # noqa: B009 -- private, and all there is
PLAIN: Final = {"executable": None, "preexec_fn": None, "close_fds": True, "pass_fds": (), "shell": False}
"""Options as ``subprocess`` has them unless told otherwise; with any other a real process is started."""
SAME_USER: Final = {"gid": None, "gids": None, "uid": None, "restore_signals": True}


def job_of(asked: dict[str, Any]) -> Job | None:
    """Return what a fork has to do to be the process that was asked for; nothing if it cannot."""
    if PROVE or sys.platform != "linux":
        return None
    if any(asked[name] != usual for name, usual in (PLAIN | SAME_USER).items()):
        return None
    if isinstance(asked["args"], str | bytes | os.PathLike):
        return None
    command = [os.fsdecode(word) for word in asked["args"]]
    environment: dict[str, str] = dict(os.environ if asked["env"] is None else asked["env"])
    folder = os.path.abspath(os.fsdecode(asked["cwd"] or "."))  # noqa: PTH100 -- as the shell has it, links and all
    words = words_of(command)
    if words is None or baked_in(environment) != baked_in(os.environ) or not Path(folder).is_dir():
        return None
    options, way, program, arguments = words
    return Job(
        options=options,
        way=way,
        program=program,
        arguments=arguments,
        environment={os.fsencode(name): os.fsencode(value) for name, value in environment.items()},
        folder=folder,
        umask=asked["umask"],
        has_own_session=asked["start_new_session"],
        process_group=asked["process_group"],
    )


def words_of(command: list[str]) -> tuple[list[str], str, str, list[str]] | None:
    """Return the parts of a command that is this interpreter: warnings, ``-m`` or ``-c``, what to run, and the rest."""
    if command[0] != sys.executable:
        return None
    rest, options = command[1:], []
    while rest[:1] == ["-W"]:
        options.append(rest[1])
        rest = rest[2:]
    if rest[:1] in (["-m"], ["-c"]):
        return options, rest[0], rest[1], rest[2:]
    if rest and rest[0].endswith(".py"):
        return options, "", rest[0], rest[1:]
    return None


def baked_in(environment: Any) -> dict[str, str]:
    """Return the variables that an interpreter reads as it starts; the path is set anew in every fork."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(BAKED_IN) and value and name != "PYTHONPATH"
    }


class ForkedPopen(subprocess.Popen[AnyStr]):
    """A process as ``subprocess.Popen`` starts it, forked from the server where that makes no difference."""

    def _execute_child(self, *arguments: Any) -> None:
        asked = ASKED.bind(self, *arguments).arguments
        job = job_of(asked)
        if job is None:
            getattr(super(), "_execute_child")(*arguments)  # noqa: B009 -- private, and all there is
            return
        ends = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
        self.pid = server().start(job, [number if end == -1 else end for number, end in enumerate(ends)])
        self._child_created = True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        getattr(self, "_close_pipe_fds")(*(asked[name] for name in names))  # noqa: B009 -- private, and all there is


async def forked_exec(*command: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a process as ``asyncio.create_subprocess_exec`` does."""
    with mock.patch.object(subprocess, "Popen", ForkedPopen):
        return await asyncio.create_subprocess_exec(*command, **options)


def forked_run(command: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end as ``subprocess.run`` does."""
    with mock.patch.object(subprocess, "Popen", ForkedPopen):
        return subprocess.run(command, **options)  # noqa: PLW1510 -- the caller says whether it is checked
