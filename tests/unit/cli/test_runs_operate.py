"""``standfast locks release`` and ``withdraw``: who is turned out, and who is asked first."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from standfast.cli import target as asking
from standfast.errors import LeaseLostError, WithdrawnError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import standfast as sf
    from tests.unit.cli.conftest import Ask


@asynccontextmanager
async def waiter(space: sf.Space, key: str) -> AsyncIterator[asyncio.Task[None]]:
    """Let a task wait for a key."""

    async def wait() -> None:
        async with space.mutex(key).hold():
            pass

    task = asyncio.create_task(wait())
    while not (await space.explain(key)).waiting:  # noqa: ASYNC110 -- a line in a store has no event to wait for
        await asyncio.sleep(0)
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_holder_is_turned_out(space: sf.Space, ask: Ask) -> None:
    """It is told that it no longer holds, and its fence is void."""
    async with space.mutex("a").hold(on_lost="tell", owner="ann") as hold:
        shown = await ask("locks", "release", "a", "--yes")
        await hold.lost.wait()

    assert (shown.exit_code, shown.stdout) == (
        0,
        f"released a: ann no longer holds it; fence {hold.fence} is void\n",
    )
    with pytest.raises(LeaseLostError):
        hold.check()


async def test_what_was_released_is_told_as_json(space: sf.Space, ask: Ask) -> None:
    """The entry, its owner and its fence."""
    async with space.mutex("a").hold(on_lost="tell", owner="ann") as hold:
        [holder] = (await space.explain("a")).holders
        shown = await ask("locks", "release", "a", "--yes", "--json")

    facts = {"entry": holder.entry, "owner": "ann", "fence": hold.fence}
    assert json.loads(shown.stdout) == {"key": "a", "released": [facts]}


async def test_one_of_several_holders_must_be_named(space: sf.Space, ask: Ask) -> None:
    """Without a choice nobody is turned out; an entry, an owner or all of them is one."""
    permits = space.semaphore("a", permits=4)
    async with (
        permits.hold(on_lost="tell", owner="ann") as ann,
        permits.hold(on_lost="tell", owner="ben") as ben,
        permits.hold(on_lost="tell", owner="cat") as cat,
        permits.hold(on_lost="tell", owner="dan") as dan,
    ):
        entries = {holder.owner: holder.entry for holder in (await space.explain("a")).holders}
        refused = await ask("locks", "release", "a", "--yes")
        await ask("locks", "release", "a", "--yes", "--holder", "ann")
        await ask("locks", "release", "a", "--yes", "--entry", entries["ben"])
        await asyncio.gather(ann.lost.wait(), ben.lost.wait())
        assert not cat.is_lost
        await ask("locks", "release", "a", "--yes", "--all")
        await asyncio.gather(cat.lost.wait(), dan.lost.wait())

    assert refused.exit_code == 2
    assert "There are 4 holders" in refused.stderr


@pytest.mark.parametrize("choice", [[], ["--entry", "x"], ["--holder", "x"]])
async def test_nobody_to_turn_out_has_a_code_of_its_own(space: sf.Space, ask: Ask, choice: list[str]) -> None:
    """Releasing what is not held says so and exits with 3."""
    assert space.namespace == "default"
    shown = await ask("locks", "release", "a", "--yes", *choice)
    assert shown.exit_code == 3
    assert "hold" in shown.stderr


@pytest.mark.parametrize("command", [["release", "a"], ["withdraw", "a", "--entry", "x"]])
async def test_without_a_terminal_yes_must_be_said(space: sf.Space, ask: Ask, command: list[str]) -> None:
    """A script cannot be asked, so nothing is done by default."""
    async with space.mutex("a").hold() as hold:
        shown = await ask("locks", *command)
        hold.check()

    assert shown.exit_code == 2
    assert "--yes" in shown.stderr


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("", 130)])
async def test_a_terminal_is_asked(
    space: sf.Space, ask: Ask, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    """Only a yes turns anybody out."""
    monkeypatch.setattr(asking, "is_terminal", lambda: True)
    async with space.mutex("a").hold(on_lost="tell", owner="ann"):
        shown = await ask("locks", "release", "a", typed=answer)
        left = (await space.explain("a")).holders

    assert shown.exit_code == code
    assert "Release a by force, held by ann?" in shown.stderr
    assert len(left) == (0 if code == 0 else 1)


async def test_a_waiter_is_withdrawn(space: sf.Space, ask: Ask) -> None:
    """It is told, and does not come back by itself."""
    async with space.mutex("a").hold(), waiter(space, "a") as task:
        [waiting] = (await space.explain("a")).waiters
        shown = await ask("locks", "withdraw", "a", "--entry", waiting.entry, "--yes", "--json")
        with pytest.raises(WithdrawnError):
            await task

    assert json.loads(shown.stdout) == {"key": "a", "withdrawn": waiting.entry}


async def test_a_holder_is_not_withdrawn(space: sf.Space, ask: Ask) -> None:
    """Withdrawing never takes a lock away."""
    async with space.mutex("a").hold() as hold:
        [holder] = (await space.explain("a")).holders
        shown = await ask("locks", "withdraw", "a", "--entry", holder.entry, "--yes")
        hold.check()

    assert shown.exit_code == 3
    assert "does not wait" in shown.stderr
    assert "release" in shown.stderr
