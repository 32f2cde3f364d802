"""What is public is meant to be: true exports, closed classes, documented and annotated calls.

Public is what a module lists in ``__all__``; of one right under ``standfast`` without such a list, what it defines.
"""

from __future__ import annotations

import inspect
import pkgutil
from enum import Enum
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, is_typeddict

import pytest
from msgspec import Struct

import standfast

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ["standfast", *(info.name for info in pkgutil.walk_packages(standfast.__path__, "standfast."))]
MODULES = {name: import_module(name) for name in NAMES}
# What passes through a door between the floors of the package is listed there as well, and is not public for that.
DOORS = ("standfast.locks.entry",)
PACKAGES = {name: module for name, module in MODULES.items() if hasattr(module, "__all__") and name not in DOORS}
# Test classes are made to be subclassed: that is how a store shows that it keeps the contract. A space is a scope with
# everything that is built on it; the two are apart because imports point down. Locks by hand are documented where they
# are alike.
MADE_TO_BE_SUBCLASSED = (
    "standfast.testing.conformance",
    "standfast.scope.Scope",
    "standfast.policies.Value",
    "standfast.policies.PolicyValue",
    "standfast.locks.manual.LockByHand",
)


def exports() -> dict[str, Any]:
    """Return everything public, each thing once, by the name of its home."""
    found = [getattr(module, name) for module in PACKAGES.values() for name in module.__all__]
    for name in (name for name in NAMES if name.count(".") == 1 and "._" not in name and name not in PACKAGES):
        values = [value for key, value in vars(MODULES[name]).items() if not key.startswith("_")]
        found += [value for value in values if getattr(value, "__module__", "") == name]
    named = [value for value in found if hasattr(value, "__qualname__")]
    return {f"{value.__module__}.{value.__qualname__}": value for value in named}


def classes() -> dict[str, type]:
    """Return every public class."""
    return {name: value for name, value in exports().items() if inspect.isclass(value)}


def calls() -> Iterator[tuple[str, Any]]:
    """Yield every public function, and every public method that we did not merely override."""
    for name, value in exports().items():
        if inspect.isfunction(value):
            yield name, value
        for member in vars(value) if inspect.isclass(value) else ():
            foreign = any(
                hasattr(base, member) for base in value.__mro__ if not base.__module__.startswith("standfast")
            )
            if not member.startswith("_") and not foreign and inspect.isroutine(getattr(value, member)):
                yield f"{name}.{member}", getattr(value, member)


def is_closed(kind: type) -> bool:
    """Tell whether a class is final, a protocol, a frozen value, a set of options, an enum or an error."""
    if issubclass(kind, Struct) and kind.__struct_config__.frozen:
        return True
    if is_typeddict(kind):
        return True
    marked = getattr(kind, "__final__", False) or getattr(kind, "_is_protocol", False)
    return bool(marked) or issubclass(kind, Enum | BaseException)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_exports_exactly_what_it_says(name: str) -> None:
    """Every name in ``__all__`` is there and ours, once."""
    package = PACKAGES[name]
    listed = {each: getattr(package, each) for each in package.__all__}
    homes = {value.__module__ for value in listed.values() if inspect.isclass(value) or inspect.isfunction(value)}
    assert len(listed) == len(package.__all__)
    assert [home for home in homes if not home.startswith("standfast")] == []


def test_the_names_of_the_front_page_can_be_listed_and_loaded() -> None:
    """What ``import standfast as sf`` offers is found by ``dir`` and by attribute, and nothing else is."""
    assert set(standfast.__all__) <= set(dir(standfast))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        standfast.nothing  # noqa: B018  # type: ignore[attr-defined]  # what is tested


def test_public_classes_are_closed() -> None:
    """Extension is by protocol: a public class is final, a protocol, a frozen value, an enum or an error."""
    open_ones = [name for name, kind in classes().items() if not is_closed(kind)]
    assert [name for name in open_ones if not name.startswith(MADE_TO_BE_SUBCLASSED)] == []


def test_everything_public_says_what_it_is() -> None:
    """Docstrings are the reference, of modules, classes, functions and methods."""
    assert [name for name, module in MODULES.items() if not module.__doc__] == []
    assert [name for name, kind in classes().items() if not inspect.getdoc(kind)] == []
    assert [name for name, call in calls() if not inspect.getdoc(call)] == []


def test_everything_public_is_annotated() -> None:
    """Each parameter and each result has its type."""
    bare: list[str] = []
    for name, call in calls():
        signature = inspect.signature(call.func if isinstance(call, cached_property) else call)
        given = [each for each in signature.parameters.values() if each.annotation is each.empty]
        bare += [f"{name}({each.name})" for each in given if each.name not in {"self", "cls"}]
        bare += [name] if signature.return_annotation is signature.empty else []
    assert bare == []


def test_there_is_something_to_check() -> None:
    """The tests above see the classes and calls that users know."""
    names = [name for name, _ in calls()]
    assert {"standfast.keys.KeyFamily", "standfast.space.Space", "standfast.codec.Codec"} <= classes().keys()
    assert {"standfast.durations.seconds", "standfast.scope.Scope.commit", "standfast.codec.Codec.encode"} <= set(names)
