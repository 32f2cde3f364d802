"""Commits of which some changes hold whatever the record is at the moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.errors import StoreBusyError
from standfast.stores.protocol import Conflict, Delete, Put

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Commit

TRIES: Final = 50


async def commit_over(
    scope: Scope,
    changes: Sequence[Change],
    over: Mapping[RecordKey, bytes | None],
    seen: Mapping[RecordKey, int] | None = None,
) -> Commit | Conflict:
    """Commit ``changes``, and write ``over`` whatever is there; None deletes it.

    Args:
        scope: Where.
        changes: What must hold as it is said; if it does not, that is the answer.
        over: What is written over anything.
        seen: The versions that those records were last seen with; what is missing is read.
    """
    versions = dict(seen or {})
    if missing := [key for key in over if key not in versions]:
        snapshot = await scope.read(*missing)
        versions.update({key: snapshot.version(key) for key in missing})
    for _ in range(TRIES):
        writes = [change for key, value in over.items() for change in _write(key, value, versions[key])]
        answer = await scope.commit(*changes, *writes)
        if not isinstance(answer, Conflict) or any(key not in over for key in answer.current):
            return answer
        for key, record in answer.current.items():
            versions[key] = 0 if record is None else record.version
    raise StoreBusyError("a run", f"its records changed {TRIES} times while it was written")


def _write(key: RecordKey, value: bytes | None, version: int) -> list[Change]:
    if value is not None:
        return [Put(key, value, version)]
    return [Delete(key, version)] if version else []
