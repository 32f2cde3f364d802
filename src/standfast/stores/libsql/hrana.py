"""Hrana, the protocol of libSQL servers: batches of statements that run on conditions, as JSON over HTTP.

Only what is needed: every request is one batch, whose steps run if earlier ones succeeded or failed. Numbers are sent
as text and blobs as base64, as the protocol has it.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence


# --- hrana, the protocol of libSQL servers: batches of statements that run on conditions, as JSON over HTTP --------

Parameter: TypeAlias = bytes | str | int | None
Cell: TypeAlias = bytes | str | int | float | None
Condition: TypeAlias = dict[str, Any]


class HranaFailure(Struct, frozen=True):
    """What a server says of a statement or a request that failed."""

    message: str
    code: str | None = None


class _Cell(Struct, frozen=True, gc=False):
    type: str
    value: str | int | float | None = None
    base64: str | None = None


class StepRows(Struct, frozen=True):
    """What a step returned."""

    rows: list[list[_Cell]] = []
    affected_row_count: int = 0

    def decoded(self) -> list[list[Cell]]:
        """Return the rows as values."""
        return [[_value(cell) for cell in row] for row in self.rows]


class BatchResults(Struct, frozen=True):
    """What became of the steps of a batch: each has a result, or an error, or neither if its condition was false."""

    step_results: list[StepRows | None]
    step_errors: list[HranaFailure | None]

    def rows(self, step: int) -> list[list[Cell]]:
        """Return the rows of a step that succeeded."""
        result = self.step_results[step]
        return [] if result is None else result.decoded()

    def failure(self) -> HranaFailure | None:
        """Return the first error."""
        return next((each for each in self.step_errors if each is not None), None)


class _Response(Struct, frozen=True):
    result: BatchResults | None = None


class _HranaAnswer(Struct, frozen=True):
    response: _Response | None = None
    error: HranaFailure | None = None


class HranaReply(Struct, frozen=True):
    """The answer to a request. The *baton* names the stream it ran on, for the next request on it."""

    results: list[_HranaAnswer]
    baton: str | None = None
    base_url: str | None = None

    def batch(self) -> BatchResults | HranaFailure:
        """Return what became of the batch that came first."""
        answer = self.results[0] if self.results else _HranaAnswer()
        if answer.response is not None and answer.response.result is not None:
            return answer.response.result
        return answer.error or HranaFailure("the server's answer holds no result of the batch")


class CursorEntry(Struct, frozen=True):
    """A line of an answer that arrives row by row."""

    type: str = ""
    row: list[_Cell] = []
    error: HranaFailure | None = None
    baton: str | None = None

    def decoded(self) -> list[Cell]:
        """Return the row as values."""
        return [_value(cell) for cell in self.row]


_replies: Final = msgspec.json.Decoder(HranaReply)
_entries: Final = msgspec.json.Decoder(CursorEntry)
_failures: Final = msgspec.json.Decoder(HranaFailure)
_CLOSE: Final = {"type": "close"}


@final
class HranaBatch:
    """Steps in the making."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps: Final[list[dict[str, Any]]] = []

    def add(self, sql: str, parameters: Sequence[Parameter] = (), condition: Condition | None = None) -> int:
        """Add a step; return its number."""
        statement = {"sql": sql, "args": [_argument(each) for each in parameters]}
        self.steps.append({"stmt": statement} if condition is None else {"stmt": statement, "condition": condition})
        return len(self.steps) - 1

    def encoded(self, baton: str | None, *, close: bool) -> bytes:
        """Return the request that runs the batch, on an open stream or on a new one."""
        requests: list[Any] = [{"type": "batch", "batch": {"steps": self.steps}}]
        return msgspec.json.encode({"baton": baton, "requests": [*requests, _CLOSE] if close else requests})

    def encoded_as_cursor(self) -> bytes:
        """Return the request that runs the batch and sends its rows one by one."""
        return msgspec.json.encode({"baton": None, "batch": {"steps": self.steps}})


def closing(baton: str) -> bytes:
    """Return the request that closes a stream."""
    return msgspec.json.encode({"baton": baton, "requests": [_CLOSE]})


def if_ok(step: int) -> Condition:
    """Run a step only if an earlier one succeeded."""
    return {"type": "ok", "step": step}


def if_failed(step: int) -> Condition:
    """Run a step only if an earlier one failed."""
    return {"type": "error", "step": step}


def if_first_but_not(first: int, second: int) -> Condition:
    """Run a step only if one succeeded and another one failed or was left out."""
    return {"type": "and", "conds": [if_ok(first), {"type": "not", "cond": if_ok(second)}]}


def read_reply(body: bytes) -> HranaReply | None:
    """Return the reply that a body holds; None if it is something else."""
    try:
        return _replies.decode(body)
    except msgspec.DecodeError:
        return None


def read_entry(line: bytes) -> CursorEntry | None:
    """Return the entry that a line holds; None if it is something else."""
    try:
        return _entries.decode(line)
    except msgspec.DecodeError:
        return None


def read_failure(body: bytes) -> HranaFailure:
    """Return the error that the body of a refused request holds, whatever its form."""
    try:
        return _failures.decode(body)
    except msgspec.DecodeError:
        return HranaFailure(body[:300].decode(errors="replace"))


def _argument(value: Parameter) -> dict[str, str]:
    if value is None:
        return {"type": "null"}
    if isinstance(value, int):
        return {"type": "integer", "value": str(value)}
    if isinstance(value, str):
        return {"type": "text", "value": value}
    return {"type": "blob", "base64": b2a_base64(value, newline=False).decode()}


def _value(cell: _Cell) -> Cell:
    if cell.type == "integer":
        return int(cell.value or 0)
    if cell.type == "blob":
        return a2b_base64((cell.base64 or "") + "==")  # servers leave the padding out
    return cell.value
