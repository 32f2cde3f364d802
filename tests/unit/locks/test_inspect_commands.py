"""Commands that are printed to be typed."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.cli import application
from standfast.cli.target import Target
from standfast.locks.inspect import arguments_of, command_line
from standfast.workflows.overview import Concern

ODD = ["-r", "--yes", "--", "a b", "it's", '"', "$HOME", "`x`", "\\", "*", "ü", "#a", "~", "", "a;b", "-"]
printable = st.text(st.characters().filter(str.isprintable), max_size=12)


@pytest.mark.parametrize("word", ODD)
def test_an_id_that_looks_like_anything_reaches_the_command_as_it_is(word: str) -> None:
    """The shell and the parser of the command find the same id again."""
    target = Target()
    target.namespace = "- n"
    words = shlex.split(target.command("runs", "show", *arguments_of(word)))

    assert words.pop(0) == "standfast"
    assert _parsed(words)["run_id"] == word


def test_the_parts_of_a_key_are_told_apart_from_options() -> None:
    """Also where a family is named."""
    target = Target()
    target.tenant, target.store = "a b", "sqlite:///my store.db"
    words = shlex.split(target.command("locks", "explain", "--family", "-f", *arguments_of("x", "-y")))

    assert words[0] == "standfast"
    assert _parsed(words[1:]) | {"words": ("x", "-y"), "family": "-f"} == _parsed(words[1:])


def test_a_password_is_not_printed() -> None:
    """Neither as it is, which others would see, nor hidden, which does not work."""
    target = Target()
    target.store = "postgresql://ann:secret@db/prod"
    assert target.command("status") == "standfast status"


def test_the_default_namespace_is_named_if_the_environment_says_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is typed next works on the same."""
    monkeypatch.setenv("STANDFAST_NAMESPACE", "prod")
    target = Target()
    assert target.command("status") == "standfast status --namespace prod"
    target.namespace = "default"
    target.said.add("namespace")
    assert target.command("status") == "standfast status --namespace default"


@given(st.lists(printable, max_size=4))
def test_what_can_be_printed_is_what_a_shell_reads(words: list[str]) -> None:
    """Every word comes back."""
    assert shlex.split(command_line(*words)) == ["standfast", *words]


@pytest.mark.parametrize("word", ["a\nb", "\x1b[31mred", "it's\t'\\n", "\x7f1", "\x00"[:0] + "\u2028é"])
def test_what_would_change_the_terminal_is_escaped(word: str) -> None:
    """It is on one line, and a shell reads it as it was."""
    line = command_line(word)
    shown = subprocess.run(
        ["bash", "-c", f"printf %s {line.partition(' ')[2]}"],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8"},
    )
    assert line.isprintable()
    assert shown.stdout.decode() == word


def test_what_needs_a_person_comes_with_a_command_that_can_be_typed() -> None:
    """Its options come before what is told apart from them."""
    concern = Concern("long-waits", "", 1, command=("locks", "explain", *arguments_of("-k")))
    target = Target()
    target.tenant = "acme"
    assert target.command(*concern.command) == "standfast locks explain --tenant acme -- -k"


def _parsed(words: list[str]) -> dict[str, object]:
    """Return what a command is given, by its real parser."""
    group, name, *rest = words
    context = application.make_context("standfast", [group, name, *rest])
    inner = application.get_command(context, group)
    assert inner is not None
    command = inner.get_command(context, name)  # type: ignore[attr-defined]  # it is a group
    assert command is not None
    parsed: dict[str, object] = command.make_context(name, rest, parent=context).params
    return parsed
