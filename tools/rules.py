"""The rules of the house that no linter knows; part of ``make check``.

A line that must break one says why: ``# rule: the reason``.
"""

from __future__ import annotations

import ast
import functools
import re
import statistics
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Rule = Callable[[Path, ast.AST], str | None]

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path("src/standfast")
UNIT = Path("tests/unit")
MODULE_CAP = 900
REASON_LETTERS = 8

# Modules whose reading side can run or import what the data names.
CODE_LOADERS = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle", "yaml", "runpy", "code"}
# Calls that turn text into code or into an import.
TEXT_TO_CODE = {"eval", "exec", "compile", "__import__", "import_module", "resolve_name", "load_module", "exec_module"}
THREAD_STARTERS = {"Thread", "Timer", "ThreadPoolExecutor", "ProcessPoolExecutor", "to_thread", "run_in_executor"}
CLOCK_READERS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "clock_gettime"}
NAMELESS = {"utils", "util", "helpers", "helper", "manager", "managers", "base", "common", "misc"}

# Written in pieces, so that this file does not break its own rules.
REGISTRIES = [r"pypi\." + "org", "python" + "hosted", "npmjs" + r"\.", r"deb\." + "debian", "--" + "extra-index-url"]
MACHINE_PATHS = [rf"(?<![\w.])/{folder}/(?=\w)" for folder in ("root", "home", "work", "Users", "opt")]
FORBIDDEN_TEXT = {"address of a package registry": REGISTRIES, "path of one machine": MACHINE_PATHS}

# Names that the house replaced, and the words of its vocabulary.
REPLACED = {
    "alongside": "extra_changes",
    "along": "extra_changes",
    "attending": "inline",
    "bell": "notification",
    "bury": "reclaim",
    "concluding": "inline",
    "depose": "evict",
    "doorbell": "notification",
    "glance": "poll",
    "hear": "listen, receive",
    "heard": "received, notified",
    "hears": "listens, receives",
    "knowing": "inline",
    "lacking": "missing",
    "lifeline": "liveness_token",
    "lifelines": "liveness_tokens",
    "mail": "inbox",
    "manner": "rules",
    "news": "message, change",
    "overseer": "engine",
    "perform": "execute",
    "poke": "notify, wake",
    "revoke": "evict",
    "ring": "notify, wake",
    "trouble": "error, problem",
}
SUBJECT = re.compile(r"[a-z][\w./-]*(?:, [a-z][\w./-]*)*: \S|Revert ")
LONGEST_SUBJECT = 72

DIRECTIVE = re.compile(
    r"(?:noqa|type:\s*ignore|pyright:\s*ignore|pragma:\s*no\s*(?:cover|branch))"
    r"(?:\[[\w\-, ]*\]|:\s*[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*)?"
)


def called(node: ast.AST) -> str:
    """Return the last name of what a node calls, or nothing."""
    match node:
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name
        case _:
            return ""


def imported(node: ast.AST) -> set[str]:
    """Return the top-level names of the modules that a node imports."""
    match node:
        case ast.Import(names=names):
            return {alias.name.split(".")[0] for alias in names}
        case ast.ImportFrom(module=str(module), level=0):
            return {module.split(".")[0]}
        case _:
            return set()


@functools.cache
def inside(path: Path, *places: str) -> bool:
    """Return True if a file is one of the named ones of the package, or lies in one of its folders."""
    return any(path.is_relative_to(SOURCE / place) for place in places)


def loads_code(path: Path, node: ast.AST) -> str | None:
    """Nothing in the package turns data into code."""
    if not inside(path, "."):
        return None
    if loaders := imported(node) & CODE_LOADERS:
        return f"imports {loaders.pop()}: data must never become code"
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re"))):
            return None
    return f"{called(node)}() turns text into code" if called(node) in TEXT_TO_CODE else None


def runs_a_shell(_path: Path, node: ast.AST) -> str | None:
    """No command line is handed to a shell."""
    match node:
        case ast.keyword(arg="shell", value=ast.Constant(value=True)):
            return "shell=True: pass a list of arguments"
        case ast.Attribute(value=ast.Name(id="os"), attr="system" | "popen" as name):
            return f"os.{name}() runs a shell"
    return None


def starts_a_thread(path: Path, node: ast.AST) -> str | None:
    """Threads are started in one module."""
    if not inside(path, ".") or inside(path, "threads.py"):
        return None
    return f"{called(node)} starts a thread: go through standfast.threads" if called(node) in THREAD_STARTERS else None


def reads_time(path: Path, node: ast.AST) -> str | None:
    """Time is read in one module."""
    if not inside(path, ".") or inside(path, "clock.py"):
        return None
    match node:
        case ast.Attribute(value=ast.Name(id="time"), attr=name) if name in CLOCK_READERS:
            return f"time.{name} reads a clock: go through standfast.clock"
        case ast.Attribute(attr="now" | "utcnow" | "today", value=ast.Name(id="datetime" | "date")):
            return "reads the wall clock: go through standfast.clock"
        case ast.ImportFrom(module="time"):
            return "imports from time: go through standfast.clock"
    return None


