"""A step's record in a transaction of the step's own: the effect and its record are there together, or neither is.

From the moment that the record is written until the step has ended, nobody else adds to the history of the run. The
record lies at the next place of the history; so if the transaction is still being committed when its step is taken for
failed, whatever the run writes next waits for it there, and meets it.
"""

from __future__ import annotations

import asyncio
import functools
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import msgspec

from standfast.errors import EncodeError, StepNotRecordedError, StoreError
from standfast.stores.guests import guest_of
from standfast.stores.joining import converse, converse_blocking, joining_of
from standfast.stores.protocol import Commit, Conflict, Put
from standfast.workflows.context.riding import LARGEST, MOST_ALONG, Ride
from standfast.workflows.running.control import Unload
from standfast.workflows.running.insisting import insist
from standfast.workflows.storing.records import Mark

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator
    from concurrent.futures import Future

    from standfast.stores.guests import Guest
    from standfast.stores.joining import Talk
    from standfast.workflows.declaring.definition import Step
    from standfast.workflows.running.activation import Activation
    from standfast.workflows.running.journal import Taken

T = TypeVar("T")

IDLE: Final = 10.0
"""For how many seconds a transaction may sit idle with a record in it: whoever takes the run over waits for it."""


@final
class Recording:
    """The record of one attempt of a step, if the step wants to write it itself.

    Attributes:
        is_asked: The step has asked for it.
        mark: The record, once it is known to be there for good.
        result: What was recorded, as it is read back.
    """

    __slots__ = (
        "_activation",
        "_answer",
        "_digest",
        "_id",
        "_is_over",
        "_loop",
        "_noted",
        "_put",
        "_ride",
        "_step",
        "_taken",
        "is_asked",
        "mark",
        "result",
    )

    def __init__(self, activation: Activation, step: Step[..., Any], step_id: str, digest: str) -> None:
        self._activation, self._step, self._id, self._digest = activation, step, step_id, digest
        self._loop: Final = asyncio.get_running_loop()
        self._taken: Taken | None = None
        self._ride: Ride | None = None
        self._put: Put | None = None
        self._noted: Mark | None = None
        self._answer: Commit | Conflict | None = None
        self._is_over = self.is_asked = False
        self.mark: Mark | None = None
        self.result: Any = None

    # --- in the step ---------------------------------------------------------------------------------------------

    def record_with(self, connection: object, result: object) -> Awaitable[None]:
        """Write the record; over a connection that blocks it is written when this returns."""
        guest = guest_of(connection)
        if self._is_over or self.is_asked:
            raise self._problem("it has ended" if self._is_over else "it has called record_with before; call it once")
        packed, self.result = self._step.signature.result.pack_and_restore(result)
        if len(packed) > LARGEST:
            raise EncodeError(f"the result of {self._id} takes {len(packed):,} bytes, at most {LARGEST:,} are allowed")
        self.is_asked = True
        if not guest.blocks:
            return _Pending(functools.partial(self._record, guest, packed))
        if _has_running_loop():
            raise self._problem("the connection blocks; make the step a plain function, or use one with await")
        self._take(converse_blocking(guest, self._elsewhere(packed).result()))
        return _Pending(None)

    async def _record(self, guest: Guest, packed: bytes) -> None:
        is_here = asyncio.get_running_loop() is self._loop
        talk = await (self._begin(packed) if is_here else asyncio.wrap_future(self._elsewhere(packed)))
        self._take(await converse(guest, talk))

    def _elsewhere(self, packed: bytes) -> Future[Talk[Commit | Conflict]]:
        """Begin where the run is driven: the step runs in another thread."""
        begin = self._begin(packed)
        try:
            return asyncio.run_coroutine_threadsafe(begin, self._loop)
        except RuntimeError:
            begin.close()
            raise self._problem("the engine was closed") from None

    async def _begin(self, packed: bytes) -> Talk[Commit | Conflict]:
        """Take out everything that is to be written; nobody else writes until :meth:`settle`."""
        activation = self._activation
        journal, space = activation.journal, activation.host.space
        if journal is None:
            raise self._problem("the run is not driven here")
        joining = await joining_of(space.store, space.store.capabilities.backend)
        try:
            if journal.is_heavy(MOST_ALONG):
                await activation.flush()
            await activation.check_may_act()
        except Unload:
            raise self._problem("the run is about to be driven elsewhere; roll back") from None
        taken = await journal.begin()
        if self._is_over:
            journal.end(taken, None, {})
            raise self._problem("it has ended")
        self._taken, self._ride = taken, Ride(journal, activation.keys, taken, ())
        mark = self._noted = Mark(
            "transaction", self._id, activation.host.now(), msgspec.Raw(packed), digest=self._digest
        )
        changes = self._ride.changes(mark)
        self._put = changes[-1] if isinstance(changes[-1], Put) else None
        return joining.write(changes, before=self._ride.before, idle=IDLE)

    def _take(self, answer: Commit | Conflict) -> None:
        self._answer = answer
        if isinstance(answer, Conflict):
            raise self._problem("another worker drives the run by now, or a lock is lost that it holds; roll back")

    def _problem(self, problem: str) -> StepNotRecordedError:
        return StepNotRecordedError(self._id, problem)

    # --- when the step has ended ---------------------------------------------------------------------------------

    async def settle(self, problem: BaseException | None) -> BaseException | None:
        """Find out whether the transaction was committed; return what the step failed with, None if it was."""
        self._is_over = True
        try:
            if await self._has_landed():
                self.mark = self._noted
                return None
        finally:
            self.drop()
        if isinstance(self._answer, Conflict):
            self._activation.refused(self._answer)
        if problem is not None:
            return problem
        if self._answer is None:
            return self._problem("record_with did not come to its end; await it, and let pass what it raises")
        return self._problem("it has ended, and its transaction was not committed")

    async def _has_landed(self) -> bool:
        put = self._put
        if put is None or isinstance(self._answer, Conflict):
            return False
        activation = self._activation
        try:
            seen = await insist(activation, lambda: activation.host.space.read(put.key))
        except StoreError:
            activation.abandon()
            raise Unload from None
        record = seen.get(put.key)
        return record is not None and record.value == put.value

    def drop(self) -> None:
        """Let others write again."""
        self._is_over = True
        taken, self._taken = self._taken, None
        journal = self._activation.journal
        if taken is not None and journal is not None:
            versions = self._answer.versions if isinstance(self._answer, Commit) else {}
            added = self._ride.added if self.mark is not None and self._ride is not None else None
            journal.end(taken, added, versions)


@final
class _Pending:
    """What ``record_with`` returns: something to await, or nothing left to do."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, None, None]:
        if self._work is not None:
            yield from self._work().__await__()


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


RECORDING: Final[ContextVar[Recording | None]] = ContextVar("standfast_recording", default=None)
"""The record of the step that is running."""
