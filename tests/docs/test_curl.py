"""The ``curl`` commands on a page, run against a real server of the code on that page, print what the page says."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from tests.docs.page import FENCE, blocks
from tests.integration.cli.programs import PATIENCE, TOKEN, Program

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.heavy,  # real servers: once, on the default interpreter
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here, so its examples are not run"),
]

ROOT: Final = Path(__file__).resolve().parents[2]
ADDRESS: Final = "http://127.0.0.1:8000"
ID: Final = re.compile(r"\b(?:[0-9a-f]{15}-)?[0-9a-f]{32}\b")
ANYTHING: Final = "…"


class Command(NamedTuple):
    """A command on a page, and what it says that it prints."""

    words: str
    printed: list[str]


def commands(text: str) -> list[Command]:
    """Return the commands of a page that call a server of the page."""
    found: list[Command] = []
    for fence in FENCE.finditer(text):
        if fence["info"].strip() != "console":
            continue
        for line in fence["body"].replace("\\\n", "").splitlines():
            if line.startswith("$ "):
                found.append(Command(line[2:], []))
            elif found:
                found[-1].printed.append(line)
    return [each for each in found if each.words.startswith("curl ") and ADDRESS in each.words]


def module(text: str) -> tuple[str, str]:
    """Return the name and the code of the module that a page serves: its first block, and the application."""
    name = re.search(r"standfast serve (\w+):app", text)
    assert name is not None, "the page does not say how it is served"
    text = text[max(0, text.find(f"ave as `{name[1]}.py`")) :]
    first, *others = [each.code for each in blocks(text)]
    application = next((code for code in others if code.startswith("app = ")), "") if "\napp = " not in first else ""
    return name[1], f"{first}\n{application}"


PAGES: Final = [
    page
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    if commands(page.read_text(encoding="utf-8"))
]


@pytest.fixture
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where the application of a page is served, in an empty folder."""
    name, code = module(request.getfixturevalue("page").read_text(encoding="utf-8"))
    (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.delenv("STANDFAST_STORE", raising=False)
    program = Program("", "serve", f"{name}:app", "--port", "0", cwd=tmp_path)
    found = re.search(r"at (http://\S+) \(process", program.hear())
    assert found is not None
    yield found[1]
    program.process.kill()
    program.process.communicate(timeout=PATIENCE)


def run(words: str, printed: list[str]) -> list[str]:
    """Run a command to its end; one whose end the page leaves out, until it has printed what the page has."""
    command = shlex.split(words.replace("$STANDFAST_TOKEN", TOKEN))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said: list[str] = []
        for line in process.stdout:
            said.append(line.rstrip("\r\n"))
            if printed[-1] == ANYTHING and is_told(printed, said):
                process.kill()
                break
    return said


def is_told(printed: list[str], said: list[str]) -> bool:
    """Tell whether a command said what the page has; ``…`` stands for any lines, and ids differ each time."""
    wanted, heard = ([ID.sub("id", line) for line in lines] for lines in (printed, said))
    if ANYTHING not in wanted:
        return wanted == heard
    rest = iter(heard)
    return all(line in rest for line in wanted if line != ANYTHING)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_curl_prints_is_what_the_page_says(page: Path, address: str) -> None:
    """Every command of the page, in order; an id that one has printed is used by the next."""
    ids: dict[str, str] = {}
    for command in commands(page.read_text(encoding="utf-8")):
        words = command.words.replace(ADDRESS, address)
        for shown, known in ids.items():
            words = words.replace(shown, known)
        said = run(words, command.printed)
        assert is_told(command.printed, said), "\n".join([words, *said])
        ids |= dict(zip(ID.findall("\n".join(command.printed)), ID.findall("\n".join(said)), strict=False))


def test_pages_with_commands_are_found() -> None:
    """Whatever calls a server of its page is run."""
    assert {page.name for page in PAGES} >= {"README.md", "serve-over-http.md", "a-chat-that-answers-in-order.md"}


@pytest.mark.parametrize(
    ("printed", "said", "fits"),
    [
        (["a", "b"], ["a", "b"], True),
        (["a"], ["a", "b"], False),
        (["a", "…"], ["a", "b"], True),
        (["b", "…", "a"], ["a", "b"], False),
        ([f"x {'0' * 32}"], [f"x {'f' * 32}"], True),
    ],
)
def test_other_words_are_noticed(printed: list[str], said: list[str], *, fits: bool) -> None:
    """A page that says something else than the command is found."""
    assert is_told(printed, said) is fits
