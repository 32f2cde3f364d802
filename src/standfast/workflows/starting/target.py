"""What a start was given: which workflow, and with which arguments. Both are checked before anything is written."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, cast

from standfast.errors import (
    InvalidWorkflowError,
    UnknownWorkflowError,
    WorkflowMismatchError,
    WrongArgumentsError,
)
from standfast.workflows.declaring.definition import Bound, Workflow, checked_name, place_of, unbound
from standfast.workflows.starting.catalog import RemoteWorkflow, find_remote, is_declared

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from standfast.durations import Duration
    from standfast.workflows.running.host import Host

_log: Final = logging.getLogger("standfast.workflows")

Unknown: TypeAlias = Literal["raise", "start"]
"""What happens to a start by a name that nobody knows."""

Startable: TypeAlias = Workflow[..., Any] | RemoteWorkflow
"""A workflow, as far as a start needs it."""


class StartOptions(TypedDict, total=False):
    """What ``engine.start`` takes besides the arguments of the workflow; see there."""

    id: str | None
    idempotency_key: str | None
    delay: Duration
    tags: Iterable[str]
    connection: object


async def find(host: Host, given: object, *, drives: bool, unknown: Unknown = "raise") -> Startable:
    """Return the workflow that is to be started: itself, that of bound arguments, or the one of that name.

    Raises:
        InvalidWorkflowError: That is no workflow.
        UnknownWorkflowError: It is not there.
        WorkflowMismatchError: Another one is there under its name.
    """
    if unknown not in ("raise", "start"):
        raise InvalidWorkflowError("unknown", f"{unknown!r:.100} is neither 'raise' nor 'start'")
    if isinstance(given, str):
        name = checked_name("workflow", given)
        here = [each for each in host.workflows.values() if not each.is_internal]
        first = next((each for each in here if each.name == name), None)
        names = {each.name for each in here}
        return first or await find_remote(host.space, name, names, may_be_unknown=unknown == "start")
    found = unbound(given)
    if not isinstance(found, Workflow):
        problem = "this is no workflow; declare it with @sf.workflow, or give the name of one"
        raise InvalidWorkflowError(repr(found)[:100], problem)
    workflow = cast("Workflow[..., Any]", found)
    check_registered(host, workflow, drives=drives)
    return workflow


def check_registered(host: Host, workflow: Workflow[..., Any], *, drives: bool) -> None:
    """Refuse a workflow that an engine does not have.

    One that drives nothing and was given no workflows has none to compare with: it takes what it is given, for workers
    elsewhere.
    """
    registered = host.workflows.get((workflow.name, workflow.version))
    if registered is not None:
        if not registered.is_same(workflow):
            raise WorkflowMismatchError(workflow.name, place_of(workflow.function), place_of(registered.function))
        return
    known = [_label(each) for each in host.workflows.values() if not each.is_internal]
    if known or drives:
        raise UnknownWorkflowError(_label(workflow), tuple(sorted(known)))


async def check_child(host: Host, workflow: Workflow[..., Any], parent: str) -> None:
    """Refuse a child that is another workflow than the engine has under that name.

    One that it does not have may be one of other workers. If none has had it, that is only told: a worker may still
    come, as when new code is deployed, and a run must not fail meanwhile.
    """
    if (workflow.name, workflow.version) in host.workflows:
        check_registered(host, workflow, drives=True)
    elif not await is_declared(host.space, workflow.name):
        told = "the run %r starts a child of %r, which no worker has had; it waits for one that has it"
        _log.warning(told, parent, workflow.name)


def _label(workflow: Workflow[..., Any]) -> str:
    return f"{workflow.name} {workflow.version}".rstrip()


def packed_arguments(
    given: object,
    target: Startable,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    by_name: Mapping[str, Any],
    options: Mapping[str, object],
) -> bytes:
    """Return the arguments of a start as they are stored.

    Args:
        given: What the start was given: bound arguments are packed already.
        target: The workflow.
        args: The arguments by place.
        kwargs: Arguments by name, in a mapping.
        by_name: Arguments by name, as they are.
        options: The options that were given. One with the name of a parameter must not be meant for that.

    Raises:
        WrongArgumentsError: The workflow cannot be called with these.
        EncodeError: An argument cannot be stored.
    """
    if isinstance(given, Bound):
        if args or kwargs or by_name:
            raise WrongArgumentsError(repr(target.name), "its arguments are bound already; give none besides")
        return given.packed
    if kwargs and by_name and (twice := sorted(kwargs.keys() & by_name)):
        raise WrongArgumentsError(repr(target.name), f"{', '.join(twice)} is given twice, by name and in kwargs")
    named = {**(kwargs or {}), **by_name} if by_name else kwargs or {}
    parameters = target.signature.parameters
    if parameters is not None and options:
        places = [each.name for each in parameters.parameters.values() if each.kind <= each.POSITIONAL_OR_KEYWORD]
        for name in options:
            if name in parameters.parameters and name not in named and name not in places[: len(args)]:
                problem = (
                    f"{name}= is an option of engine.start, and the workflow has a parameter of that name; give the "
                    f"argument by place, in kwargs={{{name!r}: ...}}, or with {target.name}.bind(...)"
                )
                raise WrongArgumentsError(repr(target.name), problem)
    return target.signature.pack(args, named)
