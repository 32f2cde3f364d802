"""The shared records of the third scene: accounts, receipts, and a ledger that lies outside the store.

Every transfer changes two accounts and leaves a receipt, all in one commit. A process writes a transfer down in its
ledger, a plain file, only after Standfast has said that it is durable. So the ledger knows what was promised.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from standfast.stores import Commit, Decision, Put

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from standfast import Space
    from standfast.keys import RecordKey
    from standfast.stores import Record, Snapshot

ACCOUNTS: Final = 50
OPENING_BALANCE: Final = 20_000
TOTAL: Final = ACCOUNTS * OPENING_BALANCE


@dataclass(frozen=True)
class Transfer:
    """Move an amount from one account to another."""

    receipt: str
    source: int
    target: int
    amount: int

    def as_bytes(self) -> bytes:
        """Return what its receipt says."""
        return f"{self.source} {self.target} {self.amount}".encode()

    @classmethod
    def from_record(cls, record: Record) -> Transfer:
        """Read a receipt."""
        source, target, amount = record.value.split()
        return cls("/".join(record.key.parts[3:]), int(source), int(target), int(amount))


class Bank:
    """Accounts in a space."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.accounts: Final = tuple(space.key("account", str(number)) for number in range(ACCOUNTS))
        self.lost_races = 0

    async def found(self) -> None:
        """Create the accounts."""
        verdict = await self.space.commit(*(Put(key, str(OPENING_BALANCE).encode()) for key in self.accounts))
        assert isinstance(verdict, Commit)

    async def total(self) -> int:
        """Read all accounts in one snapshot and add them up."""
        snapshot = await self.space.read(*self.accounts)
        return sum(int(record.value) for record in snapshot.records.values())

    def _keys(self, transfer: Transfer) -> tuple[RecordKey, RecordKey, RecordKey]:
        receipt = self.space.key("receipt", *transfer.receipt.split("/"))
        return self.accounts[transfer.source], self.accounts[transfer.target], receipt

    async def move_by_commit(self, transfer: Transfer) -> None:
        """Read, then commit with guards; a lost race comes back as the present records, so try again with those."""
        source, target, receipt = self._keys(transfer)
        records: dict[RecordKey, Record | None] = dict((await self.space.read(source, target)).records)
        while True:
            verdict = await self.space.commit(*changes(transfer, records, source, target, receipt))
            if isinstance(verdict, Commit):
                return
            self.lost_races += 1
            records.update(verdict.current)

    async def move_by_update(self, transfer: Transfer) -> None:
        """Hand over a pure function; it runs on the newest records, and cannot lose a race."""
        source, target, receipt = self._keys(transfer)

        def decide(seen: Snapshot) -> Decision[None]:
            return Decision(None, changes(transfer, dict(seen.records), source, target, receipt))

        await self.space.update((source, target, receipt), decide)

    async def transfers(self) -> list[Transfer]:
        """Read every receipt, page by page."""
        start, end = self.space.key("receipt").within()
        found: list[Transfer] = []
        while True:
            page = await self.space.scan(start, end, limit=1000)
            found += [Transfer.from_record(record) for record in page.records.values()]
            if page.more is None:
                return found
            start = page.more


def changes(
    transfer: Transfer,
    records: dict[RecordKey, Record | None],
    source: RecordKey,
    target: RecordKey,
    receipt: RecordKey,
) -> tuple[Put, Put, Put]:
    """Return what a transfer does, guarded at the versions of the records it was worked out from."""
    payer, payee = records[source], records[target]
    assert payer is not None
    assert payee is not None
    return (
        Put(source, str(int(payer.value) - transfer.amount).encode(), payer.version),
        Put(target, str(int(payee.value) + transfer.amount).encode(), payee.version),
        Put(receipt, transfer.as_bytes()),
    )


def any_transfer(receipt: str, chance: random.Random) -> Transfer:
    """Make up a transfer between two different accounts."""
    source, target = chance.sample(range(ACCOUNTS), 2)
    return Transfer(receipt, source, target, chance.randint(1, 99))


class Ledger:
    """A file to which one process appends what was acknowledged, outside the store and past any crash of it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, receipt: str) -> None:
        """Append a receipt and when it was acknowledged; it survives the death of this process."""
        os.write(self._descriptor, f"{time.monotonic_ns()} {receipt}\n".encode())


def read_ledger(path: Path) -> dict[str, int]:
    """Return the receipts in a ledger, each with the nanosecond at which it was acknowledged."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {receipt: int(at) for at, receipt in lines}
