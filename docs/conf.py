"""How the site is built: ``make docs``. Warnings and broken references fail the build."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import pkgutil
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from sphinx.addnodes import pending_xref
from sphinx.ext.napoleon import Config, GoogleDocstring

if TYPE_CHECKING:
    from collections.abc import Iterable

    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

_project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "Standfast"
author = "The Standfast authors"
project_copyright = author
release = version = _project["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Standfast {release}"

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"show-inheritance": True}

# Names of the standard library are not looked up: the build needs no network and gives the same result everywhere.
nitpick_ignore_regex = [
    (r"py:.*", rf"_?({'|'.join(sorted(sys.stdlib_module_names))})(\..*)?"),
    (r"py:.*", r"(apsw|asyncpg|msgspec|pytest|_pytest|hypothesis|starlette)\..*"),
    (r"py:.*", r"(.*\.)?[~_]?([A-Z]|[A-Z][A-Za-z]*T)"),  # type variables
]

_FOR_BACKENDS = {"standfast.stores.backend"}

# What a package shows though it does not load it: its parts are loaded when they are used.
_SHOWN = {
    "standfast.workflows": (
        "workflow",
        "step",
        "Workflow",
        "Step",
        "Retry",
        "Limit",
        "Context",
        "RunHold",
        "ContextRateLimiter",
        "ContextState",
        "SessionState",
        "current_step",
        "CurrentStep",
        "Happened",
        "DID_NOT_HAPPEN",
        "RunCancelled",
        "Engine",
        "Run",
        "RunInfo",
        "Page",
        "HistoryEntry",
        "Failure",
        "Looked",
        "Recovered",
        "Schedule",
        "ScheduleOptions",
        "Schedules",
        "ScheduleInfo",
    ),
    "standfast.flows": (
        "Flow",
        "Action",
        "ActionOptions",
        "Allow",
        "Queue",
        "Reject",
        "Debounce",
        "Restart",
        "Batch",
        "Join",
        "Latest",
        "Principal",
        "Call",
        "Request",
        "Session",
        "Dispatcher",
        "Handle",
        "RequestInfo",
        "Explanation",
        "Event",
    ),
}
_API = Path(__file__).parent / "reference" / "api"


def _define_annotations(name: str) -> None:
    """Run what a module does only for type checkers, now that no import can go round in circles."""
    module = importlib.import_module(name)
    for node in ast.parse(inspect.getsource(module)).body:
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body):
                code = compile(ast.Module(body, []), name, "exec")
                # A name that another module defines likewise comes next round; what only stubs subscript, never.
                with contextlib.suppress(ImportError, TypeError):
                    exec(code, vars(module))  # noqa: S102 -- a part of the package itself


def _public_modules() -> list[str]:
    """Return the modules that have a page: the top ones, the packages, and what authors of backends need."""
    package = importlib.import_module("standfast")
    found = [
        ("standfast", True),
        *((each.name, each.ispkg) for each in pkgutil.walk_packages(package.__path__, "standfast.")),
    ]
    for name, _ in [*found, *found]:
        _define_annotations(name)
    shown = [name for name, is_package in found if is_package or name.count(".") == 1 or name in _FOR_BACKENDS]
    return [name for name in shown if "._" not in name]


def _page_of(home: str, pages: Iterable[str], otherwise: str) -> str:
    """Return the page that shows what the module ``home`` defines: its own, or that of the package around it."""
    around = [page for page in pages if f"{home}.".startswith(f"{page}.")]
    return max(around, key=len, default=otherwise)


def _page(name: str, pages: Iterable[str]) -> str:
    """Write the page of a module: what it offers, and links to what it hands on from other pages."""
    module = importlib.import_module(name)
    homes = {each: getattr(getattr(module, each), "__module__", name) for each in getattr(module, "__all__", ())}
    links = [each for each, home in homes.items() if _page_of(home, pages, name) != name]
    members = ", ".join(each for each in homes if each not in links)
    option = f"   :members: {members}" if members or not homes else "   :no-members:"
    lines = [name, "=" * len(name), "", f".. automodule:: {name}", option, ""]
    for each in _SHOWN.get(name, ()):
        lines += _entry(name, each)
    return "\n".join([*lines, *(f"- :obj:`{each} <{name}.{each}>`" for each in links), ""])


def _entry(package: str, name: str) -> list[str]:
    """Return what shows one name of a package, with everything that a class has from those above it."""
    inside = [module for each, module in sys.modules.items() if each.startswith(f"{package}.")]
    home, found = next(
        (module.__name__, vars(module)[name])
        for module in inside
        if getattr(vars(module).get(name), "__module__", None) == module.__name__
    )
    if not inspect.isclass(found):
        return [f".. auto{'function' if callable(found) else 'data'}:: {home}.{name}", ""]
    above = [each.__name__ for each in found.__mro__[1:] if not each.__module__.startswith("standfast")]
    return [f".. autoclass:: {home}.{name}", "   :members:", f"   :inherited-members: {', '.join(above)}", ""]


def _write_api_pages(_app: Sphinx) -> None:
    """Write one page for each public module, and take away the pages of modules that are gone."""
    names = _public_modules()
    pages = {_API / f"{name}.rst": _page(name, names) for name in names}
    for stale in set(_API.glob("*.rst")) - set(pages):
        stale.unlink()
    for path, text in pages.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _places(target: str, documented: Iterable[str]) -> list[str]:
    """Return where a name is documented that may be written short, or by the package that hands it on."""
    parts = target.split(".")
    for cut in range(len(parts)):
        start = ".".join([*parts[:cut], ""]) if cut else "standfast."
        end = ".".join(["", *parts[cut:]])
        places = [place for place in documented if place.startswith(start) and place.endswith(end)]
        if places:
            return places
    return []


def _exists(target: str) -> bool:
    """Tell whether a name is there although it has no place in the reference."""
    package, _, name = target.rpartition(".")
    inside = {each: module for each, module in sys.modules.items() if each.startswith("standfast")}
    modules = [inside[package]] if package in inside else [] if package else inside.values()
    return target in inside or any(hasattr(module, name) for module in modules)


def _follow_alias(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Element | None:
    """Let ``standfast.KeyFamily`` lead to ``standfast.keys.KeyFamily``; show what is internal without a link."""
    if node.get("refdomain") != "py":
        return None
    domain = env.domains.python_domain
    places = _places(node["reftarget"], domain.objects)
    if len(places) != 1:
        return content if _exists(node["reftarget"]) else None
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", places[0], node, content)


def _mean_async_names(app: Sphinx, doctree: nodes.document) -> None:
    """Let a bare ``Space`` or ``Run.result`` be the async one; its blocking twin has a page of its own."""
    package, twins = importlib.import_module("standfast"), importlib.import_module("standfast.blocking").__all__
    if "blocking" in app.env.docname:
        return
    for node in doctree.findall(pending_xref):
        name = node.get("reftarget", "").partition(".")[0]
        if name in twins and hasattr(package, name):
            node["reftarget"] = f"{getattr(package, name).__module__}.{node['reftarget']}"


def _mark_code(lines: list[str]) -> None:
    """Let an indented block after a paragraph be code, as in Markdown, without ``::``."""
    for number in range(len(lines) - 1, 1, -1):
        above, between, line = lines[number - 2 : number + 1]
        is_paragraph = above and not above.startswith((" ", "- ", "* ")) and not above.endswith("::")
        if is_paragraph and not between and line.startswith("    "):
            lines[number:number] = ["::", ""]


def _read_sections(app: Sphinx, what: str, name: str, target: object, options: object, lines: list[str]) -> None:
    """Read ``Args:`` and the like, but not under an attribute: there a colon is only a colon."""
    _mark_code(lines)
    if what not in {"attribute", "data", "property"}:
        lines[:] = GoogleDocstring(lines, Config(), app, what, name, target, options).lines()


def setup(app: Sphinx) -> None:
    """Generate the reference, and let its links follow aliases."""
    app.connect("builder-inited", _write_api_pages)
    app.connect("doctree-read", _mean_async_names)
    app.connect("missing-reference", _follow_alias)
    app.connect("autodoc-process-docstring", _read_sections)