def sleeps_to_wait(path: Path, node: ast.AST) -> str | None:
    """A test waits for an event, never for time to pass."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="time"), attr="sleep")) if path.parts[0] == "tests":
            return "time.sleep() in a test: wait for an event or advance a clock"
    return None


def is_nameless(path: Path, node: ast.AST) -> str | None:
    """A module is named for what it does."""
    if isinstance(node, ast.Module) and inside(path, ".") and path.stem.strip("_") in NAMELESS:
        return f"{path.stem} says nothing about what is inside"
    return None


def defined(node: ast.AST) -> str:
    """Return the name that a node gives to something; nothing for a test, whose name is a sentence."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return "" if name.startswith("test_") else name
        case ast.arg(arg=name):
            return name
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
        case _:
            return ""


def is_replaced(path: Path, node: ast.AST) -> str | None:
    """A thing has one word, that of the vocabulary."""
    if not (name := defined(node)) or not inside(path, "."):
        return None
    parts = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
    found = [each for each in parts if each in REPLACED]
    return f"{name}: write {REPLACED[found[0]]} in place of {found[0]}" if found else None


RULES: list[Rule] = [loads_code, runs_a_shell, starts_a_thread, reads_time, sleeps_to_wait, is_nameless, is_replaced]


def chain_of(node: ast.AST) -> tuple[str, ...]:
    """Return a name and its attributes, ``("self", "host", "worker")``; nothing if a node is something else."""
    match node:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=value, attr=name):
            return (*chain, name) if (chain := chain_of(value)) else ()
        case _:
            return ()


def is_none(node: ast.AST) -> bool:
    """Return True if a node is the constant None."""
    return isinstance(node, ast.Constant) and node.value is None


def pairs_of(target: ast.AST, value: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield each target of an assignment with its value."""
    match target, value:
        case (ast.Tuple(elts=targets), ast.Tuple(elts=values)):
            for each in zip(targets, values, strict=False):
                yield from pairs_of(*each)
        case _:
            yield target, value


def resettable(tree: ast.Module) -> set[str]:
    """Return the attributes that are set to None by something else than ``__init__``."""
    found: set[str] = set()
    functions = (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    for function in functions:
        for node in ast.walk(function) if function.name != "__init__" else ():
            pairs = (
                [pair for t in node.targets for pair in pairs_of(t, node.value)] if isinstance(node, ast.Assign) else []
            )
            found |= {target.attr for target, value in pairs if isinstance(target, ast.Attribute) and is_none(value)}
    return found


class Awaits(ast.NodeVisitor):
    """Follows one async function, and finds what was tested before an await and is relied on after it.

    Branches are read one after the other and loops twice, which is enough: the remedy, a local name that is bound once,
    is never wrong.
    """

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self._known: dict[tuple[str, ...], bool] = {}
        self.found: dict[int, str] = {}

    def visit(self, node: ast.AST) -> None:
        """Follow a node; not functions inside of it, which run at another time, and the body of a loop twice."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        if isinstance(node, ast.For | ast.AsyncFor):
            self.visit(node.iter)
        loops = isinstance(node, ast.For | ast.AsyncFor | ast.While)
        for _ in range(2 if loops else 1):
            if isinstance(node, ast.AsyncFor | ast.AsyncWith):
                self._others_run()
            if isinstance(node, ast.For | ast.AsyncFor):
                for each in node.body:
                    self.visit(each)
            else:
                super().visit(node)
        for each in node.orelse if isinstance(node, ast.For | ast.AsyncFor) else ():
            self.visit(each)
        if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith):
            self._others_run()

    def _others_run(self) -> None:
        self._known = dict.fromkeys(self._known, False)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Take the value first, as it is when the code runs."""
        self.visit(node.value)
        for target in (target for each in node.targets for target, _ in pairs_of(each, node.value)):
            if chain := chain_of(target):
                self._known[chain] = True
            else:
                self.visit(target)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Note what is compared with None."""
        if is_none(node.comparators[0]) and (chain := chain_of(node.left)):
            self._known[chain] = True
        else:
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Find an attribute of something that may be None by now."""
        chain = chain_of(node.value)
        if len(chain) > 1 and chain[-1] in self._names and self._known.get(chain) is False:
            self.found[node.lineno] = ".".join(chain)
        self.generic_visit(node)


def stale_uses(path: Path, tree: ast.Module, lines: list[str], names: set[str]) -> Iterator[str]:
    """Yield what is relied on after an await though it was found to be there, or set, before it."""
    for function in (each for each in ast.walk(tree) if isinstance(each, ast.AsyncFunctionDef)):
        awaits = Awaits(names)
        for statement in function.body:
            awaits.visit(statement)
        for number, chain in awaits.found.items():
            if "# rule: " not in lines[number - 1]:
                yield f"{path}:{number}: {chain} may be None after an await: bind it to a local name before, once"


def function_length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring."""
    first = node.body[1] if len(node.body) > 1 and ast.get_docstring(node) else node.body[0]
    return (node.end_lineno or 0) - first.lineno + 2


