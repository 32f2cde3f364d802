"""The script behind ``make check`` finds what it is there to find."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from tools import rules

INSIDE = Path("src/standfast/stores/sqlite.py")


def broken(code: str, path: Path = INSIDE) -> list[str]:
    """Return what a piece of code does against the rules."""
    return list(rules.broken_rules(path, ast.parse(code), code.splitlines()))


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from marshal import loads",
        "eval('1')",
        "import importlib\nimportlib.import_module(name)",
        "import yaml",
        "subprocess.run('ls', shell=True)",
        "os.system('ls')",
        "threading.Thread(target=f).start()",
        "await asyncio.to_thread(f)",
        "now = time.time()",
        "now = datetime.now()",
        "from time import monotonic",
    ],
)
def test_a_broken_rule_is_found(code: str) -> None:
    """Data that becomes code, shells, stray threads and stray clocks are found in the package."""
    assert len(broken(code)) == 1


@pytest.mark.parametrize(
    "code", ["import re\nre.compile('x')", "import json", "clock.now()", "lock = threading.Lock()"]
)
def test_ordinary_code_breaks_no_rule(code: str) -> None:
    """What looks alike but is harmless passes."""
    assert broken(code) == []


def test_a_line_that_says_why_may_break_a_rule() -> None:
    """``# rule: reason`` lets a line pass."""
    assert broken("import pickle  # rule: shows that it is refused") == []


def test_the_one_module_may_do_its_work() -> None:
    """The clock module reads time; the offload module starts threads."""
    assert broken("now = time.time()", Path("src/standfast/clock.py")) == []
    assert broken("threading.Thread()", Path("src/standfast/threads.py")) == []


@pytest.mark.parametrize(
    ("comment", "silent"),
    [("# noqa: S101", 1), ("# type: ignore[misc]", 1), ("# noqa: S101 -- tests speak so", 0), ("# nothing", 0)],
)
def test_an_ignore_without_a_reason_is_found(comment: str, silent: int, tmp_path: Path) -> None:
    """Each exception to a check has its reason beside it."""
    file = tmp_path / "code.py"
    file.write_text(f"x = 1  {comment}\n")
    assert len(list(rules.bare_directives(file))) == silent


@pytest.mark.parametrize("text", ["cd /" + "root/project", "see https://py" + "pi.org/simple", "npm" + "js.com"])
def test_traces_of_one_machine_are_found(text: str) -> None:
    """No file names a folder of one machine or a package registry."""
    assert len(list(rules.forbidden_text(Path("README.md"), text))) == 1


STALE = {
    "tested, then awaited": "if self.worker is None:\n  return\nawait f()\nself.worker.guard",
    "set, then awaited": "self.worker = g()\nawait f()\nself.worker.guard",
    "of another object": "if self._host.worker is not None:\n  await f()\n  self._host.worker.guard",
    "in the next round of a loop": "if self.worker is not None:\n  for x in y:\n    self.worker.guard\n    await f()",
    "after an async with": "if self.worker is None:\n  return\nasync with f():\n  pass\nself.worker.guard",
}
FRESH = {
    "bound once": "worker = self.worker\nif worker is None:\n  return\nawait f()\nworker.guard",
    "tested again": "if self.worker is None:\n  await f()\nif self.worker is not None:\n  self.worker.guard",
    "set by the await": "if self.worker is None:\n  self.worker = await f()\nself.worker.guard",
    "used before": "if self.worker is not None:\n  await f(self.worker.guard)",
    "never reset": "if self.store is None:\n  return\nawait f()\nself.store.close()",
    "in the line of a loop": "if self.worker is not None:\n  for x in await f(self.worker.guard):\n    pass",
    "in another function": "if self.worker is None:\n  return\nawait f()\ng(lambda: self.worker.guard)",
}


def stale(body: str) -> list[str]:
    """Return what a method does against the rule; ``worker`` is set to None elsewhere."""
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    code = f"async def use(self):\n{indented}\ndef lose(self):\n    self.x, self.worker = 1, None\n"
    tree = ast.parse(code)
    return list(rules.stale_uses(INSIDE, tree, code.splitlines(), rules.resettable(tree)))


@pytest.mark.parametrize("body", STALE.values(), ids=STALE)
def test_what_may_be_none_after_an_await_is_not_relied_on(body: str) -> None:
    """Others run meanwhile, and may have taken it away."""
    assert len(stale(body)) == 1


@pytest.mark.parametrize("body", FRESH.values(), ids=FRESH)
def test_what_is_looked_at_again_or_bound_once_may_be_relied_on(body: str) -> None:
    """So may what nothing takes away."""
    assert stale(body) == []


@pytest.mark.parametrize(
    ("path", "problems"),
    [
        ("tests/unit/test_codec.py", 0),
        ("tests/unit/locks/test_line_driver.py", 0),
        ("tests/unit/locks/test_line_order.py", 0),
        ("tests/unit/locks/test_locks.py", 0),
        ("tests/unit/locks/test_nothing_like_it.py", 1),
        ("tests/api/test_nothing_like_it.py", 0),
        ("tests/unit/locks/scene.py", 0),
    ],
)
def test_a_unit_test_is_of_a_module(path: str, problems: int) -> None:
    """Its name begins with that of a module or package beside it in the source; helpers are free."""
    assert len(list(rules.unmirrored(Path(path)))) == problems


@pytest.mark.parametrize(
    ("code", "problems"),
    [
        ("def _hear(): ...", 1),
        ("class NewsFeed: ...", 1),
        ("self.has_trouble = 1", 1),
        ("def f(bell): ...", 1),
        ("def test_a_change_is_heard(): ...", 0),
        ("def notified(): ...", 0),
        ("spring = string = 1", 0),
        ("self.heard = 1  # rule: it is stored", 0),
    ],
)
def test_a_name_that_the_house_replaced_is_found(code: str, problems: int) -> None:
    """In functions, classes, parameters and what is assigned; a word within a word is none."""
    assert len(broken(code)) == problems


@pytest.mark.parametrize(
    ("subject", "problems"),
    [
        ("locks: hand over without reading the line", 0),
        ("flows, web: one refusal", 0),
        ("stores/redis: a script less", 0),
        ("", 0),
        ('Revert "locks: hand over"', 0),
        ("Hand over without reading the line", 1),
        (f"locks: {'very ' * 14}late", 1),
    ],
)
def test_a_subject_says_where_and_is_short(subject: str, problems: int) -> None:
    """What a commit is of stands first, and a list of commits fits into a terminal."""
    assert len(list(rules.unclear_subject(subject))) == problems


def test_all_backends_are_independent() -> None:
    """A new folder of a backend is added to the contract, so that it cannot lean on another one."""
    project = tomllib.loads((rules.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    [listed] = [each["modules"] for each in project["tool"]["importlinter"]["contracts"] if each["id"] == "backends"]
    folders = {path.parent.name for path in (rules.ROOT / rules.SOURCE / "stores").glob("*/__init__.py")} - {"remote"}
    assert {each.rpartition(".")[2] for each in listed} == folders | {"memory"}
