"""What a server says becomes the error that says what to do, on old servers and new ones."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, cast

import pytest
from redis import exceptions

from standfast import errors
from standfast.stores.address import Address
from standfast.stores.redis.connection import RedisConnection, SentCall, read_options, translate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

NAME = "redis://host"


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (exceptions.OutOfMemoryError("command not allowed"), errors.StoreFullError),
        (exceptions.ResponseError("OOM command not allowed when used memory > 'maxmemory'."), errors.StoreFullError),
        (
            exceptions.ResponseError("Error running script (call to f_12): @user_script:9: -OOM command not allowed"),
            errors.StoreFullError,
        ),
        (exceptions.ReadOnlyError("You can't write against a read only replica."), errors.StoreReadOnlyError),
        (exceptions.ResponseError("MISCONF Errors writing to the AOF file"), errors.StoreFullError),
        (exceptions.ResponseError("NOREPLICAS Not enough good replicas"), errors.StoreUnavailableError),
        (exceptions.BusyLoadingError("dataset in memory"), errors.StoreUnavailableError),
        (exceptions.ResponseError("BUSY Redis is busy running a script."), errors.StoreBusyError),
        (exceptions.AuthenticationError("invalid username-password pair"), errors.UnsuitableStoreError),
        (exceptions.NoPermissionError("no permissions to run"), errors.UnsuitableStoreError),
        (exceptions.ResponseError("ACL failure in script: User x has no permissions"), errors.UnsuitableStoreError),
        (exceptions.ResponseError("WRONGTYPE Operation against a key"), errors.StoreCorruptError),
        (exceptions.ClusterDownError("Hash slot not served"), errors.StoreUnavailableError),
        (exceptions.ResponseError("something new"), errors.StoreError),
    ],
)
def test_each_refusal_has_its_error(problem: Exception, expected: type[errors.StoreError]) -> None:
    """By the driver's class or by the code in the text."""
    assert type(translate(NAME, problem)) is expected


def test_a_secret_in_what_the_server_says_is_masked() -> None:
    """Whatever it repeats of what it was sent."""
    problem = exceptions.ResponseError("cannot reach redis://me:hunter2@other, password=hunter2")

    assert "hunter2" not in str(translate(NAME, problem))


def test_who_gave_no_password_is_not_told_that_it_was_wrong() -> None:
    """The driver has one error for both."""
    assert "none was given" in str(translate(NAME, exceptions.AuthenticationError("Authentication required.")))


def test_a_url_of_sentinels_names_them_the_primary_and_its_database() -> None:
    """Ports are those that sentinels have, unless they are named."""
    options = read_options(Address("rediss+sentinel://:hunter2@one,two:1,three/main/3?replicas=2"))

    assert options.hosts == (("one", 26379), ("two", 1), ("three", 26379))
    assert (options.sentinel, options.database, options.replicas) == ("main", 3, 2)
    assert options.tls is not None
    assert read_options(Address("valkey+sentinel://one/main")).database == 0


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis+sentinel://one,two", "what they call the primary"),
        ("redis+sentinel://one/main/first", "the database is a number"),
        ("redis+sentinel://one/main/0/1", "what they call the primary"),
        ("redis+sentinel://one/main?cluster=true", "a cluster has no sentinels"),
        ("redis://one?sentinel_password=hunter2", "are for redis.sentinel://"),
        ("redis+sentinel://one/main?sentinel_auth=true&sentinel_user=it", "a password of their own, or"),
    ],
)
def test_a_url_of_sentinels_that_cannot_be_used_is_refused(url: str, problem: str) -> None:
    """With the form to type."""
    with pytest.raises(errors.InvalidUrlError, match=problem):
        read_options(Address(url))


# --- one connection, to a server that says what a test wants -------------------------------------------------------


