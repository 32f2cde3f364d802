"""Run the Python blocks of one Markdown page, in order, in one namespace: ``python page.py README.md``.

A block may ``await``. What it prints must equal the ``output`` block right after it, if there is one. A block that
cannot run says why where it begins: ``python no-run: needs a server``.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

FENCE = re.compile(
    r"^(?P<indent> *)(?P<mark>`{3,})(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=indent)(?P=mark)$", re.MULTILINE | re.DOTALL
)
NO_RUN = re.compile(r"python no-run: (?P<reason>\S.*\s.*)")


class Block(NamedTuple):
    """A block of Python on a page, and what it must print."""

    line: int
    code: str
    output: str | None


def dedented(fence: re.Match[str]) -> str:
    """Return the body of a fence without the indent that a list gives it."""
    return re.sub(rf"^ {{{len(fence['indent'])}}}", "", fence["body"], flags=re.MULTILINE)


def blocks(text: str) -> list[Block]:
    """Return the blocks of a page that are to be run; refuse a fence that hides Python without a reason."""
    found: list[Block] = []
    last_end = -1
    for fence in FENCE.finditer(text):
        info = fence["info"].strip()
        line = text.count("\n", 0, fence.start()) + 1
        if info == "output" and found and not text[last_end : fence.start()].strip():
            found[-1] = found[-1]._replace(output=dedented(fence))
        elif info == "python":
            found.append(Block(line, dedented(fence), None))
            last_end = fence.end()
        elif re.search(r"\b(?:python|py|pycon)\b", info) and not NO_RUN.fullmatch(info):
            message = f"line {line}: write ```python, or ```python no-run: and the reason; not ```{info}"
            raise ValueError(message)
    return found


def run(block: Block, page: str, namespace: dict[str, Any], runner: asyncio.Runner) -> None:
    """Run one block, in the event loop if it awaits; errors show the page and its line."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile("\n" * block.line + block.code, page, "exec", flags=flags, dont_inherit=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        result = eval(code, namespace)  # noqa: S307 -- the code is a page of our own documentation
        if inspect.iscoroutine(result):
            runner.run(result)
    if block.output is not None and printed.getvalue() != block.output:
        message = f"{page}:{block.line}: printed\n{printed.getvalue()}\nbut the page says\n{block.output}"
        raise AssertionError(message)


def run_page(page: str, text: str) -> None:
    """Run all blocks of a page; those that await share one event loop."""
    namespace: dict[str, Any] = {"__name__": "__main__", "__file__": page}
    with asyncio.Runner() as runner:
        for block in blocks(text):
            run(block, page, namespace, runner)


if __name__ == "__main__":
    run_page(sys.argv[1], Path(sys.argv[1]).read_text(encoding="utf-8"))
