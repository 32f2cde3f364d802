"""What every test gets: time limits, a printed seed, and the tally of repeating tests."""

from __future__ import annotations

import datetime as dt
import gc
import os
import random
import signal
import time
import warnings
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.sizes import PROVE, Tally, size, tallies

if TYPE_CHECKING:
    from collections.abc import Generator

    from _pytest.terminal import TerminalReporter

pytest_plugins = ["tests.services.plugin"]

HEAVY_SECONDS = size(full=7200, quick=300)

LONG_SECONDS = 110.0
"""How long the long tests may take together, in each process that tests run in."""

FEW = 100
"""So many of them are run in the order in which they stand: somebody picked them."""

# A shared two-core machine stalls now and then: that is no property of the code.
settings.register_profile(
    "standfast",
    deadline=None,
    max_examples=size(full=2000, quick=100),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("standfast")


def pytest_configure() -> None:
    """Take Ctrl-C for what it is, also when started in the background: programs that tests start inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """Say which sizes this run uses."""
    return "sizes: full, no time boxes" if PROVE else "sizes: time-boxed (full: make prove)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give heavy tests a longer limit than the 60 seconds of the others, and at full size every test."""
    long_tests.full = sum(map(is_long, items))
    if not PROVE and long_tests.full > FEW:
        items[:] = in_the_order_of_the_day(items)
    for item in items:
        if "mongodb" in item.nodeid:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
        if PROVE or (item.get_closest_marker("heavy") and not item.get_closest_marker("timeout")):
            item.add_marker(pytest.mark.timeout(HEAVY_SECONDS), append=False)


# --- long tests, in a time box ------------------------------------------------------------------------------------


def is_long(item: pytest.Item) -> bool:
    """Tell whether a test repeats itself, starts many processes, or strikes at servers: seconds rather than moments."""
    strikes = "tests/integration/" in item.nodeid and item.get_closest_marker("services") is not None
    if "tests/integration/adversary/" in item.nodeid:
        return False  # what a stranger may do to a server is tried every time
    return strikes or item.get_closest_marker("heavy") is not None


def in_the_order_of_the_day(items: list[pytest.Item]) -> list[pytest.Item]:
    """Put the long tests last, shuffled anew every day, so that what does not fit into the box is another part then."""
    long = [item for item in items if is_long(item)]
    random.Random(dt.datetime.now(dt.UTC).date().toordinal()).shuffle(long)
    return [*(item for item in items if not is_long(item)), *long]


long_tests = Tally("long tests", 0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a long test out when the box is closed, and say so."""
    if not PROVE and long_tests.full > FEW and is_long(item) and long_tests.seconds > LONG_SECONDS:
        pytest.skip("the time box is closed; make prove has none")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Count the time of long tests, with what they need to begin and to end."""
    if not is_long(item):
        return (yield)
    if long_tests not in tallies:
        tallies.append(long_tests)
    is_open = PROVE or long_tests.full <= FEW or long_tests.seconds <= LONG_SECONDS
    started = time.monotonic()
    answer = yield
    long_tests.seconds += time.monotonic() - started
    long_tests.done += is_open
    return answer


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
    """Hand over what the repeating tests of this process did, if it is one of several."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["rounds"] = [str(tally) for tally in tallies]


@pytest.fixture
def seed() -> int:
    """A fresh seed, printed when the test fails; ``STANDFAST_SEED=n`` repeats a run."""
    chosen = int(os.environ.get("STANDFAST_SEED") or random.randrange(2**32))
    print(f"STANDFAST_SEED={chosen}")
    return chosen
