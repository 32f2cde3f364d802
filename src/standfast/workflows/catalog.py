"""Which workflows the workers of a space have, as far as a start needs to know that: names, parameters and limits.

A worker writes this down when it opens. So a process without the code, such as one that only serves the web, starts a
run by name: a name that no worker has ever had is refused, and so are arguments that the workflow does not take. What a
worker has written stays when it stops: runs can be started while no worker is there.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

from msgspec import Struct

from standfast.codec import Codec
from standfast.errors import DeclarationError, UnknownWorkflowError, WrongArgumentsError
from standfast.workflows.definition import StartLimit, Workflow
from standfast.workflows.records import commit_over
from standfast.workflows.values import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.workflows.records import Standing


_KIND: Final = "declared"
_MOST_NAMED: Final = 100
MOST_DECLARED: Final = 1_000
"""How many workflows are listed."""

_GivenBy: TypeAlias = Literal["place", "any", "name"]
_KINDS: Final = {
    "place": inspect.Parameter.POSITIONAL_ONLY,
    "any": inspect.Parameter.POSITIONAL_OR_KEYWORD,
    "name": inspect.Parameter.KEYWORD_ONLY,
}
_WORDS: Final[dict[object, _GivenBy]] = {_KINDS["place"]: "place", _KINDS["any"]: "any", _KINDS["name"]: "name"}


class DeclaredParameter(Struct, frozen=True, omit_defaults=True):
    """A parameter of a workflow: how it is given, and whether it may be left out."""

    name: str
    given_by: _GivenBy = "any"
    optional: bool = False


class DeclaredLimit(Struct, frozen=True, omit_defaults=True):
    """A start limit of a workflow; what its key is, only the code can tell."""

    max: int
    on_limit: Literal["reject", "queue", "cancel_running", "join"]
    has_key: bool = False
    max_queued: int | None = None
    ttl: float | None = None


class Declared(Struct, frozen=True, omit_defaults=True):
    """What a worker has written down about a workflow that it has."""

    name: str
    version: str = ""
    parameters: tuple[DeclaredParameter, ...] = ()
    limits: tuple[DeclaredLimit, ...] = ()
    timeout: float | None = None


DECLARATIONS: Final[Codec[Declared]] = Codec(Declared, what="a declared workflow")


def declared_of(workflow: Workflow[..., Any]) -> Declared:
    """Return what is written down about a workflow."""
    known = workflow.signature.parameters.parameters.values()
    return Declared(
        workflow.name,
        workflow.version,
        tuple(DeclaredParameter(each.name, _WORDS[each.kind], each.default is not each.empty) for each in known),
        tuple(
            DeclaredLimit(each.max, each.on_limit, each.key is not None, each.max_queued, each.ttl)
            for each in workflow.limits
        ),
        workflow.timeout,
    )


async def declare(scope: Scope, workflows: Iterable[Workflow[..., Any]]) -> None:
    """Write down which workflows there are, of each name the first version; nothing if that is written already."""
    first: dict[RecordKey, bytes] = {}
    for workflow in workflows:
        if not workflow.is_internal:
            first.setdefault(scope.key(_KIND, workflow.name), DECLARATIONS.encode(declared_of(workflow)))
    keys, most = tuple(first), scope.at_most(100)
    for start in range(0, len(keys), most):
        seen = await scope.read(*keys[start : start + most])
        written = {key: record.value for key, record in seen.records.items()}
        changed = {key: first[key] for key in keys[start : start + most] if written.get(key) != first[key]}
        if changed:
            await commit_over(scope, (), changed, {key: seen.version(key) for key in changed})


@final
class RemoteWorkflow:
    """A workflow whose code is elsewhere, as far as a start needs it. It has the attributes of :class:`Workflow`.

    Args:
        declared: What a worker has written down.
        signature: What it takes; None: that is not known.
        standings: The lines that a run of it stands in, in place of those that its limits say; None: those.
    """

    on_tick: Final = None

    def __init__(
        self,
        declared: Declared,
        signature: inspect.Signature | None,
        standings: Callable[[bytes], tuple[Standing, ...]] | None = None,
    ) -> None:
        self.standings: Final = standings
        self.name: Final = declared.name
        self.version: Final = declared.version
        self.timeout: Final = declared.timeout
        self.signature: Final = RemoteSignature(declared.name, signature)
        limits = declared.limits if standings is None else ()
        for each in limits:
            if each.has_key:
                problem = "its limit has a key that only its code can compute; start it in a process that has the code"
                raise DeclarationError(f"the workflow {declared.name!r}", problem)
        self.limits: Final = tuple(
            StartLimit(each.max, on_limit=each.on_limit, max_queued=each.max_queued, ttl=each.ttl) for each in limits
        )


@final
class RemoteSignature:
    """What a workflow takes whose code is elsewhere: names are known, types are not, so arguments are JSON-shaped."""

    def __init__(self, name: str, parameters: inspect.Signature | None) -> None:
        self.name: Final = repr(name)
        self.parameters: Final = parameters

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Return the arguments of a call as JSON, by name, as the code itself would.

        Raises:
            WrongArgumentsError: The workflow takes other arguments.
            EncodeError: An argument is not JSON-shaped, or too large.
        """
        if self.parameters is None:
            if args:
                raise WrongArgumentsError(self.name, "its parameters are not known here; give arguments by name")
            return PLAIN.pack(dict(kwargs))
        try:
            bound = self.parameters.bind(*args, **kwargs)
        except TypeError as error:
            raise WrongArgumentsError(self.name, str(error)) from None
        return PLAIN.pack(dict(bound.arguments))


