"""What every command shares: its store or application, keys, questions before it acts, and exit codes."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import re
import signal
import sys
import traceback
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeAlias, TypeVar, cast, final
from urllib.parse import quote

import click
from click.shell_completion import CompletionItem, get_completion_class

import standfast as sf
from standfast.audit import Actor
from standfast.clock import MICROSECONDS, SYSTEM_CLOCK
from standfast.durations import Duration, fault_in, seconds, typed
from standfast.errors import (
    DeclarationError,
    InvalidArgumentError,
    InvalidUrlError,
    LockMismatchError,
    NondeterminismError,
    OutcomeUnknownError,
    RequestNotFoundError,
    RunNotFoundError,
    RunUnfinishedError,
    ScheduleNotFoundError,
    StandfastError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnknownWorkflowError,
    UnsuitableStoreError,
    UpdateTimeoutError,
    WorkflowConcurrencyLimitExceededError,
    WorkflowTerminalError,
    WrongArgumentsError,
)
from standfast.events import PermitsDisagree
from standfast.keys import KeyFamily, find_family
from standfast.locks.inspect import command_line, one_line
from standfast.redaction import mask_url
from standfast.stores.url import EXAMPLES, file_of, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import ModuleType

    from standfast.events import Event
    from standfast.keys import Key
    from standfast.stores.group_commit import GroupedStore


# --- asking before something is done that cannot be undone ---------------------------------------------------------

F = TypeVar("F", bound="Callable[..., Any]")
T = TypeVar("T")


def yes_option(command: F) -> F:
    """Let a command take ``--yes``."""
    return click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(command)


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal; without one, ``--yes`` must have been given."""
    if yes:
        return
    if not asked(lambda: click.confirm(question, err=True)):
        end("nothing was done")


def asked(ask: Callable[[], T]) -> T:
    """Ask on a terminal and return the answer; Ctrl-C and the end of the input are none, and end the command.

    Do not call it on an event loop: that hears of Ctrl-C first, and the question would stay.
    """
    if not is_terminal():
        raise click.UsageError("There is no terminal to ask on; say --yes if this is meant.")
    try:
        return ask()
    except click.Abort:
        click.echo(err=True)
        end("nothing was done: there was no answer", INTERRUPTED, "Say --yes if it is not to be asked.")


def is_terminal() -> bool:
    """Return True if there is a terminal to ask at; stdin may be closed."""
    return sys.stdin is not None and sys.stdin.isatty()


# --- ``standfast completion``: scripts that let a shell complete our options, commands and keys --------------------

