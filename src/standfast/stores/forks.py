"""Refusing what was opened before a fork: the child shares its files and sockets, and must not use them."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, final

from standfast.errors import ForkedError

if TYPE_CHECKING:
    from collections.abc import Callable

_generation = 0
_before: list[Callable[[], None]] = []
_in_parent: list[Callable[[], None]] = []
_in_child: list[Callable[[], None]] = []


def _before_fork() -> None:
    for action in _before:
        action()


def _after_fork_in_parent() -> None:
    for action in _in_parent:
        action()


def _after_fork_in_child() -> None:
    global _generation  # noqa: PLW0603 -- a process-wide fact, changed only here
    _generation += 1
    with contextlib.ExitStack() as stack:  # all of them, also if one fails
        for action in reversed(_in_child):
            stack.callback(action)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def run_around_fork(before: Callable[[], None], in_parent: Callable[[], None]) -> None:
    """Run ``before`` ahead of every fork from now on, and ``in_parent`` after it where the process goes on."""
    _before.append(before)
    _in_parent.append(in_parent)


def run_in_forked_child(action: Callable[[], None]) -> None:
    """Run ``action`` in every child that this process forks from now on."""
    _in_child.append(action)


@final
class ForkGuard:
    """Remembers which process it was made in."""

    __slots__ = ("_made_in", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._made_in = _generation

    def check(self) -> None:
        """Raise if the process has been forked since."""
        if self._made_in != _generation:
            raise ForkedError(self._name, "it was opened before this process was forked; open it anew in the child")

    @property
    def crossed(self) -> bool:
        """Whether this is a forked child of the process that made the guard."""
        return self._made_in != _generation
