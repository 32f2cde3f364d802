"""Attempts: which number a handle is at, and what came of it, as one item in a partition of its own.

It is written in the same transaction as the records. So whoever lost the answer finds it there, or closes the attempt
by counting on: then a request that is still on its way is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from standfast.clock import MICROSECONDS, Instant
from standfast.stores.remote.server import Landed

if TYPE_CHECKING:
    from collections.abc import Mapping

ITS_OWN: Final = b"\x00\x00"
"""What no encoded namespace begins with: partitions of the store's own begin with it."""

KEPT: Final = 7 * 86_400
"""How many seconds the attempts of a handle are kept after its last one; then the service removes them."""


def attempt_key(handle: str) -> dict[str, Any]:
    """Return where the attempts of a handle are counted."""
    return {"p": {"B": ITS_OWN + handle.encode()}, "s": {"B": b"a"}}


class Attempt(Struct, frozen=True):
    """The last attempt of a handle that was counted: written by the request ``token``, or closed without a trace.

    ``frozen`` says why the handle cannot write any more; 0 if it can.
    """

    number: int
    landed: Landed | None
    token: str = ""
    frozen: int = 0


def counting(handle: str, number: int, table: str, landed: Landed | None, token: str, now: Instant) -> dict[str, Any]:
    """Return the conditional put that counts an attempt, if it is not counted yet."""
    item: dict[str, Any] = attempt_key(handle) | {
        "n": {"N": str(number)},
        "t": {"N": str(now // MICROSECONDS + KEPT)},
    }
    if landed is not None:
        first, count = (landed.versions[0] if landed.versions else 0), len(landed.versions)
        item |= {"w": {"N": str(landed.at)}, "f": {"N": str(first)}, "c": {"N": str(count)}, "r": {"S": token}}
    return {
        "TableName": table,
        "Item": item,
        "ConditionExpression": "(attribute_not_exists(n) OR n < :n) AND attribute_not_exists(z)",
        "ExpressionAttributeValues": {":n": {"N": str(number)}},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def closing(handle: str, number: int, table: str) -> dict[str, Any]:
    """Return the update that counts an attempt as closed where the handle is frozen, and stays so."""
    return {
        "TableName": table,
        "Key": attempt_key(handle),
        "UpdateExpression": "SET n = :n REMOVE w, f, c, r",
        "ConditionExpression": "n < :n",
        "ExpressionAttributeValues": {":n": {"N": str(number)}},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def attempt_of(item: Mapping[str, Any]) -> Attempt:
    """Return the attempt that an item holds."""
    number, frozen = int(item["n"]["N"]), int(item["z"]["N"]) if "z" in item else 0
    if "f" not in item:
        return Attempt(number, None, frozen=frozen)
    first, count = int(item["f"]["N"]), int(item["c"]["N"])
    landed = Landed(Instant(int(item["w"]["N"])), tuple(range(first, first + count)))
    return Attempt(number, landed, str(item["r"]["S"]), frozen)