SHELLS: Final = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script for completion in a shell. It completes options, commands and keys.

    \b
    bash:  eval "$(standfast completion bash)"        in ~/.bashrc
    zsh:   eval "$(standfast completion zsh)"         in ~/.zshrc
    fish:  standfast completion fish | source         in ~/.config/fish/config.fish
    """  # noqa: D301 -- click keeps the lines after a backspace as they are
    kind = get_completion_class(shell)
    if kind is None:  # pragma: no cover -- all three are built in
        raise click.UsageError(f"There is no completion for {shell}.")
    scripts = kind(context.find_root().command, {}, "standfast", "_STANDFAST_COMPLETE")
    # Not scripts.source(): that runs a shell to find its version, and this may be another machine's.
    click.echo(scripts.source_template % scripts.source_vars())


# --- how commands end: exit codes, and errors as text --------------------------------------------------------------

FAILED: Final = 1
"""The store refused or failed."""

NOT_TYPED: Final = 2
"""The command was not typed as it should be; nothing was done. The library of the command line uses it too."""

NOT_THERE: Final = 3
"""There is no such holder, waiter or run, or nothing to be done about it."""

NOT_LOADED: Final = 4
"""There is no engine where one was said to be."""

NOT_COMPLETED: Final = 5
"""The run that was followed has ended, and not with a result."""

NEEDS_A_PERSON: Final = 6
"""The store answers, and something waits for a person."""

PARTLY_DONE: Final = 7
"""Of several runs, some could not be changed. The others were."""

# For ``run``, out of the way of the command's own codes, as ``timeout`` and ``env`` have them.
LOST: Final = 123
"""The lock was lost, and the command was ended."""

NOT_FREE: Final = 124
"""The lock was not free, or not in time. The command was not started."""

NOT_RUN: Final = 125
"""Standfast itself failed. The command was not started."""

NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
SIGNALLED: Final = 128
"""Added to the number of the signal that ended the command."""

INTERRUPTED: Final = SIGNALLED + signal.SIGINT
"""Ctrl-C was typed."""

_NOT_THERE: Final = (
    RequestNotFoundError,
    RunNotFoundError,
    RunUnfinishedError,
    ScheduleNotFoundError,
    UnknownWorkflowError,
    WorkflowTerminalError,
)
_NOT_TYPED: Final = (DeclarationError, InvalidArgumentError, WrongArgumentsError)
_ROLE: Final = re.compile(r":\w+:`[~!]?(?:[\w.]*\.)?(\w+)`")


def end(message: str, code: int = FAILED, advice: str = "") -> NoReturn:
    """End the command with a message on stderr and an exit code; no traceback."""
    click.echo(f"{click.style('standfast:', fg='red')} {message}", err=True)
    if advice:
        click.echo(click.style(advice, dim=True), err=True)
    raise click.exceptions.Exit(code)


def reason_of(problem: OSError | OverflowError) -> str:
    """Return what the system said, without the numbers and places that our message has."""
    known = problem.errno if isinstance(problem, OSError) else None
    return os.strerror(known) if known is not None and known > 0 else str(problem)


def carried_out(work: Coroutine[Any, Any, T]) -> T:
    """Run it to its end. What is not there or has ended has an exit code of its own, and so has a wrong argument."""
    try:
        return asyncio.run(work)
    except _NOT_THERE as problem:
        fail(problem, NOT_THERE)
    except _NOT_TYPED as problem:
        fail(problem, NOT_TYPED)


def fail(problem: StandfastError, code: int = FAILED) -> NoReturn:
    """End the command with an error: what happened, and what to do next."""
    end(str(problem), code, advice_of(problem))


_TYPE_IT_ANEW: Final = "Nothing was done. Type it as the message says; --help shows what each option takes."

_ADVICE: Final[dict[type[StandfastError], str]] = {
    DeclarationError: _TYPE_IT_ANEW,
    InvalidArgumentError: _TYPE_IT_ANEW,
    InvalidUrlError: "The message says what to type. Check --store and STANDFAST_STORE.",
    LockMismatchError: "Nothing was taken. Use another key, or the same kind of lock and permits as other programs do.",
    NondeterminismError: "Nothing was changed. Name an engine with the code that the run was begun with.",
    OutcomeUnknownError: "It may or may not have been written. Look before you do it again.",
    StoreUnavailableError: "Nothing was written. Is the server up, and reachable from here? Check --store.",
    UnknownWorkflowError: "Check --namespace and --tenant: standfast workers lists who has what. Or start a"
    " worker that has it; standfast runs start --unknown does not wait for one.",
    UnsuitableStoreError: "Nothing was written. See to what the message says, and check --store.",
    UpdateTimeoutError: "It may still answer: the update stays in its inbox. Check the name, or give more --timeout.",
    WorkflowConcurrencyLimitExceededError: "Nothing was started. See what is unfinished with: standfast limits show",
    WrongArgumentsError: "Nothing was started. --input has the arguments: an object by name, or an array by place.",
}
"""What to do next at a command line, for errors whose documentation speaks of code."""


def advice_of(problem: StandfastError) -> str:
    """Return what to do next: the advice for commands, else the documentation of the error without its markup."""
    if (said := _ADVICE.get(type(problem))) is not None:
        return said
    text = inspect.getdoc(type(problem)) or ""
    for section in ("\n\nArgs:", "\n\nAttributes:"):
        text = text.partition(section)[0]
    words = " ".join(text.split())
    words = _ROLE.sub(r"\1", words)
    return words.replace("``", "")


# --- the engine or application that is named on the command line ---------------------------------------------------

FRAMES = 5
"""How many lines of a traceback are shown: the last ones."""

_PACKAGE: Final = os.path.join(os.path.dirname(sf.__file__), "")  # noqa: PTH118, PTH120 -- compared with plain text


@final
class Wanted(Generic[T]):
    """The kind of object that a command wants.

    Args:
        noun: What it is called, and the attribute that holds it by default: ``"engine"``.
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
    if module_name.endswith(".py"):
        plain = module_name.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise click.UsageError(f"Name the module without .py: {plain}:{attribute}, not {name!r}.")
    if not module_name or not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
        example = f"module:attribute, such as {wanted.where}"
        raise click.UsageError(f"Name the {wanted.noun} as {example}, not {name!r}.")
    module = _module(module_name, folder)
    found = getattr(module, attribute, None)
    if found is None:
        there = sorted(key for key, value in vars(module).items() if isinstance(value, wanted.kind))
        make = f"Make one there: {wanted.noun} = {wanted.how}"
        advice = f"Did you mean {module_name}:{there[0]}?" if there else make
        end(f"the module {module_name} has no {attribute}", NOT_LOADED, advice)
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


