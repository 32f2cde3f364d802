"""The command as a whole: its errors, version and completion scripts, and what it costs those who do not use it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

import standfast as sf
from standfast.cli import application, output
from standfast.cli import target as exits
from standfast.cli.output import described, fitted, print_table
from standfast.cli.target import advice_of
from standfast.clock import Instant
from standfast.errors import LeaseLostError, UnsuitableStoreError, WithdrawnError
from standfast.locks import ExplainedHolder, ExplainedWaiter, Explanation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.cli.conftest import Ask

ROOT = Path(__file__).resolve().parents[3]


async def test_the_version_is_that_of_the_package(ask: Ask) -> None:
    """``--version`` tells it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (await ask("--version")).stdout == f"standfast {project['version']}\n"


@pytest.mark.parametrize(
    ("store", "message"),
    [("", "STANDFAST_STORE"), ("memory://", "only by the process"), ("memory://x", "name another")],
)
async def test_a_store_must_be_named(ask: Ask, store: str, message: str) -> None:
    """Without one that others can see, the usage is shown."""
    shown = await ask("locks", "list", STANDFAST_STORE=store)
    assert shown.exit_code == 2
    assert message in shown.stderr


@pytest.mark.parametrize("words", [("status",), ("runs", "list"), ("locks", "list")])
async def test_a_store_that_stands_where_no_argument_does_is_told_its_place(ask: Ask, words: tuple[str, ...]) -> None:
    """The message names the option that was meant."""
    shown = await ask(*words, "sqlite:///app.db")
    assert shown.exit_code == 2
    assert "(sqlite:///app.db). A store is named by an option: --store URL." in shown.stderr


@pytest.mark.parametrize("store", ["sqlite://host/x", "oracle://x", "store.db"])
async def test_an_error_of_ours_is_a_message(ask: Ask, store: str) -> None:
    """What went wrong and what to do next, on stderr, and no traceback."""
    shown = await ask("--store", store, "locks", "list")

    assert shown.exit_code == 1
    assert shown.stderr.startswith("standfast: ")
    assert "Traceback" not in shown.output
    assert shown.stdout == ""


def test_advice_has_no_markup() -> None:
    """What an error's documentation says is shown as plain words."""
    for error in (WithdrawnError("a"), LeaseLostError("a", 1, "x")):
        assert "`" not in advice_of(error)
        assert advice_of(error)


def test_a_server_that_refuses_the_user_is_not_said_to_lack_a_guarantee() -> None:
    """The message names what is wrong; the advice fits a wrong password and a missing database, too."""
    refused = UnsuitableStoreError("postgresql://x:***@db/prod", "it refused the user or the password; correct them")
    assert advice_of(refused) == "Nothing was written. See to what the message says, and check --store."


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_there_is_a_completion_script_for_each_shell(ask: Ask, shell: str) -> None:
    """It names the command and the variable by which it asks."""
    shown = await ask("completion", shell)
    assert shown.exit_code == 0
    assert f"_STANDFAST_COMPLETE={shell}_complete" in shown.stdout


async def test_an_unknown_shell_is_refused(ask: Ask) -> None:
    """The usage names those that are known."""
    shown = await ask("completion", "tcsh")
    assert shown.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in shown.stderr


def test_the_library_does_not_load_the_command() -> None:
    """``import standfast`` with all its names loads neither click nor the command."""
    code = "import sys; from standfast import *; print([n for n in sys.modules if n.startswith(NAMES)])"
    code = code.replace("NAMES", "('click', 'standfast.cli')")
    assert subprocess.check_output([sys.executable, "-P", "-c", code], text=True) == "[]\n"


def test_the_module_is_the_command() -> None:
    """``python -m standfast`` does the same."""
    shown = subprocess.check_output([sys.executable, "-P", "-m", "standfast", "--help"], text=True)
    assert shown.startswith("Usage: standfast [OPTIONS] COMMAND [ARGS]...")


@pytest.mark.parametrize("group", ["", "cloudflare", "limits", "locks", "requests", "runs", "schedules"])
async def test_the_list_of_commands_fits_into_80_columns(ask: Ask, group: str) -> None:
    """Each says in one short sentence what it does; none is cut."""
    listed = (await ask(*group.split(), "--help", COLUMNS="80")).stdout.partition("Commands:")[2].splitlines()
    assert len(listed) > 1
    assert not [line for line in listed if line.endswith("...")]
    assert max(map(len, listed)) <= 78  # a real terminal of 80 columns leaves two empty; the runner here does not


