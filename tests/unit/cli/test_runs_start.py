"""``standfast runs start``: a run by the name of its workflow, from where its code is not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import standfast as sf

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.cli.conftest import Ask


@sf.workflow(name="import-customer-data")
async def imports(ctx: sf.Context, customer: str, priority: int = 1) -> str:
    """Fail for one customer."""
    if customer == "nobody":
        raise LookupError(f"no such customer in {ctx.run_id}")
    return f"{customer} {priority}"


@pytest.fixture
async def engine(url: str) -> AsyncIterator[sf.Engine]:
    """An engine that drives the runs of this test."""
    async with sf.Engine(url, workflows=[imports]) as opened:
        yield opened


@pytest.mark.parametrize(
    ("given", "typed"),
    [('{"customer": "ann", "priority": 3}', ""), ('["ann", 3]', ""), ("-", '{"customer": "ann", "priority": 3}')],
    ids=["by name", "by place", "stdin"],
)
async def test_it_starts_a_run_and_says_how_to_follow_it(ask: Ask, engine: sf.Engine, given: str, typed: str) -> None:
    """Started again with the same id it is the same run."""
    start = ("runs", "start", "import-customer-data", "--input", given, "--id", "r", "--tag", "night")
    first = await ask(*start, typed=typed)
    assert (first.exit_code, first.stdout) == (0, "r is started\n")
    assert first.stderr == "follow it with: standfast runs tail r\n"
    assert await engine.result("r") == "ann 3"
    again = await ask(*start, typed=typed)
    assert (again.exit_code, again.stdout) == (0, "r was started before: completed\n")
    assert (await engine.get("r")).tags == ("night",)


async def test_json_has_the_run(ask: Ask, engine: sf.Engine) -> None:
    """And whether it is new."""
    arguments = (
        "runs",
        "start",
        "import-customer-data",
        "--input",
        '["ann"]',
        "--key",
        "k",
        "--delay",
        "1h",
        "--json",
    )
    first, again = json.loads((await ask(*arguments)).stdout), json.loads((await ask(*arguments)).stdout)
    assert (first["is_new"], again["is_new"]) == (True, False)
    assert first["run"]["id"] == again["run"]["id"]
    assert (await engine.get(first["run"]["id"])).status == "pending"


@pytest.mark.parametrize(("customer", "code"), [("ann", 0), ("nobody", 5)])
async def test_it_waits_for_the_end_if_that_is_asked_for(ask: Ask, engine: sf.Engine, customer: str, code: int) -> None:
    """The exit code tells how it ended, and so does what is printed."""
    assert engine.drives
    arguments = ("runs", "start", "import-customer-data", "--input", json.dumps([customer]), "--wait")
    text, data = await ask(*arguments), await ask(*arguments, "--json")
    assert (text.exit_code, data.exit_code) == (code, code)
    assert ('result: "ann 1"' in text.stdout) == (code == 0)
    assert ("LookupError: no such customer" in text.stdout) == (code == 5)
    lines = [json.loads(line) for line in data.stdout.splitlines()]
    assert lines[0]["is_new"] is True
    assert lines[-1]["run"]["status"] == ("completed" if code == 0 else "failed")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("import-customer-data", "--input", "{"), 2, "The input is not JSON"),
        (("import-customer-data", "--input", '"ann"'), 2, "must be an object"),
        (("import-customer-data",), 2, "missing a required argument: 'customer'"),
        (
            ("import-customer-data", "--input", '{"customer": "ann", "prio": 1}'),
            2,
            "argument 'prio'",
        ),
        (("import-customer-data", "--input", '["ann"]', "--id", "@x"), 2, "must not begin with @"),
        (
            ("import-customer-data", "--input", '["ann"]', "--id", "x", "--key", "y"),
            2,
            "an id or an idempotency_key",
        ),
        (("import-customer-data", "--input", '["ann"]', "--delay", "soon"), 2, "soon"),
        (("import-customer", "--input", '["ann"]'), 3, "it has import-customer-data"),
        (("import-customer-data", "--input", '["ann"]', "--tenant", "acme"), 3, "it has none"),
        (("import-customer-data", "--input", '["bob"]', "--id", "there"), 1, "exists already"),
    ],
)
async def test_what_is_wrong_is_said_and_nothing_is_started(
    ask: Ask, engine: sf.Engine, arguments: tuple[str, ...], code: int, words: str
) -> None:
    """Each with its exit code."""
    await engine.start(imports, "ann", id="there")
    answer = await ask("runs", "start", *arguments)
    assert answer.exit_code == code
    assert words in answer.stderr
    assert "Traceback" not in answer.output
    assert [run.id for run in (await engine.list()).runs] == ["there"]


async def test_what_no_worker_has_had_yet_waits_for_one(ask: Ask, url: str, engine: sf.Engine) -> None:
    """If that is asked for; the line that says how to follow it names the tenant."""
    assert engine.drives
    start = ("runs", "start", "import-customer-data", "--input", '{"customer": "ann"}', "--id", "r", "--tenant", "acme")
    answer = await ask(*start, "--unknown")
    assert (answer.exit_code, answer.stderr) == (0, "follow it with: standfast runs tail r --tenant acme\n")
    async with sf.Engine(url, workflows=[imports], tenant="acme") as other:
        assert await other.result("r") == "ann 1"


async def test_a_completed_run_is_not_retried(ask: Ask, engine: sf.Engine) -> None:
    """There is nothing to retry: that has a code of its own, and the advice names the command that starts it anew."""
    await (await engine.start(imports, "ann", id="r")).result()
    shown = await ask("runs", "retry", "r", "--yes")
    assert shown.exit_code == 3
    assert "the run r has completed, so there is nothing to retry" in shown.stderr
    assert "standfast runs start --input JSON import-customer-data" in shown.stderr