def settle_in() -> None:
    """Leave what is loaded by now out of all later garbage collections: it stays until the process ends.

    Each collection that looks at all of it holds up everything else for some 20 ms.
    """
    gc.collect()
    gc.freeze()


async def made(found: object, name: str, wanted: Wanted[T]) -> T:
    """Return what is wanted; if a function that makes it was found, call it."""
    if not isinstance(found, wanted.kind) and callable(found):
        try:
            found = found()
            found = await found if inspect.isawaitable(found) else found
        except Exception as problem:  # noqa: BLE001 -- the user's function may raise anything
            _refuse(f"{name}() made no {wanted.noun}", problem)
    if not isinstance(found, wanted.kind):
        is_what = "None" if found is None else f"of type {type(found).__name__}"
        advice = f"It must be an sf.{wanted.kind.__name__}, or a function without arguments that returns one."
        end(f"{name} is no {wanted.noun} but {is_what}", NOT_LOADED, advice)
    return found


def _refuse(message: str, problem: BaseException) -> NoReturn:
    """End with an exception of the user's own code: its message and place, without the frames of Standfast."""
    says = str(problem) if isinstance(problem, StandfastError) else "".join(traceback.format_exception_only(problem))
    frames = traceback.extract_tb(problem.__traceback__)
    own = [each for each in frames if "importlib" not in each.filename and not each.filename.startswith(_PACKAGE)]
    end(f"{message}: {says.strip()}", NOT_LOADED, "".join(traceback.format_list(own[-FRAMES:])).rstrip())


# --- which store, namespace and tenant a command works on ----------------------------------------------------------

STORE_VARIABLE: Final = "STANDFAST_STORE"
NAMESPACE_VARIABLE: Final = "STANDFAST_NAMESPACE"
TENANT_VARIABLE: Final = "STANDFAST_TENANT"


