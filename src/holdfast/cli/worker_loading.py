"""Finding the engine that somebody named on the command line."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

import click

from holdfast.cli.exits import NOT_LOADED, end
from holdfast.workflows.engine import Engine

if TYPE_CHECKING:
    from types import ModuleType

FRAMES = 5
"""How many lines of a traceback are shown: the last ones, where the trouble is."""


def load(name: str, folder: str) -> object:
    """Return what ``module:attribute`` names: an engine, or a function that makes one."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not all(part.isidentifier() for part in [*module_name.split("."), attribute or "engine"]):
        raise click.UsageError(f"Name the engine as module:attribute, such as shop.flows:engine, not {name!r}.")
    module = _module(module_name, folder)
    found = getattr(module, attribute or "engine", None)
    if found is None:
        _not_found(module, module_name, attribute or "engine")
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


def _not_found(module: ModuleType, name: str, attribute: str) -> NoReturn:
    engines = sorted(key for key, value in vars(module).items() if isinstance(value, Engine))
    advice = (
        f"Did you mean {name}:{engines[0]}?" if engines else "Make one there: engine = hf.Engine(url, workflows=[...])"
    )
    end(f"the module {name} has no {attribute}", NOT_LOADED, advice)


async def made(found: object, name: str) -> Engine:
    """Return the engine itself; if it is a function that makes one, call it."""
    if not isinstance(found, Engine) and callable(found):
        try:
            found = found()
            found = await found if inspect.isawaitable(found) else found
        except Exception as problem:  # noqa: BLE001 -- the user's function may raise anything
            _refuse(f"{name}() made no engine", problem)
    if not isinstance(found, Engine):
        advice = "It must be an hf.Engine, or a function without arguments that returns one."
        end(f"{name} is no engine but {_described(found)}", NOT_LOADED, advice)
    return found


def _described(found: object) -> str:
    return f"of type {type(found).__name__}" if found is not None else "None"


def _refuse(message: str, problem: BaseException) -> NoReturn:
    """End with an exception of the user's own code: what it says, and where."""
    lines = traceback.format_exception_only(problem)
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if "importlib" not in frame.filename]
    where = "".join(traceback.format_list(frames[1:][-FRAMES:]))
    end(f"{message}: {''.join(lines).strip()}", NOT_LOADED, where.rstrip())
