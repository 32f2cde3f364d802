"""A backend with faults: for testing what common code makes of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Final, final

from standfast.errors import StoreError
from standfast.testing.faults import ROUGH, Dice, Fate, Faults, lost, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from standfast.keys import RecordKey
    from standfast.stores.backend import Applied, Backend, Batch, Ear
    from standfast.stores.protocol import Capabilities, Snapshot, Wake


@final
class FaultyBackend:
    """A backend that does what another one does, except when its seed says that something goes wrong.

    ``GroupedStore(FaultyBackend(backend, seed=7))`` shows how the common code settles unknown outcomes: its callers
    see hardly any. To see them, wrap the store instead: :class:`FaultyStore`.
    """

    def __init__(self, backend: Backend, *, seed: int, faults: Faults = ROUGH) -> None:
        self._backend: Final = backend
        self._faults: Final = faults
        self._next_seed: Final = itertools.count(seed + 1)
        self._dice: Final = Dice(faults, seed)
        self._turn: Final = asyncio.Lock()  # a late landing does not meet another call inside the backend
        self._fates: Final[dict[str, Fate]] = {}
        self._late: Final[set[asyncio.Task[None]]] = set()

    @property
    def capabilities(self) -> Capabilities:
        """What the backend underneath can do."""
        return self._backend.capabilities

    @property
    def inner(self) -> Backend:
        """The backend underneath, which has no faults."""
        return self._backend

    @property
    def name(self) -> str:
        """The name of the backend underneath."""
        return self._backend.name

    # --- writing -----------------------------------------------------------------------------------------------

    def apply_now(self, batch: Batch) -> Applied | None:
        """Apply the batch on the loop, unless something is to go wrong with it."""
        fate = self._fates[batch.attempt] = self._dice.fate()
        if fate is not Fate.FINE or self._turn.locked() or self._dice.happens(self._faults.delay):
            return None
        applied = self._backend.apply_now(batch)
        if applied is not None:
            del self._fates[batch.attempt]
        return applied

    async def apply(self, batch: Batch) -> Applied:
        """Apply the batch, or not, or tell a lie about it."""
        fate = self._fates.pop(batch.attempt, None) or self._dice.fate()
        await self._dice.linger()
        if fate is Fate.REFUSED:
            raise refusal(self.name, "commit")
        if fate is Fate.LATE:
            self._start(self._land_late(batch))
        if fate in (Fate.LATE, Fate.REQUEST_LOST):
            raise lost(self.name, batch.attempt)
        async with self._turn:
            applied = await self._backend.apply(batch)
        if fate is Fate.REPLY_LOST:
            raise lost(self.name, batch.attempt)
        return applied

    async def _land_late(self, batch: Batch) -> None:
        await asyncio.sleep(self._dice.moment())
        async with self._turn:
            with contextlib.suppress(StoreError):  # it came too late: its attempt has been closed
                await self._backend.apply(batch)

    async def settle(self, attempt: str) -> Applied | None:
        """Close an attempt."""
        await self._dice.before_settling(self.name, attempt)
        async with self._turn:
            return await self._backend.settle(attempt)

    # --- reading -----------------------------------------------------------------------------------------------

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records, perhaps later or not at all."""
        await self._dice.before_reading(self.name)
        return await self._backend.read(keys)

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of a range, perhaps later or not at all."""
        await self._dice.before_reading(self.name)
        return await self._backend.scan(start, end, limit=limit, reverse=reverse)

    # --- hints -------------------------------------------------------------------------------------------------

    def listen(self, prefixes: tuple[RecordKey, ...], ear: Ear) -> Callable[[], None]:
        """Listen, with some hints lost, doubled or late."""
        return self._backend.listen(prefixes, _FaultyEar(ear, self._dice, self._faults))

    def ring(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:
        """Send hints; what becomes of them is decided where they arrive."""
        self._backend.ring(changed, wakes)

    # --- life --------------------------------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def another(self) -> FaultyBackend:
        """Open another handle, with the same faults in another order."""
        return FaultyBackend(await self._backend.another(), seed=next(self._next_seed), faults=self._faults)

    def lifeline(self) -> str:
        """Return the lifeline of the backend underneath."""
        return self._backend.lifeline()

    def is_severed(self, lifeline: str) -> bool:
        """Tell what the backend underneath tells."""
        return self._backend.is_severed(lifeline)

    async def aclose(self) -> None:
        """Wait for what lands late, then close the backend underneath."""
        await asyncio.gather(*self._late)
        await self._backend.aclose()


@final
class _FaultyEar:
    """An ear that mishears."""

    __slots__ = ("_dice", "_ear", "_faults")

    def __init__(self, ear: Ear, dice: Dice, faults: Faults) -> None:
        self._ear, self._dice, self._faults = ear, dice, faults

    def hear(self, about: RecordKey | None) -> None:
        """Pass a hint on: not at all, once or twice, now or later."""
        if self._dice.happens(self._faults.drop_hint):
            return
        if self._dice.happens(self._faults.double_hint):
            self._ear.hear(about)
        if self._dice.happens(self._faults.delay_hint):
            asyncio.get_running_loop().call_later(self._dice.moment(), self._ear.hear, about)
        else:
            self._ear.hear(about)
