"""Who asked for a request to stop, as its record says it: by kind, and by name if it was somebody with a name.

========================  ==========================================================================================
``"user:ann"``            the user ``ann``, who has sent it or has its session; ``"user"`` if nobody is known by name
``"operator:eve"``        a principal with the role of an operator, who has not sent it
``"operator"``            somebody at the command line
``"caller"``              its caller went away, and its action says that it stops then
``"server"``              the server that ran it is stopping
``""``                    nobody has said
========================  ==========================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import structs

from standfast.flows.call import tenant_in
from standfast.flows.records import REQUESTS, RequestKeys
from standfast.flows.seeing import OPERATOR
from standfast.stores.protocol import Decision, Put
from standfast.workflows.storing.records import LIVES, RunKeys

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.flows.arrival import Principal
    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot

CALLER: Final = "caller"
SERVER: Final = "server"


def asker_of(principal: Principal, sender: str) -> str:
    """Return who a principal is that asks for a request of a sender to stop."""
    is_operators = OPERATOR in principal.roles and principal.user != sender
    return _named(OPERATOR if is_operators else "user", principal.user)


def sender_of(user: str) -> str:
    """Return who has sent a request."""
    return _named("user", user)


def _named(kind: str, user: str) -> str:
    return f"{kind}:{user}" if user else kind


def kind_of(cancelled_by: str) -> str:
    """Return who it was without a name, for those who share the run of a request only."""
    return cancelled_by.partition(":")[0]


async def note_asker(scope: Scope, keys: RequestKeys, who: str) -> None:
    """Write down who asks for a durable request to stop, before its run is told; the first one counts.

    It shows in the record of a request that ends cancelled, and in no other.
    """
    run = RunKeys(scope, keys.id)

    def decide(seen: Snapshot) -> Decision[None]:
        found, life = seen.get(keys.record), seen.get(run.life)
        if found is None or life is None or LIVES.decode(life.value).cancel is not None:
            return Decision(None)
        record = REQUESTS.decode(found.value)
        if record.has_ended or record.cancelled_by == who:
            return Decision(None)
        put = Put(keys.record, REQUESTS.encode_own(structs.replace(record, cancelled_by=who)), found.version)
        return Decision(None, (put,))

    await scope.update((keys.record, run.life), decide)


async def note_operator(scope: Scope, run_id: str, tags: Iterable[str]) -> None:
    """Write down that an operator asks for a run to stop, if it is that of a request."""
    tenant = tenant_in(tags)
    if tenant is not None:
        await note_asker(scope, RequestKeys(scope, tenant, run_id), OPERATOR)
