"""A program that ends without closing its engine: its event loop cancels every task, and no run fails by that."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

import standfast as sf
from tests.fork_server import forked_exec

ROOT = Path(__file__).resolve().parents[3]
REACHED = asyncio.Event()
"""Set when the run is where it stays."""

IS_LAST = False
"""Whether steps end in this program."""


async def work() -> str:
    """Take longer than the first program runs."""
    if not IS_LAST:
        REACHED.set()
        await asyncio.Event().wait()
    return "done"


async def refund() -> None:
    """Compensate."""
    print("refunded", file=sys.stderr)


@sf.workflow
async def in_a_step(ctx: sf.Context) -> str:
    """Be in a step, and compensate if that fails."""
    try:
        return await ctx.step(work)
    except BaseException:
        await ctx.step(refund)
        raise


@sf.workflow
async def in_a_wait(ctx: sf.Context) -> str:
    """Wait for a signal, and compensate if that fails."""
    REACHED.set()
    try:
        return str(await ctx.wait_signal("go"))
    except BaseException:
        await ctx.step(refund)
        raise


@sf.workflow
async def in_branches(ctx: sf.Context) -> str:
    """Do both side by side."""
    return " ".join(await ctx.gather(ctx.step(work), ctx.step(work)))


@sf.workflow
async def in_its_own_code(ctx: sf.Context) -> str:
    """Wait for something that Standfast knows nothing of."""
    return await work() if ctx.run_id else ""


WORKFLOWS = {each.name: each for each in (in_a_step, in_a_wait, in_branches, in_its_own_code)}


async def _begin(url: str, name: str, how: str) -> None:
    """Be a program that ends while a run is under way."""
    engine = sf.Engine(url, workflows=WORKFLOWS.values())
    await engine.open()
    await engine.start(WORKFLOWS[name], id="r")
    await REACHED.wait()
    for _ in range(10):  # a wait begins a few turns of the loop later
        await asyncio.sleep(0)
    if how == "raises":
        raise LookupError("of the program")
    if how == "exits":  # as a handler of SIGTERM does that calls sys.exit
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        await asyncio.Event().wait()


def first_program(url: str, name: str, how: str) -> None:
    """Begin a run, and end."""
    asyncio.run(_begin(url, name, how))


@pytest.mark.parametrize(
    ("name", "how"),
    [*((name, "exits") for name in WORKFLOWS), ("in_a_step", "returns"), ("in_a_step", "raises")],
)
async def test_a_run_goes_on_after_a_program_that_did_not_close_its_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    """It is not failed, does not compensate, and is completed by the next program."""
    url = f"sqlite:///{tmp_path}/store.db"
    code = f"from {__name__} import first_program; first_program({url!r}, {name!r}, {how!r})"
    program = await forked_exec(sys.executable, "-c", code, cwd=ROOT, stderr=asyncio.subprocess.PIPE)
    _, said = await program.communicate()
    assert program.returncode == {"returns": 0, "raises": 1, "exits": 3}[how]
    assert b"CancelledError" not in said
    assert b"refunded" not in said
    monkeypatch.setattr(sys.modules[__name__], "IS_LAST", True)
    async with sf.Engine(url, workflows=WORKFLOWS.values()) as engine:
        assert (await engine.get("r")).failure is None
        await engine.signal("r", "go", "done")
        assert await engine.result("r", timeout="20s") in ("done", "done done")
