"""See Standfast at work: ``make demo``.

Tasks of one process contend for keys, then several processes for the records of one SQLite file and for a durable
mutex, and a workflow fulfils orders; some are killed, one is stopped for too long. Then a support chat is served to a
customer in a hurry. It ends by itself, and its exit code says whether every promise was kept: 0 if so.

    python examples/demo.py            the show, about 25 seconds
    python examples/demo.py --quick    the same in a hurry
    python examples/demo.py --json     no show, but a summary for machines
    python examples/demo.py --serve    the show; then the chat is served until Ctrl-C, to be tried in a browser
    python examples/demo.py --only support    one part of it: tasks, store, takeover, survival or support
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from demonstration import worker
from demonstration.findings import Report, explain
from demonstration.hints import play_hints
from demonstration.processes import play_processes
from demonstration.screen import Screen
from demonstration.support import keep_serving, play_support
from demonstration.survival import play_survival
from demonstration.takeover import play_takeover
from demonstration.tasks import play_first_come, play_modes

import standfast as sf

if TYPE_CHECKING:
    from collections.abc import Collection


PARTS: Final = ("tasks", "store", "takeover", "survival", "support")


async def play(parts: Collection[str], screen: Screen, report: Report, folder: Path, pace: float) -> None:
    """Play scenes, one after another."""
    url = f"sqlite:///{folder / 'demo.db'}"
    if "tasks" in parts:
        await play_first_come(screen, report, pace)
        await play_modes(screen, report, pace)
    async with sf.open(url, namespace="demo") as space:
        if "store" in parts:
            await play_processes(space, url, folder, screen, report, pace)
            await play_hints(space, url, screen, report, pace)
        if "takeover" in parts:
            await play_takeover(space, url, folder, screen, report, pace)
    if "survival" in parts:
        await play_survival(url, folder, screen, report, pace)
    if "support" in parts:
        await play_support(folder, screen, report)


def show(chosen: argparse.Namespace) -> Report:
    """Play the demonstration and explain what was seen."""
    report, began, parts = Report(), time.monotonic(), chosen.only or PARTS
    silent, pace = chosen.json, 0.4 if chosen.quick else 0.7
    with Screen(sys.stdout, silent=silent) as screen, tempfile.TemporaryDirectory(prefix="standfast-demo-") as folder:
        screen.say(f"{screen.paint('Standfast at work', 'bold')}: real tasks, real processes, checked at the end")
        asyncio.run(play(parts, screen, report, Path(folder), pace))
        report.figures["seconds"] = time.monotonic() - began
        explain(report, screen)
        if chosen.serve:
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(keep_serving(Path(folder), screen))
    return report


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description="See Standfast at work.")
    parser.add_argument("--quick", action="store_true", help="the same in a hurry")
    parser.add_argument("--json", action="store_true", help="no show, but a summary for machines")
    parser.add_argument("--serve", action="store_true", help="serve the support chat afterwards, until Ctrl-C")
    parser.add_argument("--only", action="append", choices=PARTS, help="play this part; give it again for more")
    parser.add_argument("--as", nargs=2, dest="role", help=argparse.SUPPRESS)  # how it starts its other processes
    chosen = parser.parse_args()
    if chosen.role:
        worker.main(*chosen.role)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was started ends with it
    try:
        report = show(chosen)
    except KeyboardInterrupt:
        return 130
    if chosen.json:
        print(json.dumps(report.as_dict(), indent=2))
    return 0 if report.kept else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # whoever read it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
