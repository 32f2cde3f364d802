"""One server of a kind for the whole test run, also when the tests are spread over several processes."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from tests.services.kinds import kind
from tests.services.orders import Order, Place
from tests.services.places import ROOT, MissingError, locked

BEHIND = {"pgbouncer": "postgresql"}


@functools.cache
def run_folder() -> Path:
    """Return a folder that the processes of this test run share."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if not run:
        return fresh_folder()
    folder = Path(tempfile.gettempdir()) / f"standfast-{run}"
    folder.mkdir(mode=0o711, exist_ok=True)
    return folder


def fresh_folder() -> Path:
    """Make a temporary folder that a server may pass through which runs as another user."""
    folder = Path(tempfile.mkdtemp(prefix="standfast-"))
    folder.chmod(0o711)
    return folder


def owner() -> int:
    """Return the process that lives as long as the test run."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


@functools.cache
def shared(name: str) -> Place:
    """Return the server of the run; whoever asks first starts it."""
    try:
        kind(name).program()
    except MissingError as problem:
        return Place(missing=str(problem))
    behind = shared(BEHIND[name]) if name in BEHIND else Place()
    if behind.missing:
        return behind
    note = run_folder() / f"{name}.json"
    with locked(note.with_suffix(".lock")):
        if note.exists():
            return msgspec.json.decode(note.read_bytes(), type=Place)
        place = kept(Order(kind=name, folder=str(run_folder() / name), owner=owner(), behind=behind.url))
        if not place.missing:
            note.write_bytes(msgspec.json.encode(place))
        return place


def kept(order: Order) -> Place:
    """Have a server kept by a process of its own, which may outlive this one."""
    command = [sys.executable, "-m", "tests.services.keeper", msgspec.json.encode(order).decode(), "detached"]
    told = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=ROOT, check=True)
    return msgspec.json.decode(told.stdout, type=Place)