class Script:
    """A server that sends what it was given, in pieces, each time that something arrives."""

    def __init__(self, *answers: Sequence[bytes]) -> None:
        self._answers = iter(answers)
        self.heard = b""
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer until the other side closes, or there is nothing more to say."""
        try:
            while said := await reader.read(65_536):
                self.heard += said
                pieces = next(self._answers, None)
                if pieces is None:
                    break
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        except ConnectionError:
            pass
        finally:
            writer.close()
            self.ended.set()


@asynccontextmanager
async def connected(script: Script) -> AsyncIterator[RedisConnection]:
    """Connect to a server that follows ``script``."""
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    connection = RedisConnection(*server.sockets[0].getsockname())
    async with server:
        await connection.open(None, ())
        try:
            yield connection
        finally:
            await connection.aclose()


def soon(seconds: float = 10.0) -> float:
    """Return a deadline."""
    return asyncio.get_running_loop().time() + seconds


async def test_answers_that_arrive_in_pieces_are_put_together() -> None:
    """Wherever they are cut, and a refusal is one of them."""
    whole = b"*2\r\n$3\r\none\r\n:2\r\n-OOM full\r\n$-1\r\n"
    async with connected(Script(*([whole[:cut], whole[cut:]] for cut in range(1, len(whole))))) as connection:
        for _ in range(1, len(whole)):
            first, refused, nothing = await connection.exchange(b"x", 3, soon())
            assert (first, type(refused), nothing) == ([b"one", 2], exceptions.OutOfMemoryError, None)
        assert connection.is_alive


async def test_a_deadline_cuts_the_connection() -> None:
    """Also one that is earlier than that of the command before; what comes later answers nothing."""
    script = Script([b"+OK\r\n"], [])
    async with connected(script) as connection:
        assert await connection.exchange(b"x", 1, soon(60)) == [b"OK"]
        with pytest.raises(TimeoutError):
            await connection.exchange(b"x", 1, soon(0.01))

        assert not connection.is_alive
        await script.ended.wait()
        with pytest.raises(exceptions.ConnectionError):
            await connection.exchange(b"x", 1, soon())


async def test_a_deadline_that_is_met_by_the_timer_of_an_earlier_command_is_kept() -> None:
    """One timer stands for many commands: it is set again for the one that waits."""
    async with connected(Script([b"+OK\r\n"], [])) as connection:
        await connection.exchange(b"x", 1, soon(0.02))
        started = soon(0)
        with pytest.raises(TimeoutError):
            await connection.exchange(b"x", 1, started + 0.1)

        assert soon(0) - started >= 0.1


async def test_who_is_cancelled_leaves_no_connection_with_an_answer_on_its_way() -> None:
    """It would be taken for that of the next command."""
    script = Script([])
    async with connected(script) as connection:
        asking = asyncio.create_task(connection.exchange(b"x", 1, soon()))
        async with asyncio.timeout(10):
            while not script.heard:  # noqa: ASYNC110 -- the other side of a socket
                await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

        assert not connection.is_alive


@pytest.mark.parametrize("more", [b"+OK\r\n+OK\r\n", b"?\r\n", b"-ERR max number of clients reached\r\n"])
async def test_what_answers_no_command_ends_the_connection(more: bytes) -> None:
    """More answers than commands, what is no answer at all, and no answer but a farewell."""
    async with connected(Script([more])) as connection:
        with pytest.raises((exceptions.ConnectionError, exceptions.InvalidResponse)):
            await connection.exchange(b"x", 1, soon())

        assert not connection.is_alive


async def test_a_server_that_ends_it_is_noticed_at_once_and_by_who_waits() -> None:
    """Before the next command is sent on it, and while one is."""
    async with connected(Script([b"+OK\r\n"])) as connection:
        await connection.exchange(b"x", 1, soon())
        with pytest.raises(exceptions.ConnectionError, match="closed"):
            await connection.exchange(b"x", 1, soon())

        assert not connection.is_alive


async def test_what_is_published_is_heard_where_it_arrives_until_the_end() -> None:
    """In its order, what came before the listener included; a refusal ends it."""
    heard: list[object] = []
    async with connected(Script([b"+1\r\n+2\r\n"], [b"+3\r\n", b"-NOPERM no\r\n+4\r\n"])) as connection:
        connection.send(b"x")
        assert await connection.receive() == b"1"
        hearing = asyncio.create_task(connection.listen(heard.append))
        await asyncio.sleep(0)
        connection.send(b"x")
        with pytest.raises(exceptions.NoPermissionError):
            await hearing

    assert heard == [b"2", b"3"]


# --- calls that no task waits for -----------------------------------------------------------------------------------


async def test_what_was_sent_calls_back_where_the_answer_arrives() -> None:
    """In the order in which it was asked for, and each in its context; no turn of the loop lies between."""
    sent, called, said = SentCall(asyncio.get_running_loop()), list[str](), ContextVar[str]("said")
    for name in ("first", "second", "third"):
        said.set(name)
        sent.add_done_callback(lambda _: called.append(said.get()), context=copy_context())
    sent.set_result(None)

    assert called == ["first", "second", "third"]
    assert sent.done()
    assert sent.exception() is None


async def test_a_task_that_is_interrupted_keeps_no_other_from_being_resumed() -> None:
    """Those that come after it are called in the next turn of the loop."""
    sent, called = SentCall(asyncio.get_running_loop()), list[str]()
    sent.add_done_callback(_interrupt)
    sent.add_done_callback(lambda _: called.append("resumed"))
    with pytest.raises(KeyboardInterrupt):
        sent.set_result(None)
    await asyncio.sleep(0)

    assert called == ["resumed"]


def _interrupt(_: object) -> None:
    raise KeyboardInterrupt


async def test_an_answer_that_is_lost_is_told_when_its_connection_is_closed() -> None:
    """Nothing is resumed on the way: the connection may still be in use by the one that gives it up."""
    sent, called = SentCall(asyncio.get_running_loop()), list[Exception | None]()
    sent.add_done_callback(lambda each: called.append(each.exception()))
    lost = ConnectionResetError()
    sent.set_exception(lost)
    assert called == []
    await asyncio.sleep(0)

    assert called == [lost]


async def test_a_call_is_waited_for_like_a_future() -> None:
    """A store that is closed waits for what is under way, also for what is there by then."""
    sent = SentCall(asyncio.get_running_loop())
    future = cast("asyncio.Future[None]", sent)
    waiting = asyncio.ensure_future(asyncio.wait([future]))
    await asyncio.sleep(0)
    sent.set_result(None)

    assert await waiting == ({future}, set())
    late: list[object] = []
    sent.add_done_callback(late.append)
    await asyncio.sleep(0)
    assert late == [sent]
