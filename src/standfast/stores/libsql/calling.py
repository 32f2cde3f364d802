"""Calling a libSQL server: HTTP connections that are kept, streams that are used again, and trouble told apart.

A request that may have been carried out though its answer is missing raises ``OutcomeUnknownError``; everything else
that goes wrong before or instead of that says that nothing was done.
"""

from __future__ import annotations

import asyncio
import contextlib
from io import BytesIO
from typing import TYPE_CHECKING, Final, final

import aiohttp

from standfast.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from standfast.stores.libsql.hrana import Batch, Failure, Reply, Results, closing, read_entry, read_failure, read_reply
from standfast.stores.libsql.patience import Patience
from standfast.stores.libsql.streams import Streams
from standfast.stores.libsql.trouble import (
    NOT_FOUND,
    TOO_MANY,
    UNAUTHORIZED,
    is_expired_stream,
    refusal,
    translate,
    unreachable,
)

if TYPE_CHECKING:
    from standfast.stores.libsql.hrana import Cell
    from standfast.stores.libsql.options import Options

OK: Final = 200
CLOSED_WITHIN: Final = 1.0
FULL_TRIES: Final = 3
"""How often a server is asked again that had no database connection to spare. It waits a second itself each time."""

_VERSIONS: Final = ("v3", "v2")
_PIECE: Final = 1 << 18


@final
class Caller:
    """One handle's connections to a server, on one event loop."""

    def __init__(self, options: Options) -> None:
        self._options: Final = options
        self._name: Final = options.name
        self._patience: Final = Patience(options.timeout)
        self._streams: Final = Streams()
        self._version = _VERSIONS[0]
        self._authorization = options.authorization()
        self._session: Final = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=options.pool, ssl=options.tls or False),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                total=options.timeout + options.connect_timeout, connect=options.connect_timeout
            ),
        )

    # --- batches -----------------------------------------------------------------------------------------------

    async def write(self, batch: Batch) -> Results | Failure:
        """Run a batch that changes something. A failure ended it half-way: nobody knows where.

        Raises:
            OutcomeUnknownError: It was sent, and no answer came.
            StoreUnavailableError: It was certainly not run.
        """
        return await self._run(batch)

    async def read(self, batch: Batch) -> Results | Failure:
        """Run a batch that does no harm if it is run twice; one whose connection was closed meanwhile is sent again.

        Raises:
            StoreUnavailableError: No answer came.
        """
        for tries_left in (1, 0):
            try:
                return await self._run(batch)
            except OutcomeUnknownError as problem:
                if not tries_left or isinstance(problem.__cause__, TimeoutError):
                    raise StoreUnavailableError(self._name, problem.problem) from problem.__cause__
        raise AssertionError

    async def _run(self, batch: Batch) -> Results | Failure:
        reply = await self._ask(batch)
        answer = reply.batch()
        if isinstance(answer, Results):
            self._streams.put(reply.baton, reply.base_url)
            return answer
        if reply.baton is not None:  # it ended half-way, perhaps in a transaction that would keep others waiting
            with contextlib.suppress(StoreError):
                await self._post("pipeline", closing(reply.baton))
        return answer

    async def _ask(self, batch: Batch) -> Reply:
        baton, close = self._streams.take(), not self._streams.is_left_open()
        status, body = await self._post("pipeline", batch.encoded(baton, close=close))
        if status != OK and baton is not None and is_expired_stream(status, read_failure(body)):
            self._streams.clear()  # whoever closed one has closed the others too
            status, body = await self._post("pipeline", batch.encoded(None, close=close))
        for _ in range(FULL_TRIES):
            if status != TOO_MANY:
                break
            status, body = await self._post("pipeline", batch.encoded(None, close=True))
        reply = read_reply(body) if status == OK else None
        if reply is None:
            raise self._unexpected(status, body)
        return reply

    def _unexpected(self, status: int, body: bytes) -> StoreError:
        failure = read_failure(body)
        certain = refusal(status, failure, self._name)
        return certain or OutcomeUnknownError(self._name, f"the server answered HTTP {status}: {failure.message}")

    # --- rows one by one ---------------------------------------------------------------------------------------

    async def rows(self, batch: Batch) -> list[list[Cell]]:
        """Return all rows of a batch that reads, however many bytes they are.

        Raises:
            StoreUnavailableError: They did not arrive.
        """
        found: list[list[Cell]] = []
        left = b""
        try:
            async with self._session.post(
                f"{self._options.url}/v3/cursor", data=batch.encoded_as_cursor(), headers=self._headers()
            ) as response:
                if response.status != OK:
                    body = await response.read()
                    raise refusal(response.status, read_failure(body), self._name) or _no_answer(self._name)
                async for chunk in response.content.iter_chunked(_PIECE):
                    *lines, left = (left + chunk).split(b"\n")
                    for line in lines:
                        self._take_entry(line, found)
        except (aiohttp.ClientError, TimeoutError) as problem:
            raise unreachable(problem, self._name) from None
        return found

    def _take_entry(self, line: bytes, found: list[list[Cell]]) -> None:
        entry = read_entry(line)
        if entry is None or entry.error is not None:
            failure = Failure("an unknown entry") if entry is None or entry.error is None else entry.error
            raise translate(failure, self._name)
        if entry.type == "row":
            found.append(entry.decoded())
        elif entry.baton is not None:
            self._streams.put(entry.baton, None)

    # --- HTTP --------------------------------------------------------------------------------------------------

    async def _post(self, endpoint: str, body: bytes) -> tuple[int, bytes]:
        status, answer = await self._send(endpoint, body)
        if status == NOT_FOUND and self._version == _VERSIONS[0]:
            older, answer_to_older = await self._send(endpoint, body, _VERSIONS[1])
            if older != NOT_FOUND:
                self._version = _VERSIONS[1]
                return older, answer_to_older
        if status == UNAUTHORIZED:
            present, self._authorization = self._authorization, self._options.authorization()
            if present != self._authorization:  # it had run out, and there is a newer one
                return await self._send(endpoint, body)
        return status, answer

    async def _send(self, endpoint: str, body: bytes, version: str | None = None) -> tuple[int, bytes]:
        await self._patience.wait()
        url = f"{self._options.url}/{version or self._version}/{endpoint}"
        try:
            # A large body is sent piece by piece, so that others get their turn on the loop.
            data = BytesIO(body) if len(body) > _PIECE else body
            async with self._session.post(url, data=data, headers=self._headers(), allow_redirects=False) as response:
                answer = response.status, await response.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientSSLError) as problem:
            self._patience.grow()
            raise unreachable(problem, self._name) from None
        except (aiohttp.ClientError, TimeoutError) as problem:
            text = "no answer came in time" if isinstance(problem, TimeoutError) else "the connection broke"
            raise OutcomeUnknownError(self._name, text) from problem
        self._patience.reset()
        return answer

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        return headers if self._authorization is None else headers | {"Authorization": self._authorization}

    # --- life --------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close the streams if the server answers soon, and the connections."""
        try:
            async with asyncio.timeout(CLOSED_WITHIN):
                with contextlib.suppress(StoreError):
                    while (baton := self._streams.take()) is not None:
                        await self._post("pipeline", closing(baton))
        except TimeoutError:  # they run out by themselves
            pass
        finally:
            await self._session.close()


def _no_answer(name: str) -> StoreUnavailableError:
    return StoreUnavailableError(name, "the server gave no answer that can be read")
