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
    (r"py:.*", r"(apsw|asyncpg|msgspec|opentelemetry|prometheus_client|pytest|_pytest|hypothesis|starlette)\..*"),
    (r"py:.*", r"(.*\.)?[~_]?([A-Z]|[A-Z][A-Za-z]*T)"),  # type variables
]

# The public face: what has a page. Everything else is internal, and is shown without a link where it is named.
_PUBLIC = (
    "standfast",
    "standfast.web",
    "standfast.admin",
    "standfast.errors",
    "standfast.blocking",
    "standfast.events",
    "standfast.fencing",
    "standfast.stores",
    "standfast.stores.backend",
    "standfast.testing",
    "standfast.testing.conformance",
    "standfast.testing.flows",
    "standfast.testing.workflows",
)
# What an application is handed by the names above, and never makes by itself.
_HANDED_OUT = (
    "Action",
    "RunHold",
    "ContextRateLimiter",
    "ContextState",
    "SessionState",
    "CurrentStep",
    "RunInfo",
    "Page",
    "HistoryEntry",
    "Failure",
    "ScheduleInfo",
    "Schedules",
    "Session",
    "Handle",
    "RequestInfo",
)
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
    """Return the modules that have a page, with all annotations of the package defined."""
    package = importlib.import_module("standfast")
    found = ["standfast", *(each.name for each in pkgutil.walk_packages(package.__path__, "standfast."))]
    for name in [*found, *found]:
        _define_annotations(name)
    return [name for name in _PUBLIC if name in found]


def _page(name: str, shown: set[str]) -> str:
    """Write the page of a module: its names in full, or a link to the page that has them already."""
    module = importlib.import_module(name)
    members = "   :no-members:" if hasattr(module, "__all__") else "   :members:"
    lines = [name, "=" * len(name), "", f".. automodule:: {name}", members, ""]
    links: list[str] = []
    for each in getattr(module, "__all__", ()):
        found = getattr(module, each)
        home = getattr(found, "__module__", name)
        place = f"{home if hasattr(sys.modules.get(home), each) else name}.{each}"
        if inspect.ismodule(found) or place in shown or (home != name and home in _PUBLIC):
            links.append(f"- :obj:`{each} <{found.__name__ if inspect.ismodule(found) else place}>`")
        else:
            shown.add(place)
            lines += _entry(place, found)
    if name == "standfast":
        lines += ["What these hand out", "-------------------", ""]
        lines += [line for each in _HANDED_OUT for line in _entry(*_home_of(each))]
    return "\n".join([*lines, *links, ""])


def _home_of(name: str) -> tuple[str, object]:
    """Return where a class is defined, and the class."""
    modules = [module for each, module in sys.modules.items() if each.startswith("standfast.")]
    homes = (
        (f"{module.__name__}.{name}", vars(module)[name])
        for module in modules
        if getattr(vars(module).get(name), "__module__", None) == module.__name__ and "blocking" not in module.__name__
    )
    return next(homes)


def _entry(place: str, found: object) -> list[str]:
    """Return what shows one name, with everything that a class has from those above it."""
    if not inspect.isclass(found):  # of a constant or an alias, its docstring is that of its type
        return [f".. autofunction:: {place}" if inspect.isroutine(found) else f".. py:data:: {place}", ""]
    above = [each.__name__ for each in found.__mro__[1:] if not each.__module__.startswith("standfast")]
    return [f".. autoclass:: {place}", "   :members:", f"   :inherited-members: {', '.join(above)}", ""]


def _write_api_pages(_app: Sphinx) -> None:
    """Write one page for each public module, and take away the pages of modules that are gone."""
    shown: set[str] = set()
    pages = {_API / f"{name}.rst": _page(name, shown) for name in _public_modules()}
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
    """Return True if a name is there although it has no place in the reference."""
    inside = {each: module for each, module in sys.modules.items() if each.startswith("standfast")}
    parts = target.split(".")
    ways = [(inside.get(".".join(parts[:cut])), parts[cut:]) for cut in range(1, len(parts))]
    ways += [(module, parts) for module in inside.values()]
    return target in inside or any(_has(module, *names) for module, names in ways if module)


def _has(found: object, *names: str) -> bool:
    """Return True if a name leads somewhere, attribute by attribute."""
    for name in names:
        if not hasattr(found, name):
            return False
        found = getattr(found, name)
    return True


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


def _mean_own_names(app: Sphinx, doctree: nodes.document) -> None:
    """Let a bare ``Space`` or ``Run.result`` be the blocking one on the page of those, and the async one elsewhere."""
    package, blocking = importlib.import_module("standfast"), importlib.import_module("standfast.blocking")
    own = blocking if "blocking" in app.env.docname else package
    for node in doctree.findall(pending_xref):
        name = node.get("reftarget", "").partition(".")[0]
        if name in blocking.__all__ and hasattr(package, name):
            node["reftarget"] = f"{getattr(own, name).__module__}.{node['reftarget']}"


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
    app.connect("doctree-read", _mean_own_names)
    app.connect("missing-reference", _follow_alias)
    app.connect("autodoc-process-docstring", _read_sections)
