"""Deleting many runs at once: what lies beside each other is read together, and goes in few commits.

A run can leave records of a dozen kinds, and leaves few of them. Asking for each kind and each run costs more than the
run did. So runs are taken in the order of their ids, some at a time, and each kind is scanned once from the first of
them to the last. A run that is not simple (it has children or a parent, goes on as another one, has left more than a
page) is left to :func:`standfast.workflows.retention.purge`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from standfast.clock import Instant, later
from standfast.stores.protocol import Conflict, Delete, Put
from standfast.workflows.records import HEADERS, ONCES, RUN_STATES, Found, Once, RunKeys, gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Record

TOGETHER: Final = 24
"""How many runs are looked at together."""

FEW: Final = 8 * TOGETHER
"""How many records of one kind are read for them: those of other runs that lie between them included."""

KINDS: Final = (
    ("step",),
    ("inbox",),
    ("answer",),
    ("signalled",),
    ("updated",),
    ("state", "run"),
    ("state", "execution"),
)
"""What a run may leave, by the beginning of its keys; its id comes next."""

MOST_LEFT: Final = 40
"""How many records of one run go with others in one commit."""


async def purge_together(
    scope: Scope, run_ids: Sequence[str], *, takes: Callable[[Found], bool], forget_after: float | None = None
) -> tuple[int, list[str]]:
    """Delete the simple ones of some runs; return how many that were, and the ids of those that are not simple.

    Args:
        scope: Where the runs lie.
        run_ids: Those that are meant.
        takes: Whether a run is still meant, as it was read just now. It must have ended.
        forget_after: Seconds for which its idempotency key and the count of its id stay; None: for ever.
    """
    names = sorted(set(run_ids))
    purged, others = 0, list[str]()
    for start in range(0, len(names), TOGETHER):
        some = _Neighbours(scope, names[start : start + TOGETHER])
        await some.read()
        purged += await some.purge(takes, forget_after)
        others += some.others
    return purged, others


@final
class _Neighbours:
    """Some runs that lie near each other, and all that was found of them."""

    def __init__(self, scope: Scope, names: Sequence[str]) -> None:
        self._scope, self._names = scope, names
        self._left: Final[dict[str, list[Record]]] = {name: [] for name in names}
        self._runs: Final[dict[str, Found]] = {}
        self._seen: Final[dict[RecordKey, Record]] = {}
        self._at = Instant(0)
        self.others: Final[list[str]] = []

    async def read(self) -> None:
        """Read all that there is of them, and sort out those that are not simple."""
        states = await self._states()
        await self._read([RunKeys(self._scope, name).header for name in states])
        for name, record in states.items():
            header = self._seen.get(RunKeys(self._scope, name).header)
            if header is not None:
                run = Found(name, HEADERS.decode(header.value), RUN_STATES.decode(record.value), record.version)
                self._runs[name] = run
                if not _is_simple(run):
                    self._sort_out(name)
        for kind in KINDS:
            await self._scan(kind)
        await self._read([key for run in self._runs.values() for key in self._beside(run)])

    async def _states(self) -> dict[str, Record]:
        """Return the state of each, but of those that have children: these are named after them, and lie behind."""
        found: dict[str, Record] = {}
        kind, parents = self._scope.key("life"), set[str]()
        behind = {name: f"{name}/" for name in self._names}  # right after its children
        page = await self._scope.scan(kind.child(self._names[0]), kind.child(max(behind.values())), limit=FEW)
        self._at = page.at
        for key, record in page.records.items():
            name = key.parts[-1]
            if name in self._left:
                found[name] = record
            parents.update(name[:place] for place, letter in enumerate(name) if letter == "." and name[:place] in found)
        last = None if page.more is None else next(reversed(page.records)).parts[-1]
        for name in self._names:
            if name in parents or (last is not None and behind[name] > last):
                found.pop(name, None)
                self._sort_out(name)
        return found

    async def _scan(self, kind: tuple[str, ...]) -> None:
        """Find what the runs have left of one kind; those that were out of reach, or have left much, are sorted out."""
        if not self._runs:
            return
        base, names = self._scope.key(*kind), sorted(self._runs)
        place = 3 + len(kind) - 1  # of the run's id among the parts of a key
        page = await self._scope.scan(base.child(names[0]), base.child(names[-1]).within()[1], limit=FEW)
        for key, record in page.records.items():
            if (left := self._left.get(key.parts[place])) is not None:
                left.append(record)
        last = None if page.more is None else next(reversed(page.records)).parts[place]
        for name in names:
            if (last is not None and name >= last) or len(self._left[name]) > MOST_LEFT:
                self._sort_out(name)

    async def _read(self, keys: Sequence[RecordKey]) -> None:
        most = self._scope.at_most(100)
        for start in range(0, len(keys), most):
            seen = await self._scope.read(*keys[start : start + most])
            self._seen.update(seen.records)

    def _beside(self, run: Found) -> Iterator[RecordKey]:
        """Yield where single records of a run may lie, besides its state and its header."""
        keys = RunKeys(self._scope, run.id)
        yield from (keys.counter, keys.progress, keys.ready, *keys.listed(run.state, run.header))
        if run.state.until is not None:
            yield keys.timer(run.state.until)
        if run.header.idempotency_key:
            yield self._scope.key("once", run.header.idempotency_key)

    def _sort_out(self, name: str) -> None:
        if name not in self.others:
            self.others.append(name)
        self._runs.pop(name, None)

    # --- deleting ----------------------------------------------------------------------------------------------------

    async def purge(self, takes: Callable[[Found], bool], forget_after: float | None) -> int:
        """Delete those that are left, in as few commits as they fit in; return how many that were."""
        until = None if forget_after is None else later(self._at, forget_after)
        most, purged = self._scope.at_most(100), 0
        changes: list[Change] = []
        names: list[str] = []
        for run in [each for each in self._runs.values() if each.state.has_ended and takes(each)]:
            own = list(self._changes(run, until))
            if len(own) > most:
                self._sort_out(run.id)
                continue
            if len(changes) + len(own) > most:
                purged += await self._commit(names, changes)
                changes, names = [], []
            changes += own
            names.append(run.id)
        return purged + (await self._commit(names, changes) if names else 0)

    async def _commit(self, names: Sequence[str], changes: Sequence[Change]) -> int:
        if not isinstance(await self._scope.commit(*changes), Conflict):
            return len(names)
        for name in names:  # one of them has changed: each is looked at again
            self._sort_out(name)
        return 0

    def _changes(self, run: Found, until: Instant | None) -> Iterator[Change]:
        keys = RunKeys(self._scope, run.id)
        header = self._seen[keys.header]
        yield Delete(keys.state, run.state_version)
        left = gone(run.header)
        if left is None:
            yield Delete(keys.header, header.version)
        else:
            yield Put(keys.header, HEADERS.encode_own(left), header.version, until)
        yield from (Delete(record.key, record.version) for record in self._left[run.id])
        for key in self._beside(run):
            record = self._seen.get(key)
            if record is None:
                continue
            if key.parts[2] == "once":
                yield Put(key, ONCES.encode_own(Once(run.id, purged=True)), record.version, until)
            else:
                yield Delete(key, record.version)


def _is_simple(run: Found) -> bool:
    """Return True if nothing else has to be asked about before the run can go, and nothing of it has begun to."""
    is_alone = not run.header.parent and not run.header.continued_from and not run.state.continues
    return run.state.has_ended and is_alone and not run.state.leaving and not run.state.purging
