"""Starting runs: what a start is given is checked, and the run is durable before its first step, once for each id."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, Final, Literal, Required, TypeAlias, TypedDict, cast

from msgspec import Struct, structs

from standfast.durations import seconds
from standfast.errors import (
    DeclarationError,
    RunNotFoundError,
    StartOrSignalConflictError,
    StoreBusyError,
    UnknownWorkflowError,
    WorkflowAlreadyExistsError,
    WorkflowTerminalError,
    WrongArgumentsError,
)
from standfast.ids import new_id
from standfast.keys import MAX_KEY_BYTES
from standfast.locks.run_locks import MOST_TAGS
from standfast.stores.protocol import Commit, Conflict, Put
from standfast.stores.user_transactions import (
    converse,
    unsuitable_connection,
    user_connection_of,
    user_transactions_of,
)
from standfast.workflows.activation import Activation
from standfast.workflows.admission import WAITS, start_in_lines
from standfast.workflows.catalog import RemoteWorkflow, Startable, find_remote, is_declared
from standfast.workflows.definition import Bound, Workflow, checked_name, described, place_of, unbound
from standfast.workflows.inbox import first_of
from standfast.workflows.journal import Claim
from standfast.workflows.limits import standings_of, waits_until
from standfast.workflows.messages import checked_message_name
from standfast.workflows.records import (
    OWNERSHIPS,
    READY,
    RUN_STATES,
    Ownership,
    RunKeys,
    Start,
    Started,
    after_gone,
    compare,
    creation,
    find_there,
    first_state,
    header_of,
    met_by,
)
from standfast.workflows.retention import make_room

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from standfast.durations import Duration
    from standfast.stores.user_transactions import Talk, UserTransactions
    from standfast.workflows.inbox import Sending
    from standfast.workflows.records import RunState, Standing
    from standfast.workflows.runtime import AnyEngine, Runtime


# --- starting runs: the run is durable before its first step, and a start that is asked for twice happens once -----

LONGEST_ID: Final = 240
_TEXT: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")
_NEXT: Final = re.compile(r"~[0-9]+$")
START_TRIES: Final = 20


def checked_id(what: str, text: str) -> str:
    """Return an id that a user has given; refuse what cannot be one."""
    is_text = isinstance(text, str) and _TEXT.fullmatch(text) is not None  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
    if not is_text or len(text.encode("utf-8", "surrogatepass")) > LONGEST_ID:
        raise DeclarationError(f"{what} {text!r:.240}", f"it must be 1 to {LONGEST_ID} bytes of printable text")
    if what == "run id" and text.startswith("@"):  # as schedules do in the timer index
        raise DeclarationError(f"{what} {text!r:.240}", "it must not begin with @")
    if what == "run id" and _NEXT.search(text):  # as those that go on as a new run
        raise DeclarationError(f"{what} {text!r:.240}", "it must not end in ~ and a number")
    return text


def as_start(
    workflow: Startable,
    packed: bytes,
    restored: Struct | None,
    *,
    run_id: str | None,
    idempotency_key: str | None,
    delay: float,
    drive: bool,
) -> Start:
    """Return a checked start of a workflow with packed arguments, and as they will be read back, if that is known."""
    if run_id is not None and idempotency_key is not None:
        raise DeclarationError("engine.start", "give an id or an idempotency_key: an id is one already")
    chosen = new_id() if run_id is None else checked_id("run id", run_id)
    key = "" if idempotency_key is None else checked_id("idempotency key", idempotency_key)
    return Start(
        workflow=workflow,
        packed=packed,
        restored=restored,
        run_id=chosen,
        idempotency_key=key,
        delay=delay,
        drive=drive,
        chosen=run_id is not None,
    )


async def start(runtime: Runtime, asked: Start) -> Started:  # noqa: C901 -- one loop over the tries of one commit
    """Start a run, or find the one that was started so before."""
    standings = standings_of(asked.workflow, asked.packed)
    if standings:
        return await start_in_lines(runtime, asked, standings)
    for _ in range(START_TRIES):
        drives, elapsed = asked.drive and not asked.delay, runtime.clock.elapsed()
        worker = runtime.reliable_worker_at(elapsed) if drives else None
        if drives and worker is None:
            worker, elapsed = await runtime.ensure_presence(), runtime.clock.elapsed()
        now = runtime.now_at(elapsed)
        state = first_state(asked, now, worker.presence if worker is not None else "")
        keys = RunKeys(runtime.space, asked.run_id)
        header = header_of(asked, now)
        changes = creation(runtime.space, asked, now, state, made=(keys, header))
        changes += asked.extra_changes
        own = keys.own("" if worker is None else worker.presence)
        if worker is not None:
            changes += worker.guard, Put(own, OWNERSHIPS.encode_own(Ownership(keys.id, now)))
        # Keys are checked by the store, or by the space if there are others'. Of those of a run the grant's is longest.
        is_checked = worker is not None and len(own) <= MAX_KEY_BYTES and not asked.idempotency_key
        commit = runtime.space.commit_at_once if is_checked else runtime.space.store.commit
        try:
            sent: Any = (runtime.space.commit if asked.extra_changes else commit)(*changes)
            answer: Commit | Conflict = sent if type(sent) is Commit else await sent
        except BaseException:
            runtime.dropped.add(keys.id)  # if it was written all the same, no task here is about to load it
            raise
        runtime.saw(answer.at)
        if not isinstance(answer, Conflict):
            if runtime.tells_moves:
                runtime.emit_moved(keys.id, state, 0 if worker is None else answer.versions[own], None, header)
            if worker is not None:
                right = Claim(own, answer.versions[own], worker.presence, answer.versions[keys.state], is_first=True)
                runtime.execute(Activation(runtime, keys, asked.workflow, header, state, right, (), asked.restored))
            return Started(asked.run_id, is_new=True)
        if worker is not None and worker.guard.key in answer.current:
            runtime.lost_presence()
            continue
        if (anew := after_gone(asked, answer.current.get(keys.header))) is not None:
            asked = anew
        elif (there := await find_there(runtime.space, asked, answer)) is not None:
            return there
    problem = f"it could not be started in {START_TRIES} tries: this worker is taken for dead, or such runs come and go"
    raise StoreBusyError("a run", problem)


# --- signalling a run that may have to be started first: run and signal are made by one commit ---------------------

OnTerminal: TypeAlias = Literal["raise", "start_new"]
Outcome: TypeAlias = Literal["started", "signalled"]
TRIES: Final = 50


class Met(Struct, frozen=True):
    """The run that got the signal, and whether it had to be started for that."""

    run_id: str
    outcome: Outcome


def check_request(on_terminal: object, run_id: str | None, idempotency_key: str | None, signal_id: str | None) -> None:
    """Refuse what cannot work before anything is written."""
    if on_terminal not in ("raise", "start_new"):
        raise DeclarationError("on_terminal", f"{on_terminal!r:.100} is neither 'raise' nor 'start_new'")
    if (run_id is None) == (idempotency_key is None):
        raise DeclarationError("start_or_signal", "give an id or an idempotency_key: it says which run is meant")
    if on_terminal == "start_new" and (run_id is None or signal_id is None):
        problem = "on_terminal='start_new' needs an id and a signal_id, so that a call that is repeated starts nothing"
        raise DeclarationError("start_or_signal", problem)


async def start_or_signal(runtime: Runtime, asked: Start, signal: Sending, on_terminal: OnTerminal) -> Met:
    """Signal a run, and start it if it is not there. Of several who do so at once one starts it; all signals arrive."""
    for _ in range(TRIES):
        run_id, state = await _meant(runtime, asked)
        try:
            if state is not None:
                if state.workflow != asked.workflow.name:
                    raise WorkflowAlreadyExistsError(run_id, state.status, "workflow")
                return Met((await runtime.inboxes.send(run_id, signal)).run_id, "signalled")
            if await _is_started(runtime, asked, signal):
                return Met(asked.run_id, "started")
        except RunNotFoundError:
            continue  # purged at this very moment
        except WorkflowTerminalError as ended:
            if on_terminal == "raise":
                raise StartOrSignalConflictError(ended.run_id, ended.status) from None
            await make_room(runtime, run_id)
    raise StoreBusyError(f"the run {asked.run_id}", f"others started and ended it {TRIES} times meanwhile")


async def _meant(runtime: Runtime, asked: Start) -> tuple[str, RunState | None]:
    """Return the id of the run that is meant, and its state; None: there is none."""
    space, run_id = runtime.space, asked.run_id
    if asked.idempotency_key:
        key = space.key("once", asked.idempotency_key)
        once = (await space.read(key)).get(key)
        if once is None:
            return run_id, None
        run_id = met_by(asked, once)
    key = space.key("life", run_id)
    record = (await space.read(key)).get(key)
    return run_id, None if record is None else RUN_STATES.decode(record.value)


async def _is_started(runtime: Runtime, asked: Start, signal: Sending) -> bool:
    """Start the run with the signal in its inbox; False if another process was first."""
    extra_changes: tuple[Any, ...] = first_of(RunKeys(runtime.space, asked.run_id), signal, runtime.now())
    try:
        started = await start(
            runtime, structs.replace(asked, extra_changes=(*asked.extra_changes, *extra_changes), drive=False)
        )
    except WorkflowAlreadyExistsError:
        return False
    return started.is_new


# --- starting a run within a transaction of the user's: there is such a run if and only if that is committed -------

JOIN_TRIES: Final = 3


async def start_over(runtime: Runtime, asked: Start, connection: object) -> Started:
    """Start a run in the transaction of a connection that is used with ``await``."""
    guest = user_connection_of(connection)
    if guest.blocks:
        raise unsuitable_connection(guest.kind, "it blocks; use standfast.blocking.Engine with it")
    return await converse(guest, await start_within(runtime, asked))


async def start_within(runtime: Runtime, asked: Start) -> Talk[Started]:
    """Return the talk that starts a run in a transaction, or finds the run that was started so before.

    Everything that can be refused without asking is refused here. No worker drives the run until the transaction is
    committed: then a worker takes it up, and lets it enter its lines.
    """
    standings = standings_of(asked.workflow, asked.packed)
    for standing in standings:
        if standing.on_limit not in WAITS or standing.most_waiting is not None:
            raise DeclarationError(
                f"engine.start of {asked.workflow.name}",
                "whether its limit rejects or joins a start cannot be known before your transaction is committed; use "
                "on_limit='queue' without max_queued, or start it after the commit",
            )
    if standings and asked.delay:
        raise DeclarationError(
            f"engine.start of {asked.workflow.name}",
            "with a limit, a start within a transaction cannot have a delay; sleep in the workflow instead",
        )
    joining = await user_transactions_of(runtime.space.store, runtime.space.store.capabilities.backend)
    return _talk(runtime, asked, joining, standings)


def _talk(runtime: Runtime, asked: Start, joining: UserTransactions, standings: tuple[Standing, ...]) -> Talk[Started]:
    own = RunKeys(runtime.space, asked.run_id)
    once = runtime.space.key("once", asked.idempotency_key) if asked.idempotency_key else None
    for _ in range(JOIN_TRIES):
        now = runtime.now()
        state = first_state(asked, now, "")
        if standings:
            state = structs.replace(state, until=waits_until(header_of(asked, now, standings), now))
        changes = creation(runtime.space, asked, now, state, standings)
        if standings and state.until is not None:
            changes.append(Put(own.ready, READY))  # besides its timer: it is to be looked at now, to enter its lines
        answer = yield from joining.write(changes)
        if not isinstance(answer, Conflict):
            return Started(asked.run_id, is_new=True)
        if (anew := after_gone(asked, answer.current.get(own.header))) is not None:
            asked = anew
            continue
        run_id = met_by(asked, None if once is None else answer.current.get(once))
        keys = RunKeys(runtime.space, run_id)
        seen = yield from joining.read((keys.header, keys.state))
        try:
            compare(asked, keys, seen)
        except RunNotFoundError:  # it was purged at this very moment
            continue
        return Started(run_id, is_new=False)
    detail = f"such runs came and went {JOIN_TRIES} times while it was started; roll back and retry"
    raise StoreBusyError("a run", detail)


# --- what a start was given: which workflow, and with which arguments. Both are checked before anything is written -

_log: Final = logging.getLogger("standfast.workflows")

Unknown: TypeAlias = Literal["raise", "start"]
"""What happens to a start by a name that no engine knows."""


class StartOptions(TypedDict, total=False):
    """What ``engine.start`` takes besides the arguments of the workflow; see there."""

    id: str | None
    idempotency_key: str | None
    delay: Duration
    tags: Iterable[str]
    connection: object


class SignalOptions(TypedDict, total=False):
    """What ``engine.start_or_signal`` takes besides the arguments of the workflow; see there."""

    signal: Required[str]
    value: object
    id: str | None
    idempotency_key: str | None
    signal_id: str | None
    on_terminal: OnTerminal
    tags: Iterable[str]


async def checked_start(
    engine: AnyEngine,
    workflow: object,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    by_name: Mapping[str, Any],
    options: Mapping[str, Any],
    unknown: Unknown = "raise",
) -> Start:
    """Return a start that is checked; options that are None were not given."""
    runtime = engine.runtime
    if not (options or kwargs or by_name) and unknown == "raise":
        mine: Any = workflow
        if type(mine) is Workflow and runtime.workflows.get((mine.name, mine.version)) is mine:  # nearly every start
            body, as_read = mine.signature.pack_and_restore(args, {})
            starter = None if runtime.tracing is None else runtime.tracing.current()
            return Start(
                workflow=mine,
                packed=body,
                restored=as_read,
                run_id=new_id(),
                drive=engine.has_room,
                trace="" if starter is None else starter.stored,
            )
    given = {name: value for name, value in options.items() if value is not None} if options else options
    target = await find(runtime, workflow, drives=engine.drives, unknown=unknown)
    packed, restored = pack_arguments(workflow, target, args, kwargs, by_name, given)
    asked = as_start(
        target,
        packed,
        restored,
        run_id=given.get("id"),
        idempotency_key=given.get("idempotency_key"),
        delay=seconds(given["delay"], what="delay") if "delay" in given else 0.0,
        drive=engine.has_room and isinstance(target, Workflow),
    )
    tags = tuple([checked_message_name("tag", tag) for tag in given["tags"]]) if "tags" in given else ()
    if len(tags) > MOST_TAGS:
        raise DeclarationError("tags", f"there are {len(tags)}; a run has at most {MOST_TAGS}, each of which finds it")
    tracing = runtime.tracing
    caller = None if tracing is None else tracing.current()
    trace = "" if caller is None else caller.stored
    return structs.replace(asked, tags=tags, trace=trace) if tags or trace else asked


def code_of_start(asked: Start) -> Workflow[..., Any] | None:
    """Return the workflow of a start; None if its code is elsewhere."""
    found: Workflow[..., Any] = asked.workflow
    return None if isinstance(asked.workflow, RemoteWorkflow) else found


async def find(runtime: Runtime, given: object, *, drives: bool, unknown: Unknown = "raise") -> Startable:
    """Return the workflow that is to be started: itself, that of bound arguments, or the one of that name.

    Raises:
        DeclarationError: That is no workflow.
        UnknownWorkflowError: It is not there.
        DeclarationError: Another one is there under its name.
    """
    if unknown not in ("raise", "start"):
        raise DeclarationError("unknown", f"{unknown!r:.100} is neither 'raise' nor 'start'")
    if isinstance(given, str):
        name = checked_name("workflow", given)
        here = [each for each in runtime.workflows.values() if not each.is_internal]
        first = next((each for each in here if each.name == name), None)
        names = {each.name for each in here}
        return first or await find_remote(runtime.space, name, names, may_be_unknown=unknown == "start")
    found = unbound(given)
    if not isinstance(found, Workflow):
        problem = "this is no workflow; declare it with @sf.workflow, or give the name of one"
        raise DeclarationError(described(found), problem)
    workflow = cast("Workflow[..., Any]", found)
    check_registered(runtime, workflow, drives=drives)
    return workflow


def check_registered(runtime: Runtime, workflow: Workflow[..., Any], *, drives: bool) -> None:
    """Refuse a workflow that an engine does not have.

    One that drives nothing and was given no workflows has none to compare with: it takes what it is given, for workers
    elsewhere.
    """
    registered = runtime.workflows.get((workflow.name, workflow.version))
    if registered is not None:
        if registered is not workflow and not registered.is_same(workflow):
            raise DeclarationError(
                f"the workflow {workflow.name!r}",
                f"it is {place_of(workflow.function)}; the engine has {place_of(registered.function)} under that name",
            )
        return
    known = [_label(each) for each in runtime.workflows.values() if not each.is_internal]
    if known or drives:
        raise UnknownWorkflowError(_label(workflow), tuple(sorted(known)))


async def check_child(runtime: Runtime, workflow: Workflow[..., Any], parent: str) -> None:
    """Refuse a child that is another workflow than the engine has under that name.

    One that it does not have may be one of other workers. If none has had it, that is only told: a worker may still
    come, as when new code is deployed, and a run must not fail meanwhile.
    """
    if (workflow.name, workflow.version) in runtime.workflows:
        check_registered(runtime, workflow, drives=True)
    elif not await is_declared(runtime.space, workflow.name):
        told = "the run %r starts a child of %r, which no worker has had; it waits for one that has it"
        _log.warning(told, parent, workflow.name)


def _label(workflow: Workflow[..., Any]) -> str:
    return f"{workflow.name} {workflow.version}".rstrip()


def pack_arguments(
    given: object,
    target: Startable,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    by_name: Mapping[str, Any],
    options: Mapping[str, object],
) -> tuple[bytes, Struct | None]:
    """Return the arguments of a start as they are stored, and as they will be read back, if that is known.

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
        return given.packed, None
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
    if isinstance(target, RemoteWorkflow):
        return target.signature.pack(args, named), None
    return target.signature.pack_and_restore(args, named)
