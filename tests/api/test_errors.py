"""The error tree as users meet it: one root, facts that travel, advice in every docstring."""

from __future__ import annotations

import copy
import inspect
import pickle
import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

import standfast
from standfast import errors
from standfast.errors import StandfastError

if TYPE_CHECKING:
    from collections.abc import Callable

ERRORS: list[type[StandfastError]] = [getattr(errors, name) for name in errors.__all__]
SAMPLES: dict[str, object] = {
    "str": "x",
    "int": 3,
    "float": 1.5,
    "bool": True,
    "str | None": None,
    "int | None": None,
    "tuple[str, ...]": ("a", "b"),
}
HOW: dict[str, Callable[[StandfastError], StandfastError]] = {
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),  # noqa: S301 -- our own bytes
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def facts(kind: type[StandfastError]) -> dict[str, object]:
    """Return the names of an error's arguments, each with an example made from its type."""
    if kind is errors.HttpError:  # its code is one of a table
        return {"code": "body-too-large", "problem": "x", "retry_after": 1.5}
    if kind.__init__ is not StandfastError.__init__:  # it works its facts out
        made_from = inspect.get_annotations(kind.__init__)
        return {name: SAMPLES[made_from[name]] for name in made_from if name != "return"}
    types = {name: text for each in kind.__mro__ for name, text in inspect.get_annotations(each).items()}
    return {name: SAMPLES[types[name]] for name in kind.declared_facts()}


def example(kind: type[StandfastError]) -> StandfastError:
    """Make an error of this kind."""
    return kind(*facts(kind).values())


def modules() -> list[str]:
    """Return the modules of the package."""
    return [info.name for info in pkgutil.walk_packages(standfast.__path__, "standfast.")]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("how", HOW)
def test_an_error_travels_with_its_facts(kind: type[StandfastError], how: str) -> None:
    """An error that comes back from another process is the same error."""
    error = example(kind)
    travelled = HOW[how](error)
    assert type(travelled) is kind
    assert (vars(travelled), str(travelled), travelled.args) == (vars(error), str(error), error.args)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_argument_of_an_error_is_a_fact(kind: type[StandfastError]) -> None:
    """What an error was made from can be read from it by name."""
    error = example(kind)
    assert {name: getattr(error, name) for name in facts(kind)} == facts(kind)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_has_one_root_and_says_what_to_do(kind: type[StandfastError]) -> None:
    """``except StandfastError`` catches it, its name ends in Error, and its own docstring is more than a title."""
    assert issubclass(kind, StandfastError)
    assert kind.__name__.endswith("Error")
    assert kind.__doc__ is not None
    assert len(kind.__doc__.split()) >= 8


def test_every_error_of_the_package_is_in_the_one_module() -> None:
    """No other module defines an error of ours, and no package exports one; what the conformance tests raise is none.

    A plain exception that undoes a decision, and is caught in the same part of the package, is not an error of ours.
    """
    ours = [import_module(name) for name in modules() if not name.startswith("standfast.testing.conformance")]
    packages = [module for module in ours if hasattr(module, "__path__")]
    exported = {id(getattr(package, name)) for package in packages for name in getattr(package, "__all__", ())}
    kinds = {kind for module in ours for kind in vars(module).values() if isinstance(kind, type)}
    raised = {kind for kind in kinds if issubclass(kind, Exception) and not issubclass(kind, Warning)}
    seen = {kind for kind in raised if kind.__module__.startswith("standfast") and not kind.__name__.startswith("_")}
    assert {kind for kind in seen if issubclass(kind, StandfastError) or id(kind) in exported} == set(ERRORS)


def test_bad_input_is_also_a_builtin_error() -> None:
    """Who does not know Standfast's names can still catch what is wrong with a value or a type."""
    invalid = [kind for kind in ERRORS if kind.__name__.startswith("Invalid")]
    assert all(issubclass(kind, ValueError) for kind in invalid)
    assert issubclass(errors.ArgumentTypeError, TypeError)
    assert issubclass(errors.HoldTimeoutError, TimeoutError)
    assert issubclass(errors.MissingExtraError, ImportError)
