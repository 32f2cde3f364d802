"""Processes that are killed, each at its own point: forked from one, as loading everything takes the longest."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from tests.integration.postgresql.charges import live_and_die


def main() -> None:
    """Fork a process for each ``point=space`` (or ``seconds=space``), and print how each of them ended."""
    url, server, *victims = sys.argv[1:]
    born: dict[int, str] = {}
    for victim in victims:
        point, _, space = victim.partition("=")
        pid = os.fork()
        if pid == 0:
            if point.replace(".", "").isdigit():
                signal.setitimer(signal.ITIMER_REAL, float(point))  # what SIGALRM does by default: end it at once
            asyncio.run(live_and_die(url, server, space, point))
            os._exit(0)
        born[pid] = point
    for _ in victims:
        pid, status = os.wait()
        print(born[pid], "=", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
