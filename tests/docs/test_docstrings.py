"""The examples in docstrings are true."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import importlib
import inspect
import io
import pkgutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

import standfast

if TYPE_CHECKING:
    from pathlib import Path

MODULES = sorted(info.name for info in pkgutil.walk_packages(standfast.__path__, "standfast."))
CHECKER = doctest.OutputChecker()


def printed(source: str, names: dict[str, Any], runner: asyncio.Runner) -> str:
    """Run one example as a prompt would, ``await`` included, and return what it shows."""
    code = compile(source, "<docstring>", "single", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        try:
            result = eval(code, names)  # noqa: S307 -- the code is a docstring of our own
            if inspect.iscoroutine(result):
                runner.run(result)
        except Exception as error:  # noqa: BLE001 -- an example may show any error
            print("Traceback (most recent call last):\n    ...")
            print(f"{type(error).__module__}.{type(error).__qualname__}: {error}".removeprefix("builtins."))
    return shown.getvalue()


def wrong_examples(test: doctest.DocTest) -> list[str]:
    """Return what the examples of one docstring get wrong."""
    wrong: list[str] = []
    names = dict(test.globs) | {"sf": standfast, "asyncio": asyncio, "__name__": "__main__"}
    with asyncio.Runner() as runner:
        for example in test.examples:
            answer = printed(example.source, names, runner)
            if not CHECKER.check_output(example.want, answer, doctest.ELLIPSIS):
                wrong.append(f"{test.name}: {example.source}says {example.want!r}, is {answer!r}")
    return wrong


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_are_true(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a docstring shows after ``>>>`` is what happens, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "displayhook", sys.__displayhook__)
    module = importlib.import_module(name)
    wrong = [problem for test in doctest.DocTestFinder().find(module) for problem in wrong_examples(test)]
    assert not wrong, "\n".join(wrong)
