"""Talking to the service: one client a handle, time limits, pauses, and the time of every answer.

The driver's own retries are off. Whether a request may be sent again depends on what it was, and only the caller knows.
"""

from __future__ import annotations

import asyncio
import functools
import random
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, final

from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError, ClientError
from botocore.loaders import Loader

from standfast.clock import monotonic
from standfast.errors import StoreClosedError, StoreUnavailableError
from standfast.stores.dynamodb.store_time import shared_time
from standfast.stores.dynamodb.trouble import TurnedAwayError, answered, unanswered

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from botocore.awsrequest import AWSPreparedRequest
    from types_aiobotocore_dynamodb import DynamoDBClient

    from standfast.clock import Instant
    from standfast.stores.dynamodb.options import Options
    from standfast.stores.dynamodb.store_time import StoreTime

    Context = AbstractAsyncContextManager[DynamoDBClient]

FIRST_PAUSE: Final = 0.025
LONGEST_PAUSE: Final = 1.0
"""Seconds between two tries of a request that was turned away: at first, and at most; each is a random part of it."""

CLOSED_WITHIN: Final = 5.0

PIECE: Final = 1 << 18
"""Bodies up to this many bytes are sent in one go."""

USER_AGENT: Final = "standfast"
"""The driver puts a long one together for every request, which takes a seventh of its time."""


@functools.cache
def _loader() -> Loader:
    """Return what reads the driver's description of the service: a tenth of a second once, not for every handle."""
    return Loader(include_default_search_paths=True)


@final
class Patience:
    """How long one call tries again: for about as long as a request may take."""

    __slots__ = ("_deadline", "_pause", "_random")

    def __init__(self, seconds: float) -> None:
        self._deadline, self._pause = monotonic() + seconds, FIRST_PAUSE
        self._random: Final = random.Random()  # noqa: S311 -- spreads out who tries again when

    async def pause(self, turned_away: TurnedAwayError) -> None:
        """Wait before the next try; raise the problem if there is to be none."""
        seconds = self._random.uniform(0, self._pause)
        if monotonic() + seconds >= self._deadline:
            raise turned_away.problem from turned_away
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        await asyncio.sleep(seconds)


@final
class Link:
    """A client of the service, on one event loop."""

    def __init__(self, options: Options, client: DynamoDBClient, context: Context) -> None:
        self._options, self._context = options, context
        self.client: Final = client
        self.time: Final[StoreTime] = shared_time(str(client.meta.endpoint_url))
        self._idle: Final = asyncio.Event()
        self._idle.set()
        self._under_way = 0
        self._is_closed = False

    @classmethod
    async def open(cls, options: Options) -> Link:
        """Make a client; nothing is sent yet."""
        session = AioSession()
        session.register_component("data_loader", _loader())
        try:
            context = session.create_client("dynamodb", **_arguments(options))
            client = await context.__aenter__()
            client.meta.events.register("before-send.dynamodb", _in_pieces)
            return cls(options, client, context)
        except (BotoCoreError, ValueError) as problem:  # a region or an endpoint that is none
            raise _not_configured(problem, options) from problem

    def patience(self) -> Patience:
        """Return how long a call is tried again."""
        return Patience(self._options.timeout)

    async def ask(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request that changes nothing, or nothing that sending it twice changes; try again if turned away."""
        patience = self.patience()
        while True:
            try:
                return await self.send(operation, request, writes=False)
            except TurnedAwayError as turned_away:
                await patience.pause(turned_away)

    async def send(self, operation: str, request: Mapping[str, Any], *, writes: bool) -> Mapping[str, Any]:
        """Send a request once."""
        if self._is_closed:
            raise StoreClosedError(self._options.name, "it was closed")
        self._under_way += 1
        self._idle.clear()
        try:
            return await self._exchange(operation, request, writes=writes)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _exchange(self, operation: str, request: Mapping[str, Any], *, writes: bool) -> Mapping[str, Any]:
        store, sent = self._options.name, self.time.elapsed()
        try:
            async with asyncio.timeout(self._options.timeout + self._options.connect_timeout):
                answer: Mapping[str, Any] = await getattr(self.client, operation)(**request)
        except ClientError as problem:
            self._hear(problem.response, sent)
            raise answered(problem, store, writes=writes) from problem
        except (BotoCoreError, TimeoutError) as problem:
            raise unanswered(problem, store, writes=writes) from problem
        self._hear(answer, sent)
        return answer

    def _hear(self, answer: Mapping[str, Any], sent: Instant) -> None:
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if date is not None:
            self.time.hear(date, sent)

    async def aclose(self) -> None:
        """Close all connections, when what is under way has been answered."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            async with asyncio.timeout(CLOSED_WITHIN):
                await self._idle.wait()
        except TimeoutError:
            pass
        finally:
            await self._context.__aexit__(None, None, None)


def _in_pieces(request: AWSPreparedRequest, **_: object) -> None:
    """Have a large body sent piece by piece, so that others get their turn on the loop."""
    if isinstance(request.body, bytes) and len(request.body) > PIECE:
        request.body = BytesIO(request.body)


def _encrypting(tls: ssl.SSLContext) -> type[AIOHTTPSession]:
    """Return the driver's kind of session with a TLS context of ours: by itself it takes none beside its own.

    If it no longer asks for it in this way, it goes by its own context, which checks certificates and names too.
    """

    class Encrypting(AIOHTTPSession):
        def _build_verify_context(self) -> ssl.SSLContext:
            return tls

    return Encrypting


def _arguments(options: Options) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "config": AioConfig(
            connect_timeout=options.connect_timeout,
            read_timeout=options.timeout,
            max_pool_connections=options.pool,
            retries={"total_max_attempts": 1, "mode": "standard"},
            parameter_validation=False,
            tcp_keepalive=True,
            user_agent=USER_AGENT,
            http_session_cls=AIOHTTPSession if options.tls is None else _encrypting(options.tls),
        ),
        "region_name": options.region or None,
        "endpoint_url": options.endpoint or None,
        "use_ssl": options.tls is not None,
    }
    if options.access:
        arguments |= {"aws_access_key_id": options.access, "aws_secret_access_key": options.secret}
    return arguments


def _not_configured(problem: Exception, options: Options) -> Exception:
    if isinstance(problem, BotoCoreError):
        return unanswered(problem, options.name, writes=False)
    return StoreUnavailableError(options.name, str(problem))
