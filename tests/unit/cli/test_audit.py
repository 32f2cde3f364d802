"""``standfast audit``: who did what, by the command itself too."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.fork_server import forked_exec

if TYPE_CHECKING:
    import standfast as sf
    from tests.unit.cli.conftest import Ask


async def test_what_the_command_does_is_recorded_with_its_actor(space: sf.Space, ask: Ask) -> None:
    """By name, if one is said; nothing is recorded of looking."""
    async with space.mutex("a").hold(on_lost="tell", owner="ann"):
        await ask("locks", "list")
        await ask("locks", "release", "a", "--yes", "--as", "eve")
    shown = await ask("audit")
    told = json.loads((await ask("audit", "--json")).stdout)

    [row] = shown.stdout.splitlines()[1:]
    assert "eve (cli, " in row
    assert "lock.release" in row
    assert "is void" in row
    assert [(each["actor"]["name"], each["subject"], each["outcome"]) for each in told["records"]] == [
        ("eve", "a", "done")
    ]
    assert told["next"] is None


async def test_the_audit_is_filtered_and_paged(space: sf.Space, ask: Ask) -> None:
    """By action, subject and who; a page says where the next one begins."""
    for name, who in (("a", "ann"), ("b", "ben"), ("c", "ann")):
        async with space.mutex(name).hold(on_lost="tell"):
            await ask("locks", "release", name, "--yes", "--as", who)

    async def subjects(*arguments: str) -> tuple[list[str], str | None]:
        told = json.loads((await ask("audit", "--json", *arguments)).stdout)
        return [each["subject"] for each in told["records"]], told["next"]

    assert await subjects("--by", "ann") == (["c", "a"], None)
    assert await subjects("--subject", "b", "--action", "lock.release") == (["b"], None)
    assert await subjects("--action", "run.cancel") == ([], None)
    first, after = await subjects("--limit", "2")
    assert (first, after is not None) == (["c", "b"], True)
    assert (await subjects("--after", after or ""))[0] == ["a"]
    assert (await ask("audit", "--action", "run.cancel")).stdout == "nothing is recorded that fits\n"


async def test_the_audit_is_followed(url: str, space: sf.Space, ask: Ask) -> None:
    """What is there comes first, and then what is done, each once it is done."""
    async with space.mutex("a").hold(on_lost="tell"):
        await ask("locks", "release", "a", "--yes", "--as", "ann")
    command = [sys.executable, "-m", "standfast", "--store", url, "audit", "--follow", "--json"]
    following = await forked_exec(*command, stdout=subprocess.PIPE)
    assert following.stdout is not None
    first = json.loads(await following.stdout.readline())
    async with space.mutex("b").hold(on_lost="tell"):
        await ask("locks", "release", "b", "--yes", "--as", "ben")
    told: list[dict[str, Any]] = []
    while not told or told[-1]["outcome"] == "begun":
        told.append(json.loads(await following.stdout.readline()))
    following.send_signal(signal.SIGINT)
    await following.communicate()

    assert (first["subject"], first["outcome"]) == ("a", "done")
    assert [each["subject"] for each in told] == ["b"] * len(told)
    assert told[-1]["actor"]["name"] == "ben"


async def test_a_page_that_begins_nowhere_is_refused(space: sf.Space, ask: Ask) -> None:
    """Only what a page gave as the next one is a place; anything else would list what it should not."""
    async with space.mutex("a").hold(on_lost="tell"):
        await ask("locks", "release", "a", "--yes")
    for after in ("x", "", "99999999999999999", "../audit"):
        refused = await ask("audit", "--after", after)
        assert refused.exit_code == 2
        assert "cannot be where a page of an audit begins: it is the id" in refused.stderr
        assert not refused.stdout
