"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import holdfast

MODULES = sorted(
    info.name for info in pkgutil.walk_packages(holdfast.__path__, "holdfast.") if not info.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    """What a docstring shows after ``>>>`` is what happens."""
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0
