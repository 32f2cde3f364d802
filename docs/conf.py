"""How the site is built: ``make docs``. Warnings and broken references fail the build."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import tomllib
import typing
from pathlib import Path
from typing import TYPE_CHECKING

from sphinx.ext.napoleon import Config, GoogleDocstring

if TYPE_CHECKING:
    from collections.abc import Iterable

    from docutils import nodes
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

_project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "Holdfast"
author = "The Holdfast authors"
project_copyright = author
release = version = _project["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Holdfast {release}"

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": True}

# Names of the standard library are not looked up: the build needs no network and gives the same result everywhere.
nitpick_ignore_regex = [
    (r"py:.*", rf"_?({'|'.join(sorted(sys.stdlib_module_names))})(\..*)?"),
    (r"py:.*", r"(apsw|msgspec|pytest|_pytest|hypothesis)\..*"),
    (r"py:.*", r"(.*\.)?[~_]?([A-Z]|[A-Z][A-Za-z]*T)"),  # type variables
]

_API = Path(__file__).parent / "reference" / "api"


def _public_modules() -> list[str]:
    """Import the package together with what it imports only for annotations: the reference shows those too."""
    for name in ("apsw", "hypothesis", "msgspec", "pytest"):
        importlib.import_module(name)
    typing.TYPE_CHECKING = True
    package = importlib.import_module("holdfast")
    names = ["holdfast", *(info.name for info in pkgutil.walk_packages(package.__path__, "holdfast."))]
    public = [name for name in names if "._" not in name and importlib.import_module(name)]
    typing.TYPE_CHECKING = False
    return public


def _page(name: str) -> str:
    """Write the page of a module: what it defines, and links to what it hands on."""
    module = importlib.import_module(name)
    handed_on = [
        f"- :obj:`{each} <{name}.{each}>`"
        for each in getattr(module, "__all__", ())
        if getattr(getattr(module, each), "__module__", name) != name
    ]
    members = "   :no-members:" if handed_on else "   :members:"
    return "\n".join([name, "=" * len(name), "", f".. automodule:: {name}", members, "", *handed_on, ""])


def _write_api_pages(_app: Sphinx) -> None:
    """Write one page for each public module, and take away the pages of modules that are gone."""
    pages = {_API / f"{name}.rst": _page(name) for name in _public_modules()}
    for stale in set(_API.glob("*.rst")) - set(pages):
        stale.unlink()
    for path, text in pages.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _places(target: str, documented: Iterable[str]) -> list[str]:
    """Return where a name is documented that may be written short, or by the package that hands it on."""
    parts = target.split(".")
    for cut in range(len(parts)):
        start = ".".join([*parts[:cut], ""]) if cut else "holdfast."
        end = ".".join(["", *parts[cut:]])
        places = [place for place in documented if place.startswith(start) and place.endswith(end)]
        if places:
            return places
    return []


def _follow_alias(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    """Let ``holdfast.KeyFamily`` lead to where it is documented, ``holdfast.keys.KeyFamily``."""
    domain = env.domains.python_domain
    places = _places(node.get("reftarget", ""), domain.objects) if node.get("refdomain") == "py" else []
    if len(places) != 1:
        return None
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", places[0], node, content)


def _read_sections(app: Sphinx, what: str, name: str, target: object, options: object, lines: list[str]) -> None:
    """Read ``Args:`` and the like, but not under an attribute: there a colon is only a colon."""
    if what not in {"attribute", "data", "property"}:
        lines[:] = GoogleDocstring(lines, Config(), app, what, name, target, options).lines()


def setup(app: Sphinx) -> None:
    """Generate the reference, and let its links follow aliases."""
    app.connect("builder-inited", _write_api_pages)
    app.connect("missing-reference", _follow_alias)
    app.connect("autodoc-process-docstring", _read_sections)
