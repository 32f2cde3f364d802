"""Public names that are loaded when they are first used, so that an import costs little and needs no driver."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(
    package: str, homes: Mapping[str, str], names: dict[str, object]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: Its name, for the error.
        homes: Each public name and the module it comes from: a table in the source, never data. A module of the same
            name as its entry is loaded itself.
        names: The ``globals()`` of the package; a loaded name is kept there.
    """

    def load(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(home)  # rule: the module comes from a fixed table
        names[name] = found = module if home.rpartition(".")[2] == name else getattr(module, name)
        return found

    return load, lambda: sorted({*names, *homes})