@pytest.mark.parametrize("command", ["completion", "mcp", "run", "serve", "worker"])
async def test_the_help_shows_examples_as_they_are_typed(ask: Ask, command: str) -> None:
    """Each on a line of its own, and nothing of how that is written."""
    shown = (await ask(command, "--help")).stdout
    assert "\\b" not in shown
    assert re.search(rf"^  (bash:  eval .*|standfast {command} \S.*)$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    "command", ["audit", "locks list", "runs list", "schedules list", "status", "top --once", "workers"]
)
@pytest.mark.usefixtures("space")
async def test_a_name_that_cannot_be_one_is_not_typed_as_it_should_be(ask: Ask, command: str) -> None:
    """It has the same exit code everywhere, and the message says what is wrong."""
    refused = await ask(*command.split(), "--namespace", "a\nb")
    assert refused.exit_code == 2
    assert "it must be 1 to 100 printable characters" in refused.stderr


PERSON: dict[str, Any] = {
    "note": "",
    "mode": "",
    "weight": 1,
    "is_alive": True,
    "process": 1,
    "host": "h",
    "program": "p",
}


def told(*, more: bool = False) -> Explanation:
    """Return a line with one holder and two waiters."""
    holder = ExplainedHolder(
        entry="1", owner="ann", since=Instant(0), held_for=1, lease_left=1, ends_at=None, fence=1, slot=0,
        **{**PERSON, "note": "backup"},
    )  # fmt: skip
    waiters = tuple(
        ExplainedWaiter(
            entry=str(place), owner=owner, since=Instant(0), place=place, ticket=place, waited=1, estimate=estimate,
            **PERSON,
        )
        for place, (owner, estimate) in enumerate([("ben", None), ("cat", 90.0)])
    )  # fmt: skip
    return Explanation(
        key="a", family="", parts=("a",), at=Instant(0), kind="mutex", holders=(holder,), waiters=waiters, more=more
    )


@pytest.mark.parametrize(
    ("owner", "more", "words"),
    [
        ("ben", False, "waiting for a: 0 in front, held by ann (backup)"),
        ("cat", False, "waiting for a: 1 in front, held by ann (backup), likely 90 s more"),
        ("dan", True, "waiting for a: 2 or more in front, held by ann (backup)"),
        ("dan", False, ""),
    ],
)
def test_a_wait_is_described(owner: str, words: str, *, more: bool) -> None:
    """Who is in front, who holds, and how long it may take; nothing for one that does not wait any more."""
    assert described(told(more=more), owner) == words


def commands(group: click.Group, path: str = "standfast") -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its full name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


@pytest.mark.parametrize(("name", "command"), list(commands(application)), ids=lambda part: str(part).split()[-1])
def test_the_reference_names_every_command_and_option(name: str, command: click.Command) -> None:
    """What can be typed is documented."""
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    options = [option for each in command.params if isinstance(each, click.Option) for option in each.opts]
    assert name in page
    assert [option for option in options if f"`{option}" not in page] == []


