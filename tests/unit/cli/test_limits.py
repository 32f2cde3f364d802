"""``standfast limits``: what is in use, and setting limits without the code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.locks.inspect import moment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.cli.conftest import Ask


@sf.workflow(concurrency=sf.Limit(2, on_limit="queue"))
async def few(ctx: sf.Context) -> None:
    """Wait for something that does not come."""
    await ctx.sleep("1 day")


@sf.workflow(concurrency=sf.Limit(1, key=lambda customer: customer))
async def each(ctx: sf.Context, customer: str) -> None:
    """Wait for something that does not come."""
    del customer
    await ctx.sleep("1 day")


@pytest.fixture
async def engine(url: str) -> AsyncIterator[sf.Engine]:
    """An engine that drives runs of these."""
    async with sf.Engine(url, workflows=[few, each]) as opened:
        yield opened


@pytest.mark.usefixtures("engine")
async def test_limits_that_are_not_in_use_are_shown(ask: Ask) -> None:
    """As workers have written them down."""
    rows = [line.split() for line in (await ask("limits", "show")).stdout.splitlines()[1:]]
    assert rows == [["each", "(each)", "1", "0", "0"], ["few", "2", "0", "0"]]


async def test_what_is_in_use_and_waits_is_shown(engine: sf.Engine, ask: Ask) -> None:
    """Of a limit of each key, each key on its own."""
    for _ in range(3):
        await engine.start(few)
    await engine.start(each, "ann")
    told = json.loads((await ask("limits", "show", "--json")).stdout)["limits"]

    facts = [(one["workflow"], one["key"], one["max"], one["in_use"], one["waiting"]) for one in told]
    assert facts == [("each", "ann", 1, 1, 0), ("few", None, 2, 2, 1)]
    assert told[1]["waited"] >= 0
    assert [row.split()[0] for row in (await ask("limits", "show", "few")).stdout.splitlines()[1:]] == ["few"]


async def test_a_limit_is_set_and_cleared_by_name(engine: sf.Engine, ask: Ask) -> None:
    """Waiting runs begin at once when there is room, and the code counts again when it is cleared."""
    for _ in range(3):
        await engine.start(few)
    said = await ask("limits", "set", "few", "3")
    [raised] = (await engine.limits("few")).limits
    await ask("limits", "clear", "few")
    [cleared] = (await engine.limits("few")).limits

    assert said.stdout == "few: 3 unfinished runs at a time, until it is cleared\n"
    assert (raised.max, raised.declared, raised.is_set, raised.in_use, raised.waiting) == (3, 2, True, 3, 0)
    assert (cleared.max, cleared.is_set) == (2, False)


async def test_a_limit_is_set_for_a_while(engine: sf.Engine, ask: Ask) -> None:
    """It is told when it ends, and what it is then."""
    told = json.loads((await ask("limits", "set", "few", "5", "--for", "2h", "--json")).stdout)
    [found] = (await engine.limits("few")).limits
    assert (told["max"], told["until"], found.then) == (5, found.until, 2)
    assert found.until is not None
    assert f"until {moment(found.until)}, then 2" in (await ask("limits", "show", "few")).stdout
    said = await ask("limits", "set", "few", "5", "--until", "2999-01-01T00:00")
    assert said.stdout == "few: 5 unfinished runs at a time, until 2999-01-01 00:00:00Z\n"
    refused = await ask("limits", "set", "few", "5", "--until", "2001-01-01T00:00")
    assert (refused.exit_code, "it has passed" in refused.stderr) == (2, True)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("set", "few", "3", "--key", "ann"), 2, "it has no limit with a key"),
        (("set", "each", "3"), 2, "it has no limit without a key"),
        (("set", "none", "3"), 3, "few"),
        (("set", "few", "0"), 2, "not in the range"),
    ],
)
async def test_a_limit_that_is_not_there_is_not_set(
    ask: Ask, arguments: tuple[str, ...], code: int, words: str
) -> None:
    """The message says which there are."""
    shown = await ask("limits", *arguments)
    assert shown.exit_code == code
    assert words in shown.stderr


async def test_rate_limiters_in_use_are_shown(engine: sf.Engine, ask: Ask) -> None:
    """With the tokens that are left; one at rest is not there."""
    empty = await ask("limits", "rates")
    assert await engine.space.rate_limiter("mail", interval="1 hour", capacity=3).try_acquire(2)
    shown = await ask("limits", "rates")

    assert empty.stdout == "no rate limiter is in use\n"
    assert shown.stdout.splitlines()[1].split() == ["mail", "1", "of", "3", "one", "each", "60", "min", "0"]