@final
class Target:
    """The store, namespace and tenant that options name, before or after the command, or else the environment."""

    def __init__(self) -> None:
        self.store = ""
        self.namespace = os.environ.get(NAMESPACE_VARIABLE) or "default"
        self.tenant = os.environ.get(TENANT_VARIABLE) or "default"
        self.actor_name = ""
        self.said: set[str] = set()
        """The names that were given by an option, and not by the environment."""

    @property
    def actor(self) -> Actor:
        """Who uses the command, for the audit: the user of this machine, or the name that ``--as`` gives."""
        return Actor.of_process(self.actor_name, via="cli")

    def command(self, *words: str) -> str:
        """Return a command that works on the same store, namespace and tenant, to be printed and typed.

        A URL with a password is left out: the one that typed it has it, and a terminal is seen by others.
        """
        named = [("--namespace", self.namespace), ("--tenant", self.tenant)]
        options = [each for each in named if each[1] != "default" or each[0][2:] in self.said]
        if self.store and mask_url(self.store) == self.store:
            options.insert(0, ("--store", self.store))
        own = [word for option in options for word in option]
        end = words.index("--") if "--" in words else len(words)
        return command_line(*words[:end], *own, *words[end:])

    def _url(self) -> str:
        url = self.store or os.environ.get(STORE_VARIABLE, "")
        if not url:
            raise click.UsageError(f"Say which store: --store {EXAMPLES['sqlite']}, or set {STORE_VARIABLE}.")
        if url.startswith("memory:"):
            raise click.UsageError("A memory store is seen only by the process that made it; name another store.")
        return url

    @property
    def shown(self) -> str:
        """Which store, without secrets."""
        return mask_url(self._url())

    def is_there(self) -> bool:
        """Return True if there is a store, as far as that is known without making one."""
        file = file_of(self._url())
        return file is None or (os.path.exists(file) and os.path.getsize(file) > 0)  # noqa: PTH110, PTH202 -- plain text, as the store has it

    @asynccontextmanager
    async def opened_store(self, *, create: bool = False) -> AsyncGenerator[GroupedStore]:
        """Open the store itself, with all of its namespaces and tenants."""
        self._check_there(create=create)
        store = await open_store(self._url())
        try:
            yield store
        finally:
            await store.aclose()

    def _check_there(self, *, create: bool) -> None:
        if not create and not self.is_there():
            advice = f"Check --store and {STORE_VARIABLE}. The first program that uses a lock makes the file."
            end(f"there is no store at {file_of(self._url())}", advice=advice)

    @asynccontextmanager
    async def opened(self, *, create: bool = False, looks: bool = False) -> AsyncGenerator[sf.Space]:
        """Open it. A store that is not there is made only if that is asked for.

        A command that only looks sees a copy of a file that cannot be written.
        """
        self._check_there(create=create)
        async with AsyncExitStack() as stack:
            try:
                space = await stack.enter_async_context(self._space(self._url()))
            except StoreReadOnlyError:
                file = file_of(self._url()) if looks else None
                if file is None:
                    raise
                from standfast.stores.sqlite.connection import copied  # noqa: PLC0415 -- seldom needed

                copy = stack.enter_context(copied(file))
                click.echo(f"standfast: {file} cannot be written, so this shows a copy of it", err=True)
                space = await stack.enter_async_context(self._space(f"sqlite:///{quote(copy)}"))
            yield space

    def ask(self, work: Callable[[sf.Space], Awaitable[T]], *, looks: bool = False) -> T:
        """Open it, let ``work`` ask it for something, and close it; see :func:`carried_out`."""

        async def ask() -> T:
            async with self.opened(looks=looks) as space:
                return await work(space)

        return carried_out(ask())

    def ask_store(self, work: Callable[[GroupedStore], Awaitable[T]]) -> T:
        """Open the store itself, let ``work`` ask it for something, and close it."""

        async def ask() -> T:
            async with self.opened_store() as store:
                return await work(store)

        return asyncio.run(ask())

    def _space(self, url: str) -> AbstractAsyncContextManager[sf.Space]:
        return sf.open(url, namespace=self.namespace, tenant=self.tenant, hooks=[_warn], actor=self.actor)


def _warn(event: Event) -> None:
    """Warn about permits that disagree, which no exit code says."""
    if isinstance(event, PermitsDisagree):
        words = f"{one_line(event.key)} is in use with {event.stored} permits; they count, and not {event.asked}"
        click.echo(f"standfast: {words}", err=True)


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None and parameter.name:
        target = context.ensure_object(Target)
        setattr(target, parameter.name, value)
        target.said.add(parameter.name)


def target_options(command: F) -> F:
    """Let a command take ``--store``, ``--namespace`` and ``--tenant``."""
    command = _option("tenant", "NAME", f"The tenant; or set {TENANT_VARIABLE}.  [default: default]")(command)
    command = _option("namespace", "NAME", f"The namespace; or set {NAMESPACE_VARIABLE}.  [default: default]")(command)
    return store_option(command)