def test_one_table_of_the_reference_has_every_exit_code() -> None:
    """Each code of ours has its row there, and no row is of a code that there is not."""
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    table = page.partition("## Exit codes")[2].partition("\n## ")[0]
    others = {"FRAMES", "MICROSECONDS", "MOST_COMPLETED"}
    codes = {
        value for name, value in vars(exits).items() if name.isupper() and name not in others and type(value) is int
    }
    rows = {int(row) for row in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert rows == {0, exits.INTERRUPTED, *(code for code in codes if code < exits.LOST)}
    assert [code for code in codes if f"| {code} " not in page] == []


@pytest.mark.parametrize(
    ("widths", "width", "fitting"),
    [
        ((4, 10), None, [4, 10]),
        ((4, 10), 40, [4, 10]),
        ((4, 50, 10), 40, [4, 22, 10]),
        ((4, 50, 50), 60, [4, 26, 26]),
        ((30, 31, 32), 20, [8, 8, 8]),
    ],
)
def test_columns_fit_into_a_line(widths: tuple[int, ...], width: int | None, fitting: list[int]) -> None:
    """The widest give way first, and none to nothing; without a terminal none does."""
    assert fitted(widths, width) == fitting


def test_a_table_is_cut_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What is read by a program is whole."""
    rows = [("order-1", "x" * 60)]
    print_table(("RUN", "STATUS"), rows)
    whole = capsys.readouterr().out
    monkeypatch.setattr(output, "terminal_width", lambda: 30)
    print_table(("RUN", "STATUS"), rows)
    cut = capsys.readouterr().out

    assert whole.splitlines()[1] == f"order-1  {'x' * 60}"
    assert cut.splitlines()[1] == f"order-1  {'x' * 20}\u2026"


async def test_the_environment_names_the_namespace_and_the_tenant(ask: Ask, url: str) -> None:
    """Where no option does."""
    async with sf.open(url, namespace="prod", tenant="ann") as space, space.mutex("a").hold():
        by_variables = await ask("locks", "list", STANDFAST_NAMESPACE="prod", STANDFAST_TENANT="ann")
        by_option = await ask("locks", "list", "--tenant", "ben", STANDFAST_NAMESPACE="prod", STANDFAST_TENANT="ann")

    assert by_variables.stdout.splitlines()[1].startswith("a ")
    assert by_option.stdout == "no key is held or waited for\n"


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-17", "2026-11-17T00:00:00+00:00"),
        ("2026-11-17T09:30", "2026-11-17T09:30:00+00:00"),
        ("2026-11-17 09:30+01:00", "2026-11-17T09:30:00+01:00"),
    ],
)
def test_a_moment_is_in_utc_unless_it_names_a_zone(text: str, moment: str) -> None:
    """Dates alone are midnights."""
    assert exits.MOMENT.convert(text, None, None).isoformat() == moment


def test_a_moment_can_be_how_long_ago_it_was() -> None:
    """And what is neither is refused, with what it can be."""
    ago = datetime.now(UTC) - exits.MOMENT.convert("2 hours", None, None)
    assert abs(ago.total_seconds() - 7200) < 60
    with pytest.raises(click.BadParameter, match="how long ago"):
        exits.MOMENT.convert("yesterday", None, None)


@sf.workflow
async def fulfil(ctx: sf.Context) -> None:
    """Do nothing."""
    del ctx


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("runs start ", ["fulfil"]),
        ("runs show o", ["order-7"]),
        ("runs cancel o", ["order-7"]),
        ("schedules pause d", ["daily"]),
        ("limits set ", ["fulfil"]),
    ],
)
async def test_a_shell_completes_names_from_the_store(ask: Ask, url: str, typed: str, found: list[str]) -> None:
    """Runs, workflows and schedules; nothing where there is no store."""
    async with sf.Engine(url, workflows=[fulfil]) as engine:
        await engine.start(fulfil, id="order-7")
        await engine.schedules.create(sf.Schedule(fulfil, id="daily", every="1 day"))
        words: Any = {"COMP_WORDS": f"standfast {typed}", "COMP_CWORD": str(len(typed.split(" ")))}
        shown = await ask(_STANDFAST_COMPLETE="bash_complete", **words)
        nothing = await ask(_STANDFAST_COMPLETE="bash_complete", STANDFAST_STORE=f"{url}.not", **words)

    assert [line.partition(",")[2] for line in shown.stdout.splitlines()] == found
    assert nothing.stdout.strip() == ""


async def test_top_without_its_extra_names_it(ask: Ask, space: sf.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what shows the same without it; without a terminal it says how to print one screen."""
    assert space.namespace == "default"
    no_terminal = await ask("top")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    missing = await ask("top", "--once")

    assert (no_terminal.exit_code, missing.exit_code) == (2, 4)
    assert "--once" in no_terminal.stderr
    assert "pip install 'standfast[top]'" in missing.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--lock", "", "--", "true"),
        ("run", "--lock", " ", "--", "true"),
        ("run", "--lock", "a\nb", "--", "true"),
        ("run", "--lock", "k", "--mode", "bogus", "--", "true"),
        ("run", "--lock", "k", "--timeout", "banana", "--", "true"),
        ("run", "--lock", "k", "--lease", "0s", "--", "true"),
        ("worker", "tests.unit.cli.test_cli:nothing", "--grace", "-1s"),
        ("serve", "tests.unit.cli.test_cli:nothing", "--grace", "-1s"),
    ],
)
def test_what_is_not_typed_as_it_should_be_ends_with_two(url: str, command: tuple[str, ...]) -> None:
    """Nothing is done: a script with a variable that is not set holds no lock that others share by mistake."""
    told = CliRunner().invoke(application, command, env={"STANDFAST_STORE": url}, prog_name="standfast")
    assert told.exit_code == 2


