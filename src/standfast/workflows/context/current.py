"""What a step can find out about itself, and do for itself."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from standfast.errors import InvalidWorkflowError
from standfast.workflows.context.recording import RECORDING

if TYPE_CHECKING:
    from collections.abc import Awaitable


class CurrentStep(Struct, frozen=True):
    """What a step can find out about itself, see :func:`current_step`.

    Attributes:
        run_id: The run.
        step_id: The step in it, with the branch's path.
        attempt: 1, or more after it raised.
        idempotency_key: The same each time that this step of this run is tried, and different from every other's. Give
            it to whatever the step calls, so that doing it twice has the effect of once.
        fence: Grows each time that the run is taken up: what it calls can refuse those who were taken for dead.
    """

    run_id: str
    step_id: str
    attempt: int
    idempotency_key: str
    fence: int = 0

    def record_with(self, connection: object, result: object = None) -> Awaitable[None]:
        """Write this step's record, with its result, in a transaction of your own: effect and record are one commit.

            async def charge(order: str) -> int:
                async with pool.acquire() as connection, connection.transaction():
                    number = await connection.fetchval("INSERT INTO charges ... RETURNING id", order)
                    await sf.current_step().record_with(connection, number)
                return number

        Call it last in the transaction, commit, and return. The step has happened if and only if that transaction is
        committed, and ``result`` is what it returned, whatever happens to this process. If it is not committed, the
        step has failed, and is tried again as its ``retry`` says.

        The store is a PostgreSQL, and the connection one to its database: of asyncpg, psycopg, SQLAlchemy or Django.
        With one that is used with ``await``, await this too; with one that blocks, which belongs into a step that is a
        plain function, it is done when this returns.

        Raises:
            UnsuitableConnectionError: The connection is not in a transaction, or not one to the store's database.
            UnsuitableStoreError: The store is no PostgreSQL; use ``ctx.transaction`` instead.
            StepNotRecordedError: Another worker drives the run by now. Let it pass, so that you roll back.
        """
        recording = RECORDING.get()
        if recording is None:
            raise InvalidWorkflowError("record_with", "no step is running here; call it inside a step")
        return recording.record_with(connection, result)


CURRENT_STEP: Final[ContextVar[CurrentStep | None]] = ContextVar("standfast_step", default=None)


def current_step() -> CurrentStep:
    """Return the step that is running. Outside of one it is refused."""
    found = CURRENT_STEP.get()
    if found is None:
        raise InvalidWorkflowError("current_step()", "no step is running here; call it inside a step")
    return found
