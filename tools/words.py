"""Plain technical English: no words that make people of processes; part of ``make check``.

A process is not *somebody*, and "tell whether" is "return True if". Scanned are the README and the documentation,
without the records of decisions, and the strings and comments of the package;
``words.py src/standfast/cli`` lists those of one folder. A line that needs such a word says why:
``<!-- word: the reason -->`` in Markdown, ``# word: the reason`` in code.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent

# What is not written, and what is written instead.
INSTEAD = {
    r"whoever": "the caller, the holder, a process that",
    r"somebody(?: else)?": "a user, another process",
    r"nobody(?: else)?": "no caller, no other process, none",
    r"those who": "callers that, waiters",
    r"(?:tell|tells|told|telling) whether": "return True if, say if",
    r"turn(?:s|ed|ing)? out": "evict, prove to be",
    r"look(?:s|ed|ing)? after": "execute, maintain, poll after",
    r"be had": "be available",
    r"so many": "that number, too many",
    r"bur(?:y|ies|ied|ying)": "reclaim",
}
# A part of a name or of an address, such as a file called some-word.md, is no word.
BANNED = re.compile(rf"(?<![\w/-])(?:{'|'.join(INSTEAD)})(?![\w-])".replace(" ", r"\s+"), re.IGNORECASE)
# What the program itself prints, quoted on pages: it goes when the message does.
QUOTES = ("whoever has this token may do everything",)
# Written by a tool from the docstrings of the suites.
GENERATED = {"conformance.md"}
REASON = re.compile(r"(?:<!--|#) word: \S+")
STRINGS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def instead_of(word: str) -> str:
    """Return what to write in place of a word."""
    return next(better for pattern, better in INSTEAD.items() if re.fullmatch(pattern, word, re.IGNORECASE))


def found(text: str, first_line: int = 1) -> Iterator[tuple[int, str]]:
    """Yield each banned word with its line."""
    for match in BANNED.finditer(text):
        yield first_line + text.count("\n", 0, match.start()), " ".join(match[0].split())


def words_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Yield the banned words of a Markdown page."""
    for quote in QUOTES:
        text = text.replace(quote, "…")
    lines = text.splitlines()
    for number, word in found(text):
        if not REASON.search(lines[number - 1]):
            yield number, word


def words_of_module(text: str) -> Iterator[tuple[int, str]]:
    """Yield the banned words in the strings and comments of a module; a reason stands where a string ends."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in STRINGS and not REASON.search(lines[token.end[0] - 1]):
            yield from found(token.string, token.start[0])


def pages() -> list[Path]:
    """Return the README and the documentation; decisions are history, and keep their words."""
    docs = (path for path in (ROOT / "docs").rglob("*.md") if not {"adr", "_build", *GENERATED} & set(path.parts))
    return [ROOT / "README.md", *sorted(docs)]


def modules() -> list[Path]:
    """Return the modules of the package."""
    return sorted((ROOT / "src" / "standfast").rglob("*.py"))


def problems(folders: list[str]) -> Iterator[str]:
    """Yield every banned word of the documentation and the package, or of folders, and what to write instead."""
    chosen = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    for path in chosen if folders else [*pages(), *modules()]:
        words = (words_of_module if path.suffix == ".py" else words_of_page)(path.read_text(encoding="utf-8"))
        yield from (f"{path.relative_to(ROOT)}:{number}: {word!r}: write {instead_of(word)}" for number, word in words)


def main() -> int:
    """Print where a banned word stands; fail if any does."""
    listed = list(problems(sys.argv[1:]))
    print(*(listed or ["words: all plain"]), sep="\n")
    return 1 if listed else 0


if __name__ == "__main__":
    sys.exit(main())
