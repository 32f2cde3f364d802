"""How a request that runs here ends: what is written down of it, and what those hear who wait for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, structs

from standfast.errors import SessionStateError, StandfastError
from standfast.flows.call import name_of
from standfast.flows.ending import ended_by, write_end_in_time, write_late_end
from standfast.flows.knowing import KnownHere
from standfast.flows.viewing import ended
from standfast.flows.writing import write_end
from standfast.workflows.storing.failure_log import log_failure
from standfast.workflows.storing.failures import describe

if TYPE_CHECKING:
    import asyncio

    from standfast.flows.arbiters.protocol import Turn
    from standfast.flows.emitting import Journal
    from standfast.flows.records import RequestRecord
    from standfast.flows.session import Operation
    from standfast.workflows.storing.failures import Failure

_log: Final = logging.getLogger("standfast.flows")


class Concluding(KnownHere, eq=False):
    """One request that runs here, as far as its end goes. :class:`~standfast.flows.attending.Attended` runs it."""

    _journal: Journal | None = None
    _turn: Turn | None = None
    _entered: asyncio.Future[int] | None = None
    _may_be_written: bool = False
    _cancelled_by: str = ""

    async def _succeed(self, value: Any, packed: bytes, operations: tuple[Operation, ...]) -> None:  # noqa: ANN401 -- whatever the action returned
        """Write down that it ended well, in the commit that ends its turn."""
        if self._journal is not None:
            await self._journal.flush()
        at = self._server.now()
        record = ended(self.record, "completed", at, result=packed) if self.is_stored else None
        try:
            late = await write_end(self._server, self._task, self._turn, record, operations)
        except SessionStateError as problem:
            await self._fail(problem)
            return
        self._complete(value, packed, at)
        if late is not None:
            raise late

    async def _fail(self, problem: BaseException) -> None:
        self.problem = problem
        if self._journal is not None:
            await self._journal.flush()
        failure = describe(problem, self._server.known)
        record = ended(self.record, "failed", self._server.now(), failure=failure)
        if self.is_stored:
            await write_end(self._server, self._task, self._turn, record, ())
        elif self._turn is not None:
            await self._turn.finish()
        self._close(record)
        if not isinstance(problem, KeyboardInterrupt):  # which somebody sends to the program, not the action
            self._log_failure(failure)

    def _log_failure(self, failure: Failure) -> None:
        action = name_of(self.action)
        log_failure(_log, f"the request {self.id!r} of {action}", failure, request=self.id, action=action)

    def _ended_by(self, problem: BaseException) -> RequestRecord:
        record = ended_by(self.record, problem, self._server.now(), self._server.known)
        is_closing = record.status == "interrupted" and self._cancelled_by
        return structs.replace(record, cancelled_by=self._cancelled_by) if is_closing else record

    async def _end_otherwise(self, problem: BaseException) -> None:
        """Write down that it ended without a result, if it was taken on, or that may be so."""
        if self.is_over:
            return
        if not self.is_entered:
            self._refuse(problem)
            return
        record = self._ended_by(problem)
        if self.is_stored:
            record = await write_end_in_time(self._server, self.keys, record, self._task.claim)
        if record.status == "completed":  # it was written, and the answer got lost
            self.packed = b"null" if record.result is UNSET else bytes(record.result)
            self.value = self.action.result.unpack(self.packed)
        else:
            self.problem = self.problem or problem
        self._close(record)
        if record.status == "failed" and record.failure is not None and not isinstance(problem, StandfastError):
            self._log_failure(record.failure)

    def _refuse(self, problem: BaseException) -> None:
        self.refusal = problem
        if self._entered is not None:
            self._entered.set_exception(problem)
            self._entered.exception()  # whoever asked may have gone
        at = self._server.now()
        record = ended(self.record, "refused", at, reason=str(problem))  # it has not run, whatever was written of it
        if self._may_be_written:
            self._server.own(write_late_end(self._server, self.keys, record, self._task.claim))
        self._close(record)
