"""Writes batches: each is planned on cached records and written under guards, until what it was planned on is true."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import structs

from standfast.clock import Instant
from standfast.errors import AttemptClosedError, InvalidChangeError, OutcomeUnknownError, StoreBusyError, StoreError
from standfast.stores.backend import Applied, ChoiceRider, Deferred, UpdateRider, WorkRider
from standfast.stores.protocol import Delete, Worked
from standfast.stores.remote.choices import ChoicePlan, has_choice
from standfast.stores.remote.planner import DEFERRED, RecordCache, plan, plan_independent, wants_reserve
from standfast.stores.remote.server import ChoiceIntent, ChoosingServer, Intent, SendingServer, WriteRefused
from standfast.stores.validation import in_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from standfast.keys import RecordKey
    from standfast.stores.backend import Outcome, Rider, RiderBatch
    from standfast.stores.protocol import Alternative, Capabilities, Record, Wake
    from standfast.stores.remote.planner import WritePlan
    from standfast.stores.remote.server import ChoicesMade, DatabaseServer, Landed, Message, Row, Written

    Arrive = Callable[[tuple[Applied, int] | Exception | None], None]

    Address = Callable[[Sequence[RecordKey], Sequence[Wake], Sequence[Row], Sequence[RecordKey]], tuple[Message, ...]]
    AddressEach = Callable[[Sequence[Alternative]], tuple[tuple[Message, ...], ...]]
    """Returns the messages of a commit, by what it changes, what it notifies of, what it writes and what it deletes."""


# --- writing -------------------------------------------------------------------------------------------------------

TOGETHER: Final = 3
"""After losing this many races a batch sends its first rider alone: the fewer keys, the fewer to race for."""

LOSSES: Final = 60
"""After losing this many races in a row a rider is told that its keys are too busy."""

UNKNOWN_GENERATION: Final = -2
"""Unlike any: the list of topics is fetched, and what was left out is sent."""

PAUSE: Final = 0.0005
LONGEST_PAUSE: Final = 0.05


@final
class RemoteWriter:
    """Applies batches to one server, for one handle."""

    def __init__(
        self,
        server: DatabaseServer,
        limits: Capabilities,
        address: Address,
        address_each: AddressEach,
        cache: RecordCache,
        origin: str = "",
    ) -> None:
        self._server, self._limits, self._origin = server, limits, origin
        self._address, self._address_each = address, address_each
        self.cache: Final = cache
        self._choosing: Final = server if isinstance(server, ChoosingServer) else None
        self._sending: Final = server if isinstance(server, SendingServer) else None
        self._random: Final = random.Random()  # noqa: S311 -- spreads out who tries again when
        self._sent: tuple[str, WritePlan | ChoicePlan, int, bytes] | None = None
        self._known: tuple[str, Applied] | None = None
        self._closed: str | None = None
        self._refused: tuple[str, WritePlan, WriteRefused] | None = None
        self._handles: Final[set[str]] = set()
        self._doubtful: Final[set[str]] = set()

    # --- applying --------------------------------------------------------------------------------------------

    async def apply(self, batch: RiderBatch) -> tuple[Applied, int]:
        """Apply a batch; also return which generation of topics the server has."""
        if self._closed == batch.attempt:
            raise AttemptClosedError(self._server.name, f"attempt {batch.attempt} was settled as never written")
        try:
            if has_choice(batch.riders):
                return await self._choose(batch)
            return await self._apply(batch)
        except (OutcomeUnknownError, asyncio.CancelledError):
            self._doubtful.add(split(batch.attempt)[0])
            raise

    def apply_soon(self, batch: RiderBatch, arrive: Arrive) -> asyncio.Future[Any] | None:
        """Send a batch that needs no look before it is written; return None if it is to be applied as ever.

        ``arrive`` is called with what :meth:`apply` would have returned or raised; None: it is to be applied.
        """
        server = self._sending
        if server is None or self._closed == batch.attempt or type(batch.riders[0]) is WorkRider:
            return None
        if type(batch.riders[0]) is ChoiceRider or has_choice(batch.riders):
            chosen, choices = self._choice_intent(batch)

            def take_choices(made: ChoicesMade | Exception | None) -> None:
                if made is None or isinstance(made, Exception):
                    self._fail_soon(made, batch, chosen.keys)
                    arrive(made)
                else:
                    arrive(self._chosen(batch, chosen, made))

            return server.choose_soon(choices, take_choices)
        plan_ = plan_independent(batch.riders, self.cache, self.cache.now(), self._limits)
        if plan_ is None or plan_.unknown or not plan_.writes or self._is_large(plan_):
            return None

        def take(answer: Written | WriteRefused | Exception | None) -> None:
            if answer is None or isinstance(answer, Exception):
                self._fail_soon(answer, batch, plan_.changed)
                arrive(None if isinstance(answer, InvalidChangeError) and len(batch.riders) > 1 else answer)
            elif isinstance(answer, WriteRefused):
                self._refused = (batch.attempt, plan_, answer)
                arrive(None)
            else:
                arrive(self._written(batch, plan_, answer))

        return server.write_soon(self._intent(batch, plan_), take)

    def _fail_soon(self, error: Exception | None, batch: RiderBatch, keys: Iterable[RecordKey]) -> None:
        if isinstance(error, OutcomeUnknownError):
            self.cache.forget(keys)
            self._doubtful.add(split(batch.attempt)[0])

    async def _apply(self, batch: RiderBatch) -> tuple[Applied, int]:
        if isinstance(batch.riders[0], WorkRider):
            return await self._work(batch, batch.riders[0])
        race = _Race(batch.riders)
        race.at = self.cache.now()
        independent, early = self._first_plan(batch, race.at)
        if independent is None and (count := wants_reserve(batch.riders)):
            namespace = next(iter(keys_updated(batch.riders))).namespace
            race.reserved = await self._server.reserve(count, namespace)
        while True:
            try:
                plan_ = independent or await self._folded(race)
                independent = None
                if plan_.unknown:
                    await self._look(race, sorted(plan_.unknown))
                    done = None
                elif plan_.writes:
                    done = await self._write(batch, race, plan_, early)
                else:
                    done = await self._only_look(batch, race, plan_)
                early = None
                if done is None:
                    await self._pause(race)
            except (InvalidChangeError, StoreBusyError) as error:
                if len(race.riders) == len(batch.riders):
                    raise
                done = _padded(Applied((error,)), len(batch.riders)), 0  # it was tried alone; the others ride again
            if done is not None:
                return done

    def _first_plan(self, batch: RiderBatch, at: Instant | None) -> tuple[WritePlan | None, WriteRefused | None]:
        """Return the plan of a batch if it needs no fold, and what the server has answered if it was sent already."""
        refused, self._refused = self._refused, None
        if refused is not None and refused[0] == batch.attempt:
            return refused[1:]
        return plan_independent(batch.riders, self.cache, at, self._limits), None

    async def _folded(self, race: _Race) -> WritePlan:
        if race.at is None:
            await self._look(race, _some_keys(race.riders))
        at = race.at or Instant(0)
        return plan(race.riders, at, self.cache, race.fresh, self._limits, race.reserved, race.shown)

    async def _look(self, race: _Race, keys: Sequence[RecordKey]) -> None:
        seen = await self._server.read(keys)
        self.cache.learn_time(seen.at)
        race.learn({key: seen.get(key) for key in keys}, keys, seen.at)

    async def _only_look(self, batch: RiderBatch, race: _Race, plan_: WritePlan) -> tuple[Applied, int] | None:
        """Answer a batch that writes nothing: what it rests on is compared with what is there."""
        at = race.at
        if plan_.guards:
            keys = list(plan_.guards)
            seen = await self._server.read(keys)
            self.cache.learn_time(seen.at)
            if any(seen.version(key) != version for key, version in plan_.guards.items()) or not in_window(
                seen.at, plan_.after, plan_.before
            ):
                race.lose({key: seen.get(key) for key in keys}, keys, seen.at)
                return None
            at = seen.at
        assert at is not None  # noqa: S101 -- for the type checker: a plan was made at some time
        if plan_.wakes:
            await self._server.send(self._address((), plan_.wakes, (), ()))
        return self._answer(batch, plan_.applied(at, plan_.exact)), 0

    async def _write(
        self, batch: RiderBatch, race: _Race, plan_: WritePlan, early: WriteRefused | None
    ) -> tuple[Applied, int] | None:
        """Write a plan; what the server has answered to it already is ``early``."""
        if len(race.riders) > 1 and self._is_large(plan_):
            race.riders = race.riders[: len(race.riders) // 2]  # what updates write is known only now; the others wait
            return None
        intent = self._intent(batch, plan_)
        try:
            answer = early or await self._server.write(intent)
        except OutcomeUnknownError:
            self.cache.forget(plan_.changed)
            raise
        except InvalidChangeError:  # it is too large for the server: by itself, each may fit
            if len(race.riders) == 1:
                raise
            race.riders = race.riders[:1]
            return None
        if isinstance(answer, WriteRefused):
            self.cache.learn_time(answer.at)
            self.cache.learn(answer.current)
            if answer.stale:  # the guards may not have been looked at
                race.lose(answer.current, answer.current, answer.at)
                race.reserved = ()
            else:
                race.lose({**plan_.confirmed, **answer.current}, plan_.guards, answer.at)
            return None
        return self._written(batch, plan_, answer)

    def _is_large(self, plan_: WritePlan) -> bool:
        return sum([len(row.value) for row in plan_.puts]) > 2 * self._server.batching.max_bytes

    def _intent(self, batch: RiderBatch, plan_: WritePlan) -> Intent:
        handle, number, _ = split(batch.attempt)
        intent = Intent(
            handle,
            number,
            plan_.guards,
            plan_.puts,
            plan_.deletes,
            plan_.draws,
            plan_.exact,
            plan_.after,
            plan_.before,
            self._address(plan_.changed, plan_.wakes, plan_.puts, plan_.deletes),
        )
        self._sent = (batch.attempt, plan_, len(batch.riders), intent.namespace)
        self._handles.add(handle)
        return intent

    def _written(self, batch: RiderBatch, plan_: WritePlan, answer: Written) -> tuple[Applied, int]:
        self.cache.learn_time(answer.at)
        if updated := keys_updated(plan_.riders):
            records = plan_.records(answer.versions)
            self.cache.learn({key: record for key, record in records.items() if key in updated})
        return self._answer(batch, plan_.applied(answer.at, answer.versions)), answer.generation

    def _answer(self, batch: RiderBatch, applied: Applied) -> Applied:
        if len(applied.outcomes) < len(batch.riders):
            applied = _padded(applied, len(batch.riders))
        if applied.changed:
            self._known = (batch.attempt, applied)
        return applied

    async def _pause(self, race: _Race) -> None:
        if race.losses > LOSSES:
            raise StoreBusyError(self._server.name, f"others changed the same records {LOSSES} times in a row")
        if race.losses > TOGETHER:
            longest = min(LONGEST_PAUSE, PAUSE * 2 ** (race.losses - TOGETHER))
            await asyncio.sleep(self._random.uniform(0, longest))
            race.at = None  # look again: what the server showed is old by now, and would lose again

    async def _choose(self, batch: RiderBatch) -> tuple[Applied, int]:
        """Let the server choose, for commits too: one alternative each.

        Where nothing held, and something does by the time of the server's answer, the rider rides again.
        """
        server = self._choosing
        assert server is not None  # noqa: S101 -- for the type checker: its capabilities say so
        plan_, intent = self._choice_intent(batch)
        for losses in range(LOSSES):
            try:
                made = await server.choose(intent)
            except OutcomeUnknownError:
                self.cache.forget(plan_.keys)
                raise
            if (chosen := self._chosen(batch, plan_, made)) is not None:
                return chosen
            if losses >= TOGETHER:
                await asyncio.sleep(self._random.uniform(0, min(LONGEST_PAUSE, PAUSE * 2 ** (losses - TOGETHER))))
        raise StoreBusyError(self._server.name, f"others changed the same records {LOSSES} times in a row")

    def _choice_intent(self, batch: RiderBatch) -> tuple[ChoicePlan, ChoiceIntent]:
        plan_ = ChoicePlan(batch.riders)
        handle, number, namespace = split(batch.attempt)
        messages = self._address_each([each for choice in plan_.choices for each in choice])
        namespace = namespace or plan_.namespace
        intent = ChoiceIntent(handle, number, plan_.choices, messages, self._origin, namespace)
        self._sent = (batch.attempt, plan_, len(batch.riders), intent.namespace)
        self._handles.add(handle)
        return plan_, intent

    def _chosen(self, batch: RiderBatch, plan_: ChoicePlan, made: ChoicesMade) -> tuple[Applied, int] | None:
        """Return what the riders are answered; None: all of them are to ride again."""
        self.cache.learn_time(made.answers[-1].at)
        applied = plan_.answered(made.answers)
        outcomes = applied.outcomes
        if type(outcomes[0]) is Deferred and {*map(type, outcomes)} == {Deferred}:
            return None
        self.cache.forget(applied.changed)
        return self._answer(batch, applied), made.generation

    async def _work(self, batch: RiderBatch, rider: WorkRider) -> tuple[Applied, int]:
        handle, number, _ = split(batch.attempt)
        self._handles.add(handle)
        outcome = await self._server.work(rider, handle, number, lambda outcome: self._worked(batch, rider, outcome))
        applied = self._worked(batch, rider, outcome)
        if not isinstance(outcome, Worked):
            return applied, 0
        messages = self._address(applied.changed, applied.wakes, (), ())
        if messages:
            with contextlib.suppress(StoreError):  # then polling finds it
                await self._server.send(messages)
        return applied, UNKNOWN_GENERATION

    def _worked(self, batch: RiderBatch, rider: WorkRider, outcome: Outcome) -> Applied:
        self.cache.forget(change.key for change in rider.commit.changes)
        applied = Applied((outcome,), ())
        if isinstance(outcome, Worked):
            deleted = (change.key for change in rider.commit.changes if isinstance(change, Delete))
            changed = (*outcome.versions, *deleted)
            self.cache.forget(changed)
            applied = Applied((outcome,), changed, rider.commit.wake)
        self._known = (batch.attempt, applied)
        return applied

    # --- settling --------------------------------------------------------------------------------------------

    async def settle(self, attempt: str) -> Applied | None:
        """Close an attempt: what it applied, or None for good."""
        if self._closed == attempt:
            return None
        handle, number, namespace = split(attempt)
        sent = self._sent if self._sent is not None and self._sent[0] == attempt else None
        landed = await self._server.close_attempt(handle, number, sent[3] if sent else namespace)
        if landed is None:
            self._closed = attempt
            return None
        return self._told(attempt, sent[1:3] if sent else None, landed)

    def _told(self, attempt: str, sent: tuple[WritePlan | ChoicePlan, int] | None, landed: Landed) -> Applied:
        if self._known is not None and self._known[0] == attempt:
            return self._known[1]
        if sent is None:
            raise StoreError(
                self._server.name, f"attempt {attempt} was made by another handle; settle it where it was made"
            )
        applied = _padded(sent[0].applied(landed.at, landed.versions), sent[1])
        self._known = (attempt, applied)
        return applied

    async def retire(self) -> None:
        """Remove the traces of this handle's attempts.

        Not if any was in doubt. One that was written must not look as if it was not, when it is settled later; and
        one that was closed must stay so, as it may still be on its way. Upkeep removes those after a week.
        """
        for handle in self._handles - self._doubtful:
            await self._server.forget(handle)


@final
class _Race:
    """How far a batch has come: what the server has shown since it began, and how often others were faster."""

    __slots__ = ("at", "fresh", "losses", "reserved", "riders", "shown")

    def __init__(self, riders: tuple[Rider, ...]) -> None:
        self.riders = riders
        self.at: Instant | None = None
        self.fresh: dict[RecordKey, Record | None] = {}
        self.shown: frozenset[RecordKey] = frozenset()
        self.reserved: tuple[int, ...] = ()
        self.losses = 0

    def learn(self, records: dict[RecordKey, Record | None], shown: Iterable[RecordKey], at: Instant) -> None:
        self.fresh.update(records)
        self.shown, self.at = frozenset(shown), at

    def lose(self, records: dict[RecordKey, Record | None], shown: Iterable[RecordKey], at: Instant) -> None:
        self.learn(records, shown, at)
        self.losses += 1
        if self.losses >= TOGETHER:
            self.riders = self.riders[:1]


def keys_updated(riders: Sequence[Rider]) -> frozenset[RecordKey]:
    """Return the keys of all updates among the riders."""
    return frozenset([key for rider in riders if type(rider) is UpdateRider for key in rider.keys])


def _padded(applied: Applied, length: int) -> Applied:
    """Put off the riders that were left out when the batch had lost too often."""
    missing = length - len(applied.outcomes)
    return structs.replace(applied, outcomes=applied.outcomes + (DEFERRED,) * missing) if missing else applied


def _some_keys(riders: Sequence[Rider]) -> list[RecordKey]:
    """Return the keys of the first rider: they are read along with the time."""
    rider = riders[0]
    if isinstance(rider, UpdateRider):
        return list(rider.keys)
    if isinstance(rider, WorkRider):
        return [change.key for change in rider.commit.changes]
    return [] if isinstance(rider, ChoiceRider) else [change.key for change in rider.changes]


def split(attempt: str) -> tuple[str, int, bytes]:
    """Return the handle and the number that an attempt is made of, and its namespace if it names one."""
    name, _, namespace = attempt.partition("@")
    handle, _, number = name.rpartition(".")
    return handle, int(number), bytes.fromhex(namespace)
