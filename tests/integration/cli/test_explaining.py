"""What a look from another process shows of the living and the dead."""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli.programs import answer, python
from tests.integration.cli.test_run import HOLD, UNTIL_KILLED

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Start


def test_a_living_holder_is_shown_with_its_process(url: str, start: Start) -> None:
    """Whoever looks finds the process that holds."""
    program = start(*HOLD, "--note", "backup", *python(UNTIL_KILLED))
    assert program.hear() == "ready"
    [holder] = json.loads(answer(url, "locks", "explain", "a", "--json")[1])["holders"]

    assert (holder["process"], holder["note"], holder["is_alive"]) == (program.process.pid, "backup", True)


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux does a store see a process die")
def test_a_killed_holder_is_seen_to_be_dead_before_its_lease_is_over(url: str, start: Start) -> None:
    """It is shown as dead, and looking does not drop it: the second look shows the same."""
    program = start(*HOLD, "--lease", "10 minutes", *python(UNTIL_KILLED))
    assert program.hear() == "ready"
    program.send(signal.SIGKILL)
    program.end()
    looks = [json.loads(answer(url, "locks", "explain", "a", "--json")[1]) for _ in range(2)]

    for told in looks:
        [holder] = told["holders"]
        assert (holder["is_alive"], holder["lease_left"], holder["process"]) == (False, None, program.process.pid)
        assert told["estimate"] == 0.0
