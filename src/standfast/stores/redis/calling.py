"""Calling scripts: by hash, at the right server, and again only where that does no harm."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast, final

from redis.exceptions import AskError, MovedError, NoScriptError

from standfast.errors import OutcomeUnknownError, StoreUnavailableError
from standfast.stores.redis.scripts import pack
from standfast.stores.redis.trouble import NotSentError, ReplyLostError, code_of, translate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.stores.redis.connecting import Pool, Reply
    from standfast.stores.redis.names import Names
    from standfast.stores.redis.options import Options
    from standfast.stores.redis.routing import Routes
    from standfast.stores.redis.scripts import Argument, Script
    from standfast.stores.redis.seen import Seen

REWOUND: Final = -1
REDIRECTS: Final = 8
"""How often a call may be sent: a slot moves, another server takes over."""

_PASSING: Final = frozenset({"TRYAGAIN", "CLUSTERDOWN", "READONLY"})
_PAUSE: Final = 0.03
_ASKING: Final = pack("ASKING")


@final
class Calls:
    """Calls scripts for one handle."""

    def __init__(self, routes: Routes, seen: Seen, name: str, options: Options) -> None:
        self.routes, self.seen, self._name = routes, seen, name
        self._replicas: Final = options.replicas
        self.waiting: Final = pack("WAIT", options.replicas, max(1, int(options.timeout * 800)))

    async def run(
        self,
        script: Script,
        names: Names,
        keys: Sequence[bytes],
        arguments: Sequence[Argument],
        *,
        once: bool = False,
        replicated: bool = False,
    ) -> list[Any]:
        """Run a script and return its answer: status, time, last version and what is its own.

        With ``once`` a call whose reply is lost is not repeated, and raises ``OutcomeUnknownError``.
        """
        arguments = (self.seen.version(names), *arguments)
        waits = replicated and self._replicas > 0
        sending = _Sending(self, script, names, keys, arguments, waits=waits)
        try:
            answer = await sending.send()
        except ReplyLostError as lost:
            answer = await self._repeat(sending, lost, once=once)
        except NotSentError as problem:
            raise StoreUnavailableError(self._name, f"it did not answer: {problem}") from problem
        status, _, version, *_ = answer[0]
        if status == REWOUND:
            raise self.seen.rewound(names, version)
        self.seen.note(names, version)
        if waits and status == 0:
            self._check_replicas(answer[1], once=once)
        reply: list[Any] = answer[0]
        return reply

    async def _repeat(self, sending: _Sending, lost: Exception, *, once: bool) -> list[Any]:
        if once:
            raise OutcomeUnknownError(self._name, f"the answer to a write was lost: {lost}") from lost
        try:
            return await sending.send()
        except (ReplyLostError, NotSentError) as problem:
            raise StoreUnavailableError(self._name, f"it did not answer: {problem}") from problem

    def _check_replicas(self, acknowledged: Reply, *, once: bool) -> None:
        if isinstance(acknowledged, int) and acknowledged >= self._replicas:
            return
        problem = f"{acknowledged} of {self._replicas} replicas have acknowledged a write"
        raise OutcomeUnknownError(self._name, problem) if once else StoreUnavailableError(self._name, problem)

    async def ask(self, pool: Pool, *command: Argument) -> Reply:
        """Return the answer to a plain command that writes nothing; a refusal is returned as an exception."""
        try:
            [answer] = await pool.call(pack(*command))
        except (NotSentError, ReplyLostError) as problem:
            raise StoreUnavailableError(self._name, f"it did not answer: {problem}") from problem
        return answer

    def refused(self, problem: Exception) -> Exception:
        """Return the error for a refusal."""
        return translate(self._name, problem)


@final
class _Sending:
    """One call, on its way to whoever has the slot now."""

    def __init__(
        self,
        calls: Calls,
        script: Script,
        names: Names,
        keys: Sequence[bytes],
        arguments: Sequence[Argument],
        *,
        waits: bool,
    ) -> None:
        self._calls, self._names, self._waits = calls, names, waits
        self._script, self._keys, self._arguments = script, keys, arguments
        self._command = script.call(keys, arguments)

    async def send(self) -> list[Any]:
        """Send it, following where the servers point, and return the answers."""
        asked: Pool | None = None
        turns = 1
        while True:
            pool = asked or await self._calls.routes.pool(self._names.slot)
            answers = await self._exchange(pool, asking=asked is not None)
            refusal = answers[0]
            if not isinstance(refusal, Exception):
                return answers
            if isinstance(refusal, NoScriptError):  # a server that has just started, say: once, and whenever it is
                self._command = self._script.call_in_full(self._keys, self._arguments)
                continue
            if turns == REDIRECTS:
                raise self._calls.refused(refusal)
            turns += 1
            asked = await self._next(refusal)

    async def _exchange(self, pool: Pool, *, asking: bool) -> list[Any]:
        parts = [_ASKING] if asking else []
        parts.append(self._command)
        if self._waits:
            parts.append(self._calls.waiting)
        try:
            answers = await pool.call(b"".join(parts), len(parts))
        except (StoreUnavailableError, NotSentError, ReplyLostError):
            await self._calls.routes.look_again()  # another server may have taken over
            raise
        return answers[1:] if asking else answers

    async def _next(self, refusal: Exception) -> Pool | None:
        """Prepare the next turn after a refusal, which says that nothing was done; raises if there is none."""
        routes = self._calls.routes
        if isinstance(refusal, MovedError):  # a kind of AskError to the driver
            await routes.look_again()
        elif isinstance(refusal, AskError):
            return routes.node((str(cast("Any", refusal).host), refusal.port))
        elif code_of(refusal) in _PASSING:
            await routes.look_again()
            await asyncio.sleep(_PAUSE)
        else:
            raise self._calls.refused(refusal)
        return None