def broken_rules(path: Path, tree: ast.Module, lines: list[str]) -> Iterator[str]:
    """Yield what a file does against the rules, except where the line says why."""
    for node in ast.walk(tree):
        number: int = getattr(node, "lineno", 1)
        if lines and "# rule: " in lines[number - 1]:
            continue
        for rule in RULES:
            if problem := rule(path, node):
                yield f"{path}:{number}: {problem}"


def bare_directives(path: Path) -> Iterator[str]:
    """Yield the comments that switch a check off without saying why, beside it or on the line above."""
    if not DIRECTIVE.search((ROOT / path).read_text(encoding="utf-8")):
        return
    with (ROOT / path).open("rb") as file:
        comments = {t.start[0]: t for t in tokenize.tokenize(file.readline) if t.type == tokenize.COMMENT}
    for number, comment in comments.items():
        above = comments.get(number - 1)
        words = comment.string + (above.string if above and above.line.lstrip().startswith("#") else "")
        if DIRECTIVE.search(comment.string) and len(re.findall(r"[a-z]", DIRECTIVE.sub("", words))) < REASON_LETTERS:
            yield f"{path}:{number}: {comment.string!r} gives no reason"


def shape(lengths: dict[str, int], sizes: dict[Path, int]) -> Iterator[str]:
    """Yield the modules that are too long, and print the shape of the whole: a report, because caps make confetti."""
    yield from (f"{path}: {n} lines, at most {MODULE_CAP}" for path, n in sizes.items() if n > MODULE_CAP)
    ordered = sorted(lengths.values())
    median, p90 = statistics.median(ordered), ordered[len(ordered) * 9 // 10]
    print(
        f"shape: {len(sizes)} modules, {len(ordered)} functions, median {median:.0f}, p90 {p90}, longest {ordered[-1]}"
    )


def forbidden_text(path: Path, text: str) -> Iterator[str]:
    """Yield what ties a file to one machine or to one registry."""
    for what, patterns in FORBIDDEN_TEXT.items():
        for match in re.finditer("|".join(patterns), text):
            number = text.count("\n", 0, match.start()) + 1
            yield f"{path}:{number}: {what}: {match[0]!r}"


def unmirrored(path: Path) -> Iterator[str]:
    """Yield a unit test that is of no module: ``unit/locks/test_line_order.py`` is of ``locks/line.py``."""
    if not path.is_relative_to(UNIT) or not path.name.startswith("test_"):
        return
    package = path.parent.relative_to(UNIT)
    words = path.stem.split("_")[1:]
    names = {"_".join(words[:end]) for end in range(1, len(words) + 1)}
    places = (ROOT / SOURCE / package / kind.format(name) for name in names for kind in ("{}.py", "_{}.py", "{}"))
    if package.name not in names and not any(place.exists() for place in places):
        yield f"{path}: no module {' or '.join(sorted(names))} in {SOURCE / package}"


def last_subject() -> str:
    """Return the subject of the last commit that is no merge; nothing where there is none."""
    asked = ["git", "log", "-1", "--no-merges", "--format=%s"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, check=False, text=True).stdout.strip()


def unclear_subject(subject: str) -> Iterator[str]:
    """Yield what is wrong with the subject of a commit; ``locks: hand over without reading the line`` is a good one."""
    if subject and not SUBJECT.match(subject):
        yield f"the last commit, {subject!r}: write its subsystem first, such as 'locks: what was done'"
    if len(subject) > LONGEST_SUBJECT:
        yield f"the last commit, {subject!r}: {len(subject)} characters, at most {LONGEST_SUBJECT}"


def files() -> list[Path]:
    """Return the files of the project, new ones included."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True, text=True).stdout.splitlines()
    return [Path(name) for name in sorted(set(names)) if (ROOT / name).is_file()]


def problems() -> Iterator[str]:
    """Yield everything that breaks a rule, file by file."""
    lengths: dict[str, int] = {}
    sizes: dict[Path, int] = {}
    trees: dict[Path, ast.Module] = {}
    for path in files():
        text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
        yield from forbidden_text(path, text)
        if path.suffix != ".py":
            continue
        tree, lines = ast.parse(text), text.splitlines()
        yield from broken_rules(path, tree, lines)
        yield from bare_directives(path)
        yield from unmirrored(path)
        if inside(path, "."):
            sizes[path], trees[path] = len(lines), tree
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lengths[f"{path}:{node.lineno}: {node.name}"] = function_length(node)
    names = {name for tree in trees.values() for name in resettable(tree)}
    for path, tree in trees.items():
        yield from stale_uses(path, tree, (ROOT / path).read_text(encoding="utf-8").splitlines(), names)
    yield from unclear_subject(last_subject())
    yield from shape(lengths, sizes)


def main() -> int:
    """Print what breaks a rule; fail if anything does."""
    found = list(problems())
    print(*(found or ["rules: all kept"]), sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
