"""Fetch the servers for the tests, or start them for work by hand: see docs/how-to/run-the-test-servers.md."""

from __future__ import annotations

import argparse
import signal
from contextlib import suppress

from tests.services.downloads import fetch_all
from tests.services.kinds import IN_FRONT, MODULES
from tests.services.shared_server import shared

NAMES = [name for name in MODULES if name not in IN_FRONT]


def start(names: list[str]) -> None:
    """Start servers, print where they are, and end them with this process."""
    for name in names or NAMES:
        place = shared(name)
        print(f"{name:12}{place.url or 'missing: ' + place.missing}", flush=True)
    print("Ctrl-C stops them.", flush=True)
    signal.pause()


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.services", description=__doc__)
    commands = parser.add_subparsers(required=True)
    commands.add_parser("fetch", help="fetch what is not there yet").set_defaults(run=lambda _: fetch_all())
    starter = commands.add_parser("start", help="start servers until Ctrl-C")
    starter.add_argument("names", nargs="*", metavar="NAME", help=f"which ones, of {', '.join(NAMES)}; all if none")
    starter.set_defaults(run=lambda options: start(options.names))
    options = parser.parse_args()
    if unknown := set(getattr(options, "names", ())) - set(NAMES):
        parser.error(f"there is no {unknown.pop()}; there are {', '.join(NAMES)}")
    with suppress(KeyboardInterrupt):
        options.run(options)


if __name__ == "__main__":
    main()
