"""What every test gets: time limits, a printed seed, and the tally of repeating tests."""

from __future__ import annotations

import gc
import os
import random
import signal
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests import fork_server
from tests.conformance.on_server import OnServer
from tests.selection import IN_MAKE_TEST, is_beyond_essentials, is_exhaustive, is_thorough
from tests.sizes import PROVE, size, tallies

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

pytest_plugins = ["tests.forked_workers", "tests.services.plugin"]

MEMORY, MEMORY_NEEDED = "/dev/shm", 4 << 30  # noqa: S108 -- only its own folders are made there


def prefer_memory() -> None:
    """Let temporary files lie in memory where there is room for them, unless ``TMPDIR`` says where.

    Tests wait for the disk more than for all else: nothing that they kill takes its pages along, and what a power cut
    leaves is tried on a disk of our own making.
    """
    if "TMPDIR" in os.environ or not Path(MEMORY).is_dir():
        return
    found = os.statvfs(MEMORY)
    if found.f_bavail * found.f_frsize >= MEMORY_NEEDED and not found.f_flag & os.ST_NOEXEC:
        tempfile.tempdir = os.environ["TMPDIR"] = MEMORY


prefer_memory()  # before anything asks for a folder; the processes that tests are spread over inherit it

HEAVY_SECONDS = size(full=7200, quick=300)

# A shared two-core machine stalls now and then: that is no property of the code.
settings.register_profile(
    "standfast",
    deadline=None,
    max_examples=size(full=2000, quick=60),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("standfast")


def pytest_configure() -> None:
    """Take Ctrl-C for what it is, also when started in the background: programs that tests start inherit it.

    Collecting makes a few million objects and no garbage: looking for some takes a third of the time.
    """
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """Say which sizes this run uses."""
    return "sizes: full" if PROVE else "sizes: quick (full: make prove)"


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str) -> list[pytest.Item] | None:
    """Make nothing of the cases on servers that ``make test`` leaves out: a third of all items, in every process."""
    found = collector.obj if isinstance(collector, pytest.Class) else object
    is_left_out = (
        collector.config.option.markexpr == IN_MAKE_TEST
        and issubclass(found, OnServer)
        and name.startswith("test")
        and is_beyond_essentials(found, name)
    )
    return [] if is_left_out else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what ``make test`` leaves out; give heavy tests more than 60 seconds, and at full size every test."""
    for item in items:
        if is_thorough(item):
            item.add_marker(pytest.mark.exhaustive if is_exhaustive(item) else pytest.mark.thorough)
        if "mongodb" in item.nodeid:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
        if PROVE or (item.get_closest_marker("heavy") and not item.get_closest_marker("timeout")):
            item.add_marker(pytest.mark.timeout(HEAVY_SECONDS), append=False)


def pytest_collection_finish() -> None:
    """Leave what was collected out of every later search for garbage: with it, one takes a third of a second."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Collect the sockets that MongoDB's driver leaves when its server goes away, before another test is blamed."""
    if "mongodb" in item.nodeid and "integration" in item.nodeid:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Print how many rounds each repeating test did, here or in the processes that the tests were spread over."""
    told = [*map(str, tallies), *elsewhere]
    if told:
        terminalreporter.section("rounds")
    for line in told:
        terminalreporter.write_line(line)


elsewhere: list[str] = []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Take over what the repeating tests of a process did that has ended."""
    elsewhere.extend(getattr(node, "workeroutput", {}).get("rounds", []))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the server that forks; hand over what the repeating tests of this process did, if it is one of several."""
    fork_server.close()
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["rounds"] = [str(tally) for tally in tallies]


@pytest.fixture
def seed() -> int:
    """A fresh seed, printed when the test fails; ``STANDFAST_SEED=n`` repeats a run."""
    chosen = int(os.environ.get("STANDFAST_SEED") or random.randrange(2**32))
    print(f"STANDFAST_SEED={chosen}")
    return chosen
