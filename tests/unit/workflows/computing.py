"""Steps that run in processes of their own: another process finds them here by their names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import standfast as sf


class UnevenError(Exception):
    """It has no half."""


@dataclass
class Point:
    """A place."""

    x: int
    y: int


@sf.step(process=True)
def moved(point: Point, by: int = 1) -> Point:
    """Return a point beside another one."""
    print("moved")
    return Point(point.x + by, point.y + by)


@sf.step(process=True, raises=[UnevenError])
def half(number: int) -> int:
    """Return a half."""
    if number % 2:
        raise UnevenError(number)
    return number // 2


@sf.step(process=True)
def process_id() -> tuple[int, str]:
    """Return where it runs, and its step."""
    return os.getpid(), sf.current_step().step_id


@sf.step(process=True, timeout="300ms")
def computes_too_long(file: str) -> None:
    """Compute for ever, with a child of its own."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(file).write_text(f"{os.getpid()} {child.pid}")
    while True:
        pass


@sf.step(process=True)
def computes_for_ever(file: str) -> None:
    """Compute for ever."""
    Path(file).write_text(str(os.getpid()))
    while True:
        time.perf_counter()


@sf.step(process=True, retry=sf.Retry(attempts=2, delay=0.001))
def dies_once(file: str) -> str:
    """Be killed the first time, as by a system without memory."""
    if not Path(file).exists():
        Path(file).write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


@sf.step(process=True)
def dies() -> None:
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)


@sf.step(process=True)
def leaves() -> None:
    """End the process."""
    os._exit(3)