async def list_declared(scope: Scope, most: int = MOST_DECLARED) -> list[Declared]:
    """Return the workflows that workers of a space have written down, in the order of their names, up to a number."""
    found: list[Declared] = []
    start, end = scope.key(_KIND).within()
    while len(found) < most:
        page = await scope.scan(start, end, limit=min(_MOST_NAMED, most - len(found)))
        found += [DECLARATIONS.decode(record.value) for record in page.records.values()]
        if page.more is None:
            break
        start = page.more
    return found


async def is_declared(scope: Scope, name: str) -> bool:
    """Return True if a worker of a space has written down a workflow of that name."""
    key = scope.key(_KIND, name)
    return bool((await scope.read(key)).version(key))


async def find_declared(scope: Scope, name: str, here: Iterable[str] = ()) -> Declared:
    """Return what workers of a space have written down about a workflow.

    Args:
        scope: Where they did.
        name: Its name.
        here: The names of those that this engine has, for the error.

    Raises:
        UnknownWorkflowError: None has.
    """
    key = scope.key(_KIND, name)
    record = (await scope.read(key)).get(key)
    if record is not None:
        return DECLARATIONS.decode(record.value)
    page = await scope.scan(*scope.key(_KIND).within(), limit=_MOST_NAMED)
    known = {key.parts[-1] for key in page.records}
    raise UnknownWorkflowError(name, tuple(sorted(known.union(here))), "this engine or those of its workers")


async def find_remote(scope: Scope, name: str, here: Iterable[str], *, may_be_unknown: bool) -> RemoteWorkflow:
    """Return a workflow that workers of a space have written down.

    Args:
        scope: Where they did.
        name: Its name.
        here: The names of those that this engine has, for the error.
        may_be_unknown: Return one of that name also if no worker has written it down.

    Raises:
        UnknownWorkflowError: None has.
    """
    try:
        return as_remote(await find_declared(scope, name, here))
    except UnknownWorkflowError:
        if may_be_unknown:
            return RemoteWorkflow(Declared(name), None)
        raise


def as_remote(declared: Declared, standings: Callable[[bytes], tuple[Standing, ...]] | None = None) -> RemoteWorkflow:
    """Return a workflow that workers have written down, as far as a start needs it."""
    parameters = [
        inspect.Parameter(each.name, _KINDS[each.given_by], default=None if each.optional else inspect.Parameter.empty)
        for each in declared.parameters
    ]
    return RemoteWorkflow(declared, inspect.Signature(parameters), standings)


Startable: TypeAlias = Workflow[..., Any] | RemoteWorkflow
"""A workflow, as far as a start needs it."""
