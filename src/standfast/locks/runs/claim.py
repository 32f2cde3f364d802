"""The claim of a run: one record that run locks and the engine's workers both write when they take the run.

The engine keeps how a run is in one record, its *life*, and every claim of a worker rewrites that record at the version
that it saw. Taking a run lock rewrites it as well, in the commit that grants the lock. So of a worker and a lock that
want the run at the same moment one is refused, and a claim costs nothing more than before. A run that no engine knows
has no such record, and its lock is a line like any other.

The life belongs to :mod:`standfast.workflows`; here only those fields are known that say who has the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from msgspec import Raw, Struct

from standfast.clock import Instant
from standfast.codec import Codec
from standfast.locks.algebra.line import Granted
from standfast.locks.driving.readying import READY, ready_key
from standfast.locks.driving.requests import Along, Lacks, Left
from standfast.stores.protocol import Delete, Put

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.locks.driving.requests import Answer, Shown
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Record, Wake

_TRUE: Final = Raw(b"true")


class RunClaim(Struct, frozen=True):
    """What a run's life says about who has the run.

    Attributes:
        workflow: The workflow's name.
        changed_at: Since when it is so.
        owner: The presence of the worker that drives it; empty: none does.
        leased: A run lock has been taken since a worker last drove it; whether it is held still, its line says.
        lease_awaited: A worker has found it leased, and is to be told of the release.
    """

    workflow: str
    changed_at: Instant
    owner: str = ""
    leased: bool = False
    lease_awaited: bool = False


CLAIMS: Final[Codec[RunClaim]] = Codec(RunClaim, what="the life of a run")
_LIVES: Final[Codec[dict[str, Raw]]] = Codec(dict[str, Raw], what="the life of a run")


class DrivenError(Exception):
    """A worker drives the run. Only raised and caught among run locks."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


@final
class ClaimGuard:
    """What taking and giving up the lock of one run does to the run's own records.

    Attributes:
        void: The presences that are gone: what they claimed can be taken from them.
    """

    __slots__ = ("_ready", "_scope", "_workflow", "life", "run_id", "void")

    def __init__(self, scope: Scope, workflow: str, run_id: str) -> None:
        self._scope, self._workflow, self.run_id = scope, workflow, run_id
        self.life: Final = scope.key("life", run_id)
        self._ready: Final = ready_key(scope, run_id)
        self.void: Final[set[str]] = set()

    def claim_in(self, record: Record | None) -> RunClaim | None:
        """Return what the life says; None: no engine knows such a run of this workflow."""
        claim = None if record is None else CLAIMS.decode(record.value)
        return claim if claim is not None and claim.workflow == self._workflow else None

    def own(self, presence: str) -> RecordKey:
        """Return where the grant of a worker's claim lies. Its version is the claim's fence."""
        return self._scope.key("own", presence, self.run_id)

    @property
    def on_enter(self) -> Along:
        """Go with the request for the lock: refuse it while a worker drives the run, else keep workers off."""
        return Along((self.life, self._ready), self._enter)

    @property
    def on_leave(self) -> Along:
        """Go with the release of the lock: say so, and tell the workers if one of them has found it held."""
        return Along((self.life, self._ready), self._leave)

    def _enter(self, answer: Answer, seen: Shown) -> tuple[tuple[Change, ...], tuple[Wake, ...]] | Lacks:
        record = seen.get(self.life)
        claim = self.claim_in(record)
        if record is None or claim is None or not isinstance(answer, Granted):
            return (), ()
        if not claim.owner:  # also if it says so already: a worker may be about to claim what has just lapsed
            return (self._rewritten(record, leased=_TRUE),), ()
        if claim.owner not in self.void:
            raise DrivenError(claim.owner)
        own = self.own(claim.owner)
        if own not in seen.given:
            return Lacks(frozenset({own}))
        freed = self._rewritten(record, leased=_TRUE, owner=None, waits_for=Raw(b'"a worker"'))
        gone = (Delete(own, seen.version(own)),) if seen.version(own) else ()
        return (freed, *gone, Put(self._ready, READY, seen.version(self._ready))), ()

    def _leave(self, answer: Answer, seen: Shown) -> tuple[tuple[Change, ...], tuple[Wake, ...]]:
        record = seen.get(self.life)
        claim = self.claim_in(record)
        if record is None or claim is None or not claim.leased or not (isinstance(answer, Left) and answer.was_holding):
            return (), ()
        free = self._rewritten(record, leased=None, lease_awaited=None)
        told = (Put(self._ready, READY, seen.version(self._ready)),) if claim.lease_awaited else ()
        return (free, *told), ()

    def _rewritten(self, record: Record, **fields: Raw | None) -> Put:
        life = {name: value for name, value in _LIVES.decode(record.value).items() if name not in fields}
        life.update({name: value for name, value in fields.items() if value is not None})
        return Put(self.life, _LIVES.encode_own(life), record.version)
