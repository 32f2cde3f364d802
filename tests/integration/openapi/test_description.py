"""The description of an application is true: whatever is sent by it, or against it, is answered as it says."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as hypothesis_seed
from schemathesis.checks import not_a_server_error
from schemathesis.core.control import SkipTest
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from standfast.web.call import HEADER as CHAIN
from tests.integration.cli.programs import PATIENCE, ROOT, SHOWN, Program
from tests.sizes import remark, rounds, size

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.heavy  # thousands of calls of a real server: once, on the default interpreter

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of actions of many shapes."""
    url = f"sqlite:///{tmp_path_factory.mktemp('shapes')}/store.db"
    program = Program(url, "serve", "tests.integration.openapi.shapes:app", "--app-dir", str(ROOT), "--port", "0")
    found = re.search(r"at (http://\S+) \(process", program.hear())
    assert found is not None
    yield found[1]
    program.process.kill()
    program.process.communicate(timeout=PATIENCE)


def operations(address: str, mode: schemathesis.GenerationMode) -> list[Any]:
    """Return what the description says can be done."""
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json", headers=SHOWN)
    schema.config.generation.modes = [mode]
    found = list(schema.get_all_operations())
    assert all(isinstance(each, Ok) for each in found)
    return [each.ok() for each in found if isinstance(each, Ok)]


def attempt(operation: Any, mode: schemathesis.GenerationMode, seed: int, told: Counter[int]) -> None:
    """Call one operation with some inputs, and count what it answered."""

    @hypothesis_seed(seed)
    @settings(
        max_examples=size(full=100, quick=3),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def call(case: Any) -> None:
        case.headers.pop(CHAIN, None)  # what is made up is refused before anything else is looked at
        told[case.call_and_validate(checks=CHECKS, timeout=PATIENCE, headers=SHOWN).status_code] += 1

    with suppress(SkipTest):  # nothing that could be sent to it does not fit
        call()


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_every_answer_is_as_the_description_says(address: str, mode: schemathesis.GenerationMode) -> None:
    """To what fits and to what does not: never 5xx, no status that is not written down, and the body has its shape."""
    label, told = f"passes over the description ({mode.value})", Counter[int]()
    for seed in rounds(label, full=10, quick=1):
        for operation in operations(address, mode):
            attempt(operation, mode, seed, told)
    remark(label, f"answered {dict(sorted(told.items()))}")
    assert told[200] + told[202] > told.total() / 3 or mode is schemathesis.GenerationMode.NEGATIVE
