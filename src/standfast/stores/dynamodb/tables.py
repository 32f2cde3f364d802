"""The table itself: what it looks like, how it is made, and what to type where this may not make it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError

from standfast.clock import monotonic
from standfast.errors import StoreError, StoreGoneError, StoreUnavailableError, UnsuitableStoreError
from standfast.stores.dynamodb.connection import ConditionError, code_of
from standfast.stores.dynamodb.items import ITS_OWN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from standfast.stores.dynamodb.connection import DynamoClient, DynamoOptions

FORMAT: Final = 1
"""The format that this release writes. A table in a newer one is refused."""

CREATED_WITHIN: Final = 60.0
LOOK_EVERY: Final = 0.2

_KEY: Final = {"p": {"B": ITS_OWN + b"format"}, "s": {"B": b"f"}}

_SCHEMA: Final[Mapping[str, Any]] = {
    "KeySchema": [{"AttributeName": "p", "KeyType": "HASH"}, {"AttributeName": "s", "KeyType": "RANGE"}],
    "AttributeDefinitions": [
        {"AttributeName": "p", "AttributeType": "B"},
        {"AttributeName": "s", "AttributeType": "B"},
    ],
    "BillingMode": "PAY_PER_REQUEST",
}


async def probe(link: DynamoClient, table: str) -> Mapping[str, Any] | None:
    """Read the number of the format, and learn the time along with it: half a unit of read capacity."""
    answer = await link.ask("get_item", {"TableName": table, "Key": _KEY})
    return answer.get("Item")


async def prepare(link: DynamoClient, options: DynamoOptions) -> None:
    """Make sure that the table is there and can be used; create it if that is allowed."""
    try:
        found = await probe(link, options.table)
    except StoreGoneError as missing:
        if not options.create:
            raise UnsuitableStoreError(options.name, what_to_type(options)) from missing
        found = await _create(link, options)
    except (UnsuitableStoreError, StoreUnavailableError):
        raise
    except StoreError as error:  # it has other keys: the service says which do not match
        raise UnsuitableStoreError(options.name, f"the table is not Standfast's: {error.problem}") from error
    if found is None:
        item = {**_KEY, "n": {"N": str(FORMAT)}}
        request = {"TableName": options.table, "Item": item, "ConditionExpression": "attribute_not_exists(n)"}
        with contextlib.suppress(ConditionError):  # another process was faster
            await link.ask("put_item", request)
    elif int(found["n"]["N"]) > FORMAT:
        raise UnsuitableStoreError(
            options.name, f"the table has format {found['n']['N']}, and this release knows {FORMAT}; upgrade standfast"
        )


async def _create(link: DynamoClient, options: DynamoOptions) -> Mapping[str, Any] | None:
    try:
        await link.ask("create_table", {"TableName": options.table, **_SCHEMA})
    except StoreError as error:
        if not _says(error, "ResourceInUseException"):  # another process was faster
            raise
    found = await _until_active(link, options)
    remove_dead = {"Enabled": True, "AttributeName": "t"}
    try:
        await link.ask("update_time_to_live", {"TableName": options.table, "TimeToLiveSpecification": remove_dead})
    except StoreError as error:
        if not _says(error, "ValidationException"):  # another process was faster
            raise
    return found


async def _until_active(link: DynamoClient, options: DynamoOptions) -> Mapping[str, Any] | None:
    deadline = monotonic() + CREATED_WITHIN
    while monotonic() < deadline:
        try:
            return await probe(link, options.table)
        except StoreGoneError:
            await asyncio.sleep(LOOK_EVERY)
    raise StoreUnavailableError(options.name, f"the table was created, but not ready within {CREATED_WITHIN:g} s")


def _says(error: StoreError, code: str) -> bool:
    return isinstance(error.__cause__, ClientError) and code_of(error.__cause__) == code


def what_to_type(options: DynamoOptions) -> str:
    """Return what to do about a table that is missing."""
    where = f" --region {options.region}" if options.region else ""
    return (
        f"there is no table {options.table!r}. Open it once with create=true in the URL, or type: "
        f"aws dynamodb create-table{where} --table-name {options.table} --billing-mode PAY_PER_REQUEST"
        " --attribute-definitions AttributeName=p,AttributeType=B AttributeName=s,AttributeType=B"
        " --key-schema AttributeName=p,KeyType=HASH AttributeName=s,KeyType=RANGE"
        f" && aws dynamodb wait table-exists{where} --table-name {options.table}"
        f" && aws dynamodb update-time-to-live{where} --table-name {options.table}"
        " --time-to-live-specification Enabled=true,AttributeName=t"
    )