async def test_a_reader_that_has_seen_enough_is_no_error(url: str, space: sf.Space) -> None:
    """As ``head`` does it: the pipe is closed before all is written."""
    async with space.mutex("stock").hold():
        read, write = os.pipe()
        os.close(read)
        command = (sys.executable, "-m", "standfast", "locks", "list", "--store", url)
        listing = await asyncio.create_subprocess_exec(*command, stdout=write, stderr=asyncio.subprocess.PIPE)
        os.close(write)
        _, problem = await listing.communicate()

    assert (listing.returncode, problem) == (0, b"")


@sf.workflow(name="fulfil", concurrency=sf.Limit(1))
async def fulfils(ctx: sf.Context) -> None:
    """Wait, with a place in a limit."""
    await ctx.wait_signal("go")


async def test_locks_are_explained_by_the_names_that_lists_show(ask: Ask, url: str) -> None:
    """Of limits too, which have no key of their own; what a run holds as such is not released as a lock."""
    async with sf.Engine(url, workflows=[fulfils]) as engine:
        await engine.start(fulfils, id="r1")
        name = json.loads((await ask("locks", "list", "--json")).stdout)["lines"][0]["key"]
        told = await ask("locks", "explain", name)
        records = json.loads((await ask("locks", "inspect", name, "--json")).stdout)["records"]
        refused = await ask("locks", "release", name, "--yes")
        unknown = await ask("locks", "explain", name[:-1])

    assert name == "limit of fulfil"
    assert "r1" in told.stdout
    assert records
    assert (refused.exit_code, "standfast runs cancel" in refused.stderr) == (3, True)
    assert unknown.stderr == "nothing is stored under this name; like it: limit of fulfil\n"


# --- what was typed wrongly is told in the words of the command line ------------------------------------------------

WITHOUT_EXTRAS = """
import sys
for name in ("httptools", "jinja2", "prometheus_client", "rich", "starlette", "uvicorn", "websockets"):
    sys.modules[name] = None
from standfast.cli import main
main()
"""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--help",), 0, "serve"),
        (("serve", "shop:app"), 1, 'pip install "standfast[serve]"'),
        (("mcp", "shop:app"), 4, "there is no module shop"),
    ],
)
def test_the_command_works_without_extras(arguments: tuple[str, ...], code: int, words: str) -> None:
    """What is installed with Standfast alone is enough for help, and for a message that says what is missing."""
    command = [sys.executable, "-c", WITHOUT_EXTRAS, *arguments]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "Traceback" not in ended.stderr
    assert (ended.returncode, words in ended.stdout + ended.stderr) == (code, True)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("status", "--lately", "xx"), "--lately"),
        (("top", "--once", "--patience", "-1s"), "--patience"),
        (("run", "--lock", "a", "--max-hold", "2 months", "--", "true"), "--max-hold"),
        (("run", "--lock", "a", "--timeout", "xx", "--", "true"), "--timeout"),
        (("limits", "set", "w", "3", "--for", "xx"), "--for"),
        (("worker", "shop:engine", "--grace", "xx"), "--grace"),
        (("serve", "shop:app", "--header-time", "xx"), "--header-time"),
        (("runs", "start", "w", "--delay", "9" * 80), "--delay"),
        (("runs", "update", "r", "u", "--timeout", ""), "--timeout"),
    ],
)
async def test_what_is_no_length_of_time_is_told_by_its_option(
    ask: Ask, arguments: tuple[str, ...], option: str
) -> None:
    """Exit code 2, the option by its name, what to write, and nothing of Python."""
    shown = await ask(*arguments)
    assert shown.exit_code == 2
    assert f"Invalid value for '{option}'" in shown.stderr
    assert "is no length of time: " in shown.stderr
    assert "timedelta" not in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("locks", "explain", "--family", "", "a"), 2, "--family: '' cannot be part of a key"),
        (("--store", "nope://x", "status"), 1, "Check --store and STANDFAST_STORE."),
        (("runs", "start", "nope"), 3, "standfast workers lists who has what"),
        (("limits", "set", "nope", "3"), 3, "Check --namespace and --tenant"),
        (("worker", "shop.py:engine"), 2, "without .py: shop:engine"),
        (("runs", "list", "--after", "x"), 2, "Type it as the message says"),
    ],
)
async def test_what_to_do_next_is_said_for_a_command_line(
    ask: Ask, space: sf.Space, arguments: tuple[str, ...], code: int, words: str
) -> None:
    """The documentation of an error speaks of code; a person at a terminal has options."""
    async with space.mutex("a").hold():  # so that the file is there
        shown = await ask(*arguments)
    assert (shown.exit_code, words in shown.stderr) == (code, True)
    for name in ("fix the call", "Engine(", "secrets masked"):
        assert name not in shown.stderr