def store_option(command: F) -> F:
    """Let a command take ``--store`` and ``--as`` alone: it works on all namespaces and tenants."""
    text = "Your name, for the audit.  [default: the user of this machine]"
    command = click.option("--as", "actor_name", metavar="NAME", help=text, callback=_remember, expose_value=False)(
        command
    )
    return _option("store", "URL", f"The store, such as {EXAMPLES['sqlite']}; or set {STORE_VARIABLE}.")(command)


def _option(name: str, metavar: str, text: str) -> Callable[[F], F]:
    return click.option(f"--{name}", metavar=metavar, help=text, callback=_remember, expose_value=False)


# --- lengths of time and moments on the command line ---------------------------------------------------------------


@final
class LengthType(click.ParamType[Duration]):
    """A length of time: ``30s``, ``5 minutes``, or a number of seconds."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Duration:
        """Return what was typed, once it is known to be a length of time."""
        if not isinstance(value, str):
            return cast("Duration", value)
        if fault := fault_in(value):
            self.fail(f"{value!r:.60} is no length of time: {fault}. Write 30s, '5 minutes' or 1.5h.", param, ctx)
        return typed(value)


LENGTH: Final = LengthType()


@final
class MomentType(click.ParamType[datetime]):
    """A moment: ``2026-11-17``, ``2026-11-17T09:30``, ``2026-11-17T09:30+01:00``, or a length of time before now."""

    name = "moment"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return what was typed, in UTC if it names no zone."""
        if isinstance(value, datetime):
            return value
        text = str(value)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            try:
                ago = seconds(typed(text), what="a moment")
            except StandfastError:
                words = "a date and time such as 2026-11-17T09:30, in UTC if no zone is said, or how long ago: 2 hours"
                self.fail(f"{text!r:.60} is no moment; it must be {words}.", param, ctx)
            return datetime.fromtimestamp(SYSTEM_CLOCK.wall() / MICROSECONDS, UTC) - timedelta(seconds=ago)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


MOMENT: Final = MomentType()


# --- keys on the command line: plain text, or a family and its parts -----------------------------------------------

MOST_COMPLETED = 200


def key_of(words: Sequence[str], family: str | None) -> Key | str:
    """Return the key that is meant. A family need not be declared by a program: its name and parts are enough."""
    if family is not None:
        try:
            return (find_family(family) or KeyFamily(family))(*words)
        except InvalidArgumentError as problem:
            raise click.UsageError(f"--family: {problem}.") from None
    if len(words) != 1:
        raise click.UsageError("Name one key; several words are the parts of a key with --family NAME.")
    return words[0]


def family_option(command: F) -> F:
    """Let a command take ``--family``."""
    text = "The family of the key; the words of the key are then its parts."
    return click.option("--family", metavar="NAME", help=text)(command)


Completer: TypeAlias = "Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]"


def completing(names: Callable[[Target], Coroutine[Any, Any, Iterable[str]]]) -> Completer:
    """Return a completer of names that are read from the store; it finds none if the store cannot be asked."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        del parameter
        target = context.ensure_object(Target)
        try:
            found: Iterable[str] = asyncio.run(names(target)) if target.is_there() else ()
        except (StandfastError, click.ClickException, click.exceptions.Exit):
            return []
        matching = (name for name in found if name.startswith(incomplete))
        return [CompletionItem(name) for name in islice(matching, MOST_COMPLETED)]

    return complete


async def _keys(target: Target) -> list[str]:
    found: list[str] = []
    async with target.opened() as space:
        async for line in space.lines():
            if not line.family:
                found.append(line.key)
            if len(found) == 5 * MOST_COMPLETED:
                break
    return found


complete_key: Final = completing(_keys)
"""Completes a key that is in use."""


def key_arguments(command: F) -> F:
    """Let a command take a key, as text or with ``--family``."""
    words = click.argument("words", metavar="KEY", nargs=-1, shell_complete=complete_key)
    return words(family_option(command))
