"""``standfast locks list``, ``explain`` and ``inspect``: what they show, and that looking changes nothing."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from standfast.cli.target import key_of

if TYPE_CHECKING:
    from pathlib import Path

    import standfast as sf
    from tests.unit.cli.conftest import Ask

EXPLANATION = {
    "key", "family", "parts", "at", "kind", "permits", "is_pinned", "alone", "holders", "waiters", "waiting", "more",
    "pace", "estimate", "history", "reverts_at", "holding",
}  # fmt: skip
ENTRY = {"entry", "owner", "note", "mode", "weight", "is_alive", "process", "host", "program", "since", "run"}
HOLDER = ENTRY | {"held_for", "lease_left", "ends_at", "fence", "slot", "entered_at"}
LINE = {"key", "family", "parts", "at", "kind", "permits", "is_pinned", "holders", "waiting", "held_for"}


async def test_locks_in_use_are_listed(space: sf.Space, ask: Ask) -> None:
    """Each line has its key, kind, holders and waiters."""
    async with space.mutex("a").hold(), space.semaphore("b c", permits=3).hold():
        shown = await ask("locks", "list")

    assert shown.exit_code == 0
    rows = [re.split(r" {2,}", line) for line in shown.stdout.splitlines()]
    assert rows[0] == ["KEY", "KIND", "HOLDERS", "WAITING", "HELD FOR"]
    assert [row[:4] for row in rows[1:]] == [["a", "mutex", "1", "0"], ["b c", "semaphore", "1 of 3", "0"]]


async def test_an_empty_list_says_so(space: sf.Space, ask: Ask) -> None:
    """Nothing in use is an answer, not an error."""
    assert space.namespace == "default"
    assert (await ask("locks", "list")).stdout == "no key is held or waited for\n"
    assert json.loads((await ask("locks", "list", "--json")).stdout) == {"lines": [], "more": False}


async def test_a_long_list_is_cut_and_says_so(space: sf.Space, ask: Ask) -> None:
    """``--limit`` bounds the list."""
    async with space.mutex("a").hold(), space.mutex("b").hold():
        text, data = await ask("locks", "list", "--limit", "1"), await ask("locks", "list", "--limit", "1", "--json")

    assert text.stdout.endswith("and more; list them with --limit 10\n")
    found = json.loads(data.stdout)
    assert [line["key"] for line in found["lines"]] == ["a"]
    assert found["more"] is True
    assert found["lines"][0].keys() == LINE


async def test_an_explanation_is_what_python_says(space: sf.Space, ask: Ask) -> None:
    """Text and JSON are the answer of ``explain``, but for the time that has passed between."""
    mutex = space.mutex("a")
    async with mutex.hold(note="nightly", owner="ann"):
        told = await mutex.explain()
        text, data = await ask("locks", "explain", "a"), await ask("locks", "explain", "a", "--json")

    numbers = re.compile(r"[\d.]+ m?s\b")
    assert numbers.sub("N", text.stdout) == numbers.sub("N", told.as_text()) + "\n"
    found = json.loads(data.stdout)
    assert found.keys() == EXPLANATION
    assert found["holders"][0].keys() == HOLDER
    assert found["holders"][0] | {"held_for": 0, "lease_left": 0} == told.as_json()["holders"][0] | {
        "held_for": 0,
        "lease_left": 0,
    }


async def test_the_records_of_a_line_are_shown_with_their_versions(space: sf.Space, ask: Ask) -> None:
    """What is stored: the version of the grant is the fence."""
    async with space.mutex("a").hold() as hold:
        data, text = await ask("locks", "inspect", "a", "--json"), await ask("locks", "inspect", "a")

    records = json.loads(data.stdout)["records"]
    assert [record["record"] for record in records] == ["line", "grant", "presence"]
    assert records[1]["version"] == hold.fence
    assert f"grant ['1', '', 'a', '0'], version {hold.fence}" in text.stdout
    assert "nothing is stored" in (await ask("locks", "inspect", "b")).stdout


async def test_a_key_of_a_family_is_named_by_its_parts(space: sf.Space, ask: Ask) -> None:
    """No program has to declare the family for the command to find the key."""
    async with space.mutex(key_of(("x", "y"), "cli-test-job")).hold():
        shown = await ask("locks", "explain", "--family", "cli-test-job", "x", "y")

    assert shown.stdout.startswith("cli-test-job(x, y) is a mutex: 1 holding")


async def test_several_words_without_a_family_are_refused(space: sf.Space, ask: Ask) -> None:
    """A key is one word, or a family and its parts."""
    assert space.tenant == "default"
    shown = await ask("locks", "explain", "a", "b")
    assert shown.exit_code == 2
    assert "--family" in shown.stderr


@pytest.mark.parametrize("command", [["list"], ["explain", "a"], ["inspect", "a"]])
async def test_looking_changes_nothing(space: sf.Space, ask: Ask, command: list[str]) -> None:
    """Not one record of the store is written or removed."""
    async with space.mutex("a").hold():
        before = (
            await space.scan(*space.key("presence").within(), limit=100),
            await space.scan(*space.key("line").within(), limit=100),
        )
        assert (await ask("locks", *command)).exit_code == 0
        after = (
            await space.scan(*space.key("presence").within(), limit=100),
            await space.scan(*space.key("line").within(), limit=100),
        )

    assert [each.records for each in after] == [each.records for each in before]


@pytest.mark.parametrize("command", [["list"], ["explain", "a"], ["inspect", "a"], ["release", "a", "--yes"]])
async def test_a_missing_store_is_not_made(ask: Ask, tmp_path: Path, command: list[str]) -> None:
    """The message says what to check; no file appears."""
    shown = await ask("locks", *command)

    assert shown.exit_code == 1
    assert "there is no store at" in shown.stderr
    assert "STANDFAST_STORE" in shown.stderr
    assert list(tmp_path.iterdir()) == []


async def test_namespaces_and_tenants_are_kept_apart(space: sf.Space, ask: Ask) -> None:
    """Only the locks of the named namespace and tenant are shown, whether named before or after the command."""
    async with space.mutex("a").hold():
        other = await ask("--tenant", "other", "locks", "list"), await ask("locks", "list", "--namespace", "other")
        same = await ask("locks", "list", "--tenant", "default")

    assert [each.stdout for each in other] == ["no key is held or waited for\n"] * 2
    assert "mutex" in same.stdout


async def test_colours_are_for_terminals_that_want_them(space: sf.Space, ask: Ask) -> None:
    """There is colour on a terminal, none in a pipe, and none with NO_COLOR."""
    async with space.mutex("a").hold():
        plain, coloured = await ask("locks", "explain", "a"), await ask("locks", "explain", "a", color=True)
        asked_not_to = await ask("locks", "explain", "a", color=True, NO_COLOR="1")

    assert "\x1b[" not in plain.stdout
    assert "\x1b[32mholding:" in coloured.stdout
    assert "\x1b[" not in asked_not_to.stdout


async def test_keys_in_use_are_completed(space: sf.Space, ask: Ask) -> None:
    """A shell that asks for completions of a key gets those that are in use."""
    async with space.mutex("nightly").hold(), space.mutex("daily").hold():
        shown = await ask(_STANDFAST_COMPLETE="bash_complete", COMP_WORDS="standfast locks explain n", COMP_CWORD="3")

    assert shown.stdout == "plain,nightly\n"


async def test_without_a_store_there_are_no_completions(ask: Ask) -> None:
    """A shell is not bothered with errors."""
    shown = await ask(_STANDFAST_COMPLETE="bash_complete", COMP_WORDS="standfast locks explain n", COMP_CWORD="3")
    assert (shown.stdout, shown.stderr) == ("\n", "")
