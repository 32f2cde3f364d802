"""A loaded run's inbox: signals that wait to be taken, and updates that wait to be answered."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, final

from msgspec import UNSET, Raw, Struct, UnsetType

from standfast.clock import later
from standfast.codec import Codec
from standfast.keys import RecordKey
from standfast.stores.protocol import Delete, Put
from standfast.workflows.storing.failure_log import log_failure
from standfast.workflows.storing.failures import Failure, describe
from standfast.workflows.storing.records import ITEMS, Item, Mark, RunKeys
from standfast.workflows.storing.values import PLAIN

if TYPE_CHECKING:
    from standfast.workflows.running.activation import Activation
    from standfast.workflows.running.branches import Wait

PAGE: Final = 200
MOST_UNWRITTEN: Final = 40
"""How many changes a run collects before they are written though nothing needs them to be."""

ANSWER_KEPT: Final = 3_600.0
"""For how many seconds the answer to an update is kept whose sender gave it no id, so that nobody asks again."""


class Answer(Struct, frozen=True, omit_defaults=True):
    """What a run answered to an update."""

    how: Literal["accepted", "refused", "failed"]
    value: Raw | UnsetType = UNSET
    failure: Failure | None = None
    problem: str = ""


_log: Final = logging.getLogger("standfast.workflows")
ANSWERS: Final[Codec[Answer]] = Codec(Answer, what="the answer to an update")


class Handler(Struct, frozen=True):
    """What answers updates of one name."""

    answer: Callable[..., Any]
    validate: Callable[..., Any] | None


class Letter(Struct, frozen=True):
    """An item of the inbox that is in memory.

    Attributes:
        place: The inbox, as runs of a chain hand theirs on, and the number in it; the smallest is the oldest.
        key: Where it lies.
        version: What its record is guarded with.
        item: What it says.
    """

    place: tuple[int, int]
    key: RecordKey
    version: int
    item: Item


@final
class Mail:
    """The inbox of one activation."""

    def __init__(self, activation: Activation) -> None:
        self._activation: Final = activation
        self._letters: list[Letter] = []
        self._next: Final[dict[int, int]] = {}
        self._fetched = False
        self.handlers: Final[dict[str, Handler]] = {}
        self.queries: Final[dict[str, Callable[..., Any]]] = {}

    async def fetch(self) -> None:
        """Read what has come since; the first time, also what runs that went on as this one have left."""
        activation = self._activation
        inherited = activation.header.mail_from
        if not self._fetched:
            for age, run_id in enumerate(inherited):
                await self._fetch(age, RunKeys(activation.host.space, run_id))
        await self._fetch(len(inherited), activation.keys)
        self._fetched = True

    async def _fetch(self, age: int, keys: RunKeys) -> None:
        start, end = keys.item(self._next.get(age, 0)), keys.inbox()[1]
        while True:
            page = await self._activation.host.space.scan(start, end, limit=PAGE)
            for key, record in page.records.items():
                number = int(key.parts[-1])
                if number >= self._next.get(age, 0):
                    self._letters.append(Letter((age, number), key, record.version, ITEMS.decode(record.value)))
                    self._next[age] = number + 1
            if page.more is None:
                return
            start = page.more

    def left_in(self) -> tuple[str, ...]:
        """Return the runs in whose inboxes something may be left for the run as which this one goes on."""
        inherited = self._activation.header.mail_from
        ages = {letter.place[0] for letter in self._letters} if self._fetched else range(len(inherited))
        return (*(run_id for age, run_id in enumerate(inherited) if age in ages), self._activation.keys.id)

    async def write_if_much(self) -> None:
        """Write down what was taken and answered when there is nearly as much of it as a commit takes."""
        journal = self._activation.journal
        if journal is not None and journal.is_heavy(self._activation.host.space.at_most(100) * MOST_UNWRITTEN // 100):
            await self._activation.flush()

    # --- signals -------------------------------------------------------------------------------------------------

    async def find(self, name: str) -> Letter | None:
        """Return the oldest signal of a name that nobody has taken."""
        if not self._fetched:
            await self.fetch()
        return self._first(name)

    def _first(self, name: str) -> Letter | None:
        return next((each for each in self._letters if each.item.kind == "signal" and each.item.name == name), None)

    async def look_for(self, name: str, wait: Wait) -> None:
        """End a wait if its signal is there. It is taken out here, so that two who wait do not get the same."""
        letter = self._first(name)
        if letter is not None and not wait.future.done():
            self._letters.remove(letter)
            wait.settle(letter)

    def take(self, letter: Letter) -> Delete:
        """Take a letter out; return the change that does so in the store."""
        if letter in self._letters:
            self._letters.remove(letter)
        return Delete(letter.key, letter.version)

    def give_back(self, letter: Letter) -> None:
        """Put a letter back that was found for somebody who no longer wants it."""
        self._letters.append(letter)
        self._letters.sort(key=lambda each: each.place)

    # --- updates -------------------------------------------------------------------------------------------------

    def replay_update(self, mark: Mark) -> None:
        """Do again what an update did to the run's variables."""
        handler = self.handlers.get(mark.id.removeprefix("@"))
        if handler is None:
            self._activation.differ(f"update {mark.id!r}", "no handler for it")
            return
        with contextlib.suppress(Exception):  # the caller was told when it happened
            handler.answer(*PLAIN.unpack(mark.value or b"[]"))

    @property
    def has_updates(self) -> bool:
        """Whether updates have come that nobody has answered."""
        return any(each.item.kind == "update" for each in self._letters)

    @property
    def _is_open(self) -> bool:
        """Whether the run's code goes on: nothing that comes after it has returned can change its result."""
        return bool(self._activation.branches) and not self._activation.is_unloading

    async def answer_updates(self) -> None:
        """Answer the updates that have come, as far as there are handlers for them."""
        for letter in [each for each in self._letters if each.item.kind == "update"]:
            handler = self.handlers.get(letter.item.name)
            if handler is not None and self._is_open:
                self._answer(letter, handler)
                await self.write_if_much()
        journal = self._activation.journal
        if journal is not None and journal.is_dirty:
            await self._activation.flush()

    def _answer(self, letter: Letter, handler: Handler) -> None:
        activation, item = self._activation, letter.item
        answer, accepted = _called(handler, PLAIN.unpack(item.value or b"[]"), activation)
        if answer.failure is not None:
            run, name = activation.keys.id, item.name
            log_failure(_log, f"the update {name!r} of the run {run!r}", answer.failure, run=run, update=name)
        now = activation.host.now()
        until = None if item.is_named else later(now, ANSWER_KEPT)
        put = Put(activation.keys.answer(item.id), ANSWERS.encode(answer), expires_at=until)
        changes = (self.take(letter), put)
        if accepted:
            activation.note(Mark("update", f"@{item.name}", now, item.value), *changes)
            activation.check_predicates()
        else:
            activation.put_alongside(*changes)


def _called(handler: Handler, args: Any, activation: Activation) -> tuple[Answer, bool]:  # noqa: ANN401 -- a list of JSON values
    if handler.validate is not None:
        try:
            handler.validate(*args)
        except Exception as problem:  # noqa: BLE001 -- whatever it raises says no
            return Answer("refused", problem=str(problem) or type(problem).__name__), False
    try:
        return Answer("accepted", Raw(PLAIN.pack(handler.answer(*args)))), True
    except Exception as problem:  # noqa: BLE001 -- it is the caller's answer
        known = activation.host.known_with(activation.workflow.raises)
        return Answer("failed", failure=describe(problem, known)), True
