"""Finding the engine or application that somebody named on the command line."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar, final

import click

from standfast.cli.exits import NOT_LOADED, end

if TYPE_CHECKING:
    from types import ModuleType

T = TypeVar("T")

FRAMES = 5
"""How many lines of a traceback are shown: the last ones, where the trouble is."""


@final
class Wanted(Generic[T]):
    """What is to be found.

    Args:
        noun: What it is called, and what its attribute is called if nothing else is said: ``"engine"``.
        kind: Its class.
        where: How to name it: ``"shop.flows:engine"``.
        how: How to make one: ``"sf.Engine(url, workflows=[...])"``.
    """

    def __init__(self, noun: str, kind: type[T], where: str, how: str) -> None:
        self.noun, self.kind, self.where, self.how = noun, kind, where, how


def load(name: str, folder: str, wanted: Wanted[T]) -> object:
    """Return what ``module:attribute`` names: what is wanted, or a function that makes it."""
    module_name, _, attribute = name.partition(":")
    attribute = attribute or wanted.noun
    if not module_name or not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
        example = f"module:attribute, such as {wanted.where}"
        raise click.UsageError(f"Name the {wanted.noun} as {example}, not {name!r}.")
    module = _module(module_name, folder)
    found = getattr(module, attribute, None)
    if found is None:
        _not_found(module, module_name, attribute, wanted)
    return found


def _module(name: str, folder: str) -> ModuleType:
    path = os.path.abspath(folder)  # noqa: PTH100 -- plain text, as Python's own path has it
    if path not in sys.path:
        sys.path.insert(0, path)
    try:
        return import_module(name)  # rule: the user's own word on the command line, as with python -m
    except ModuleNotFoundError as problem:
        if problem.name is not None and f"{name}.".startswith(f"{problem.name}."):
            advice = "Run this where the module is, or say where with --app-dir."
            end(f"there is no module {problem.name} in {path} or where Python looks", NOT_LOADED, advice)
        _refuse(f"the module {name} cannot be imported", problem)
    except Exception as problem:  # noqa: BLE001 -- the user's module may raise anything
        _refuse(f"the module {name} cannot be imported", problem)


def _not_found(module: ModuleType, name: str, attribute: str, wanted: Wanted[T]) -> NoReturn:
    there = sorted(key for key, value in vars(module).items() if isinstance(value, wanted.kind))
    make = f"Make one there: {wanted.noun} = {wanted.how}"
    end(f"the module {name} has no {attribute}", NOT_LOADED, f"Did you mean {name}:{there[0]}?" if there else make)


async def made(found: object, name: str, wanted: Wanted[T]) -> T:
    """Return what is wanted; if a function that makes it was found, call it."""
    if not isinstance(found, wanted.kind) and callable(found):
        try:
            found = found()
            found = await found if inspect.isawaitable(found) else found
        except Exception as problem:  # noqa: BLE001 -- the user's function may raise anything
            _refuse(f"{name}() made no {wanted.noun}", problem)
    if not isinstance(found, wanted.kind):
        advice = f"It must be an sf.{wanted.kind.__name__}, or a function without arguments that returns one."
        end(f"{name} is no {wanted.noun} but {_described(found)}", NOT_LOADED, advice)
    return found


def _described(found: object) -> str:
    return f"of type {type(found).__name__}" if found is not None else "None"


def _refuse(message: str, problem: BaseException) -> NoReturn:
    """End with an exception of the user's own code: what it says, and where."""
    lines = traceback.format_exception_only(problem)
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if "importlib" not in frame.filename]
    where = "".join(traceback.format_list(frames[1:][-FRAMES:]))
    end(f"{message}: {''.join(lines).strip()}", NOT_LOADED, where.rstrip())
