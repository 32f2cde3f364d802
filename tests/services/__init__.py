"""Real servers for tests: `url` names one that the whole test run shares, `private` starts one of a test's own.

A server that cannot be had skips its tests, with a loud line at the end of the run; where
``STANDFAST_REQUIRE_SERVICES=1`` demands that all is there, it fails them.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.services.places import MissingError, fetched

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.services.server import Server

MISSING: dict[str, str] = {}
"""The servers that were asked for in vain, and why."""


def require(found: object, what: str) -> None:
    """Skip the test, saying what is missing; fail it where ``STANDFAST_REQUIRE_SERVICES=1`` demands that all is there.

    require(shutil.which("git"), "git")
    """
    import pytest  # noqa: PLC0415 - the processes that keep servers come by here, and need no pytest

    if found:
        return
    if os.environ.get("STANDFAST_REQUIRE_SERVICES", "0") not in {"", "0"}:
        pytest.fail(f"{what} is missing, and STANDFAST_REQUIRE_SERVICES is set")
    pytest.skip(f"{what} is missing on this machine")


def url(kind: str) -> str:
    """Return the URL of the server that this test run shares, and start it if nobody has yet.

    url("postgresql")
    """
    from tests.services.shared_server import shared  # noqa: PLC0415 - see above

    place = shared(kind)
    _note(kind, place.missing)
    return place.url


@contextmanager
def private(
    kind: str, *, behind: str = "", environment: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
) -> Iterator[Server]:
    """Start a server of this test's own, which it may freeze, kill and start again.

    with private("postgresql", arguments=["-c", "fsync=off"]) as server:
        server.kill()
        server.restart()

    Args:
        kind: as for `url`.
        behind: the URL of the server that this one stands in front of: a PostgreSQL, or one that speaks HTTP.
        environment: variables for the server besides those of this process.
        arguments: more arguments for its command line.
    """
    from tests.services.server import launch  # noqa: PLC0415 - see above

    try:
        server = launch(kind, behind, dict(environment or {}), tuple(arguments))
    except MissingError as problem:
        _note(kind, str(problem))
        raise
    try:
        yield server
    finally:
        server.close()


def faketime(offset: str) -> dict[str, str]:
    """Return the environment of a process whose clock is off, as `private` takes it.

    faketime("+3600s")
    """
    try:
        [library] = fetched("debian").glob("usr/lib/*/faketime/libfaketimeMT.so.1")
    except MissingError as problem:
        _note("libfaketime", str(problem))
        raise
    return {"LD_PRELOAD": str(library), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def _note(kind: str, missing: str) -> None:
    if missing:
        MISSING[kind] = missing
        require(None, f"{kind} ({missing.strip().splitlines()[-1]})")
