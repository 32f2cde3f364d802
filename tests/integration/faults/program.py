"""A program that commits, updates, holds a lock and runs a workflow, and remembers what it was told."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from standfast.errors import OutcomeUnknownError, StandfastError, StoreBusyError, StoreUnavailableError
from standfast.keys import RecordKey
from standfast.stores import Commit, Decision, Delete, Put

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.stores import Snapshot, Store


class Ledger:
    """What a program was told of its writes, and whether that is what the store has."""

    def __init__(self) -> None:
        self.namespace = f"faults-{uuid.uuid4().hex}"
        self.created: dict[RecordKey, int] = {}
        self.refused: set[RecordKey] = set()
        self.unknown: set[RecordKey] = set()
        self.counted = 0
        self.maybe_counted = 0
        self.problems: list[str] = []

    def key(self, *parts: str) -> RecordKey:
        """Return a key of this program's own."""
        return RecordKey(self.namespace, *parts)

    async def create(self, store: Store, name: str) -> None:
        """Create a record that nobody else creates."""
        key = self.key(name)
        try:
            verdict = await store.commit(Put(key, name.encode()))
        except OutcomeUnknownError:
            self.unknown.add(key)
        except (StoreUnavailableError, StoreBusyError):
            self.refused.add(key)
        else:
            if isinstance(verdict, Commit):
                self.created[key] = verdict.versions[key]
            else:
                self.problems.append(f"{name}: the only one who creates it is told that it exists: {verdict}")

    async def replace(self, store: Store, name: str) -> None:
        """Replace and delete what was created, if it was."""
        key = self.key(name)
        version = self.created.pop(key, 0)
        if not version:
            return
        try:
            verdict = await store.commit(Delete(key, version))
        except OutcomeUnknownError:
            self.unknown.add(key)
        except (StoreUnavailableError, StoreBusyError):
            self.created[key] = version
        else:
            if isinstance(verdict, Commit):
                self.refused.add(key)  # gone again
            else:
                self.problems.append(f"{name}: nobody else deletes it, and it is told: {verdict}")

    async def count(self, store: Store) -> None:
        """Add one to a number that all share."""
        key = self.key("count")

        def decide(seen: Snapshot) -> Decision[int]:
            record = seen.get(key)
            number = 1 + (0 if record is None else int(record.value))
            return Decision(number, (Put(key, b"%d" % number, seen.version(key)),))

        try:
            await store.update([key], decide)
        except OutcomeUnknownError:
            self.maybe_counted += 1
        except (StoreUnavailableError, StoreBusyError):
            return
        else:
            self.counted += 1

    async def compare(self, store: Store) -> None:
        """Insist that the store has what was acknowledged, nothing that was refused, and no doubled commit."""
        assert self.problems == []
        keys = [*self.created, *self.refused, *self.unknown]
        for first in range(0, len(keys), 50):
            seen = await store.read(*keys[first : first + 50])
            for key in keys[first : first + 50]:
                if key in self.created:
                    assert seen.version(key) == self.created[key], f"{key} was acknowledged"
                elif key in self.refused:
                    assert seen.get(key) is None, f"{key} was said not to be written"
        record = (await store.read(self.key("count"))).get(self.key("count"))
        number = 0 if record is None else int(record.value)
        assert self.counted <= number <= self.counted + self.maybe_counted


async def write_a_little(store: Store, ledger: Ledger) -> None:
    """Write in every way, a few at a time: what a fault can strike."""
    for name in "ab":
        await ledger.create(store, name)
    await asyncio.gather(*(ledger.create(store, f"group-{number}") for number in range(5)))
    await asyncio.gather(*(ledger.count(store) for _ in range(3)))
    await ledger.replace(store, "a")
    await ledger.count(store)
    await ledger.create(store, "z")


async def insistently(action: Callable[[], Awaitable[object]], tries: int = 200) -> None:
    """Do something until the store lets it, as an application would that cannot do without."""
    for _ in range(tries):
        try:
            await action()
        except (StoreUnavailableError, OutcomeUnknownError, StoreBusyError):
            await asyncio.sleep(0.05)
        except StandfastError:
            raise
        else:
            return
    raise AssertionError("the store never came back")
