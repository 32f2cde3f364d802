"""What type checkers see of a start and of a step.

A wrong type, a missing and an extra argument, wherever arguments are given.

Each line of the program below that ends in ``# wrong`` must be an error for mypy and for pyright, both strict, and no
other line may be one. So neither a check that is lost nor one that refuses what works goes unseen.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import standfast as sf
from standfast import blocking
from standfast.testing.workflows import WorkflowEnvironment


@sf.workflow
async def fulfil(ctx: sf.Context, order: str, priority: int = 1) -> int:
    if order:
        await ctx.child(fulfil, "x", priority=2)
        await ctx.child(fulfil, 1)  # wrong
        await ctx.child(fulfil)  # wrong
        await ctx.child(fulfil, "x", prio=2)  # wrong
    return priority


async def charge(order: str, amount: int = 1) -> float:
    return 1.0


@sf.step(retry=3)
async def ship(order: str) -> int:
    return 1


@sf.step
async def book(order: str) -> int:
    return 1


@sf.workflow
async def steps(ctx: sf.Context) -> None:
    paid: float = await ctx.step(charge, "x", amount=2)
    paid = await ctx.step("pay", charge, "x", 2)
    number: int = await ctx.step(ship, "x")
    number = await ctx.step("send", ship, "x")
    number = await ctx.step("weigh", lambda: 5)
    await ctx.step("registered", 5, "x")
    await ctx.gather(ctx.step(charge, "x"), ctx.step("send", ship, "x"))
    print(paid, number)
    text: str = await ctx.step("send", ship, "x")  # wrong
    text = await ctx.step("book", book, "x")  # wrong
    text = await book("x")  # wrong
    print(text)
    await ctx.step(charge, 1)  # wrong
    await ctx.step("pay", charge, 1)  # wrong
    await ctx.step("pay", charge)  # wrong
    await ctx.step("pay", charge, "x", amuont=2)  # wrong
    await ctx.step("send", ship, 1)  # wrong
    await ctx.gather(ctx.step("pay", charge, 1))  # wrong


@sf.workflow
async def by_name(ctx: sf.Context, order: str, *, priority: int) -> int:
    return priority


@sf.workflow
async def nothing(ctx: sf.Context) -> None: ...


@sf.workflow
async def has_an_id(ctx: sf.Context, id: str) -> None: ...


@sf.workflow
async def many(ctx: sf.Context, items: list[int]) -> int:
    return len(items)


soon = sf.collect(fulfil, sf.Debounce(1))
batch = sf.collect(many, sf.Batch(3, 1))


async def starts(engine: sf.Engine) -> None:
    run: sf.Run[int] = await engine.start(fulfil, "x")
    run = await engine.start(fulfil, "x", 3)
    run = await engine.start(fulfil, "x", priority=3)
    run = await engine.start(fulfil, "x", id="order-7", delay="1 day", tags=["a"], idempotency_key=None)
    run = await engine.start(fulfil, "x", 3, id="order-7")
    run = await engine.start(fulfil.bind("x", priority=3), id="order-7")
    run = await engine.start(fulfil.bind(order="x"))
    run = await engine.start(by_name, "x", priority=3)
    run = await engine.start(by_name, "x", kwargs={"priority": 3}, id="order-7")
    await engine.start(nothing)
    await engine.start(nothing, id="n")
    await engine.start(has_an_id, "x", id="run-7")
    await engine.start("fulfil", "x", priority=3, id="order-7", unknown="start")
    text: str = await run.result()  # wrong
    print(text)

    await engine.start(fulfil, 1)  # wrong
    await engine.start(fulfil)  # wrong
    await engine.start(fulfil, "x", 3, 4)  # wrong
    await engine.start(fulfil, "x", prio=3)  # wrong
    await engine.start(fulfil, "x", priority="3")  # wrong
    await engine.start(fulfil, 1, id="order-7")  # wrong
    await engine.start(fulfil, id="order-7")  # wrong
    await engine.start(fulfil, "x", "3", id="order-7")  # wrong
    await engine.start(fulfil, "x", 3, 4, id="order-7")  # wrong
    await engine.start(fulfil, "x", id=7)  # wrong
    await engine.start(nothing, 1)  # wrong
    await engine.start(nothing, 1, id="n")  # wrong
    await engine.start(by_name, "x")  # wrong
    await engine.start(by_name, "x", 3)  # wrong
    await engine.start(by_name, "x", id="order-7")  # wrong
    await engine.start(fulfil.bind(1), id="order-7")  # wrong
    await engine.start(fulfil.bind("x"), "x", id="order-7")  # wrong
    await engine.start("fulfil", id=7)  # wrong


async def others(engine: sf.Engine, env: WorkflowEnvironment) -> None:
    await engine.start_or_signal(fulfil, "x", id="c", signal="add", value=1)
    await engine.start_or_signal(fulfil.bind("x", priority=2), id="c", signal="add", on_terminal="start_new")
    await engine.start_or_signal(fulfil, 1, id="c", signal="add")  # wrong
    await engine.start_or_signal(fulfil, id="c", signal="add")  # wrong
    await engine.start_or_signal(fulfil, "x", id="c")  # wrong
    await soon.start(engine, "key", "x", priority=2)
    await soon.start(engine, "key", 1)  # wrong
    await soon.start(engine, "key")  # wrong
    await batch.add(engine, 1)
    await batch.add(engine, "x")  # wrong
    await env.start(fulfil, "x", priority=2)
    await env.start(fulfil, "x", id="a")
    await env.start(fulfil, 1)  # wrong
    await env.start(fulfil, 1, id="a")  # wrong


sf.Schedule(fulfil, "x", 3, id="s", every=60)
sf.Schedule(fulfil, "x", id="s", every=60, kwargs={"priority": 3})
sf.Schedule(fulfil.bind("x", priority=3), id="s", cron="0 9 * * *")
sf.Schedule("fulfil", "x", id="s", every=60)
sf.Schedule(fulfil, 1, id="s", every=60)  # wrong
sf.Schedule(fulfil, id="s", every=60)  # wrong
sf.Schedule(fulfil, "x", 3, 4, id="s", every=60)  # wrong


def blocks(engine: blocking.Engine) -> None:
    run: blocking.Run[int] = engine.start(fulfil, "x", priority=3)
    run = engine.start(fulfil, "x", id="order-7")
    run = engine.start(fulfil.bind("x", priority=3), id="order-7")
    print(run)
    engine.start("fulfil", "x", priority=3, id="order-7")
    engine.start(fulfil, 1)  # wrong
    engine.start(fulfil)  # wrong
    engine.start(fulfil, 1, id="order-7")  # wrong
    engine.start(fulfil, "x", prio=3)  # wrong
    engine.start_or_signal(fulfil, 1, id="c", signal="add")  # wrong
"""

CHECKERS = {
    "mypy": (["-m", "mypy", "--strict", "--no-error-summary", "--cache-dir"], r"program\.py:(\d+): error"),
    "pyright": (["-m", "pyright", "--pythonpath", sys.executable], r"program\.py:(\d+):\d+ - error"),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_finds_what_is_wrong_and_nothing_else(checker: str, tmp_path: Path) -> None:
    """As a program of a user is checked, with the package as it is installed."""
    program = tmp_path / "program.py"
    program.write_text(f"# pyright: strict\n{PROGRAM}")
    command, pattern = CHECKERS[checker]
    cache = [str(Path(".cache") / "mypy-of-programs")] if checker == "mypy" else []
    done = subprocess.run(
        [sys.executable, *command, *cache, str(program)], capture_output=True, text=True, check=False, timeout=280
    )
    found = {int(line) for line in re.findall(pattern, done.stdout)}
    lines = program.read_text().splitlines()
    expected = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    missed = [lines[number - 1] for number in sorted(expected - found)]
    refused = [lines[number - 1] for number in sorted(found - expected)]
    assert (missed, refused) == ([], []), done.stdout + done.stderr
