"""The connection to MongoDB: options, errors, and commands with a time limit each.

The driver keeps the connections, finds the primary and comes back after a failure. It tries nothing twice here,
except a read and the commit of a transaction, which the server does once however often it is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct
from pymongo import AsyncMongoClient, errors
from pymongo.errors import WriteConcernError
from pymongo.monitoring import TopologyListener
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from standfast.errors import (
    OutcomeUnknownError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores.address import tls_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from pymongo.asynchronous.client_session import AsyncClientSession
    from pymongo.asynchronous.collection import AsyncCollection
    from pymongo.monitoring import TopologyClosedEvent, TopologyDescriptionChangedEvent, TopologyOpenedEvent
    from pymongo.topology_description import TopologyDescription

    from standfast.stores.address import Address

    Document = dict[str, Any]


# --- the options of a MongoDB URL ----------------------------------------------------------------------------------

DEFAULT_PORT: Final = 27_017
_DATABASE: Final = re.compile(r"[^/\\. \"$*<>:|?\0]{1,63}")
_DRIVERS: Final = (
    "replicaSet",
    "directConnection",
    "authSource",
    "authMechanism",
    "tlsCAFile",
    "tlsCertificateKeyFile",
)
OPTION_NAMES: Final = ("prefix", "timeout", "connect_timeout", "pool", "migrate", "reads", "tls", "tls_ca", *_DRIVERS)


class MongoOptions(Struct, frozen=True):
    """What a URL asks for. It holds no secret."""

    hosts: tuple[str, ...]
    database: str
    is_srv: bool = False
    prefix: str = "standfast"
    timeout: float = 5.0
    connect_timeout: float = 5.0
    pool: int = 10
    migrate: bool = True
    linearizable: bool = False
    """Whether a read makes sure that the server that answers is still the primary."""
    tls: bool = False
    driver: dict[str, Any] = {}
    """What the driver reads itself: the name of the replica set, where users are kept, certificates."""


def read_options(address: Address) -> MongoOptions:
    """Read the options of ``address``; raises ``InvalidUrlError``."""
    is_srv, driver = address.scheme == "mongodb+srv", _for_the_driver(address)
    if is_srv:
        host, port = address.host(0)
        if port:
            raise address.refuse("mongodb+srv:// names a domain without a port")
        hosts = [(host, DEFAULT_PORT)]
    else:
        hosts = address.hosts(DEFAULT_PORT)
    database = address.path()
    if not _DATABASE.fullmatch(database):
        raise address.refuse("name a database after the host, for example mongodb://localhost:27017/standfast")
    context = address.tls(default=is_srv or "tlsCAFile" in driver)
    # Asked twice, a context of the caller's is the same one. The driver makes its own and takes none.
    if context is not None and context is address.tls(default=True):
        raise address.refuse("MongoDB's driver takes no TLS context; write ?tls_ca= and ?tlsCertificateKeyFile=")
    options = MongoOptions(
        hosts=tuple([f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts]),
        database=database,
        is_srv=is_srv,
        prefix=address.take_identifier("prefix", "standfast"),
        timeout=address.take_limit("timeout"),
        connect_timeout=address.take_limit("connect_timeout"),
        pool=address.take_count("pool", 10),
        migrate=address.take_flag("migrate", default=True),
        linearizable=address.take_choice("reads", ("majority", "linearizable"), "majority") == "linearizable",
        tls=context is not None,
        driver=driver,
    )
    address.finish(*OPTION_NAMES)
    return options


def _for_the_driver(address: Address) -> dict[str, Any]:
    given: dict[str, Any] = {name: text for name in _DRIVERS if (text := address.take_text(name))}
    authority = address.take_text("tls_ca")
    if authority:
        given["tlsCAFile"] = authority
    if "directConnection" in given:
        given["directConnection"] = given["directConnection"].lower() == "true"
    return given


# --- errors of MongoDB and its driver, translated once, at the edge ------------------------------------------------

DRIVER_ERRORS: Final = (errors.PyMongoError, TimeoutError, OSError)
"""What a call of the driver raises."""

DUPLICATE_KEY: Final = 11_000
NAMESPACE_EXISTS: Final = 48
_SHOWN: Final = 300

_READ_ONLY: Final = (StoreReadOnlyError, "this member is no primary; name the whole replica set, with replicaSet=")
_PERMISSION: Final = (
    UnsuitableStoreError,
    "this user may not do all that is needed; see 'Permissions' in 'Run on MongoDB'",
)
_PASSWORD: Final = (
    UnsuitableStoreError,
    "the server refuses this user and password; check them, and authSource, the database that the user is kept in",
)
_STANDALONE: Final = (
    UnsuitableStoreError,
    "this server is no member of a replica set, and so has no transactions; start it with --replSet and initiate it",
)
_FULL: Final = (StoreFullError, "the server's disk is full; make room and retry")
_GOING: Final = (StoreUnavailableError, "the primary is stepping down or shutting down; retry")
_CODES: Final[Mapping[int, tuple[type[StoreError], str]]] = {
    11: _PASSWORD,
    18: _PASSWORD,
    334: _PASSWORD,
    8_000: _PASSWORD,
    13: _PERMISSION,
    31: _PERMISSION,
    20: _STANDALONE,
    40_573: _STANDALONE,  # change streams are for replica sets only
    14_031: _FULL,
    10_107: _READ_ONLY,
    13_435: _READ_ONLY,
    10_058: _READ_ONLY,
    189: _GOING,
    91: _GOING,
    11_600: _GOING,
    11_602: _GOING,
    13_436: _GOING,
    112: (StoreUnavailableError, "others kept changing the same records; retry"),
    24: (StoreUnavailableError, "a collection is kept locked; retry"),
    50: (StoreUnavailableError, "the server took longer than the time limit; see ?timeout="),
    262: (StoreUnavailableError, "the server took longer than the time limit; see ?timeout="),
    388: (StoreUnavailableError, "the commit does not fit the server's cache; give it more, or write less at once"),
    26: (UnsuitableStoreError, "its collections are missing; open it again with migrate=true"),
    121: (UnsuitableStoreError, "a validator on Standfast's collections refuses its documents; remove it"),
}


def code_of(error: BaseException) -> int:
    """Return the number of what a server answered; 0 if it is not an answer of a server."""
    code = getattr(error, "code", None)
    return code if isinstance(code, int) else 0


def is_transient(error: BaseException) -> bool:
    """Return True if a transaction was undone, and may be tried again at once."""
    return isinstance(error, errors.PyMongoError) and error.has_error_label("TransientTransactionError")


def commit_is_unknown(error: BaseException) -> bool:
    """Return True if a transaction may have been committed: unless the server says that it was undone."""
    if not isinstance(error, errors.PyMongoError):
        return True
    return error.has_error_label("UnknownTransactionCommitResult") or not is_transient(error)


def translate(store: str, error: BaseException, primary: str = "") -> StoreError:
    """Return the error that says what a failed call means and what to do. Nothing was written.

    ``primary`` is where the primary was when it was last seen, for errors of the driver that do not say it.
    """
    said = _said(error, primary)
    code = code_of(error)
    if code in _CODES:
        kind, meaning = _CODES[code]
        return kind(store, f"{meaning} ({said})")
    if isinstance(error, errors.ServerSelectionTimeoutError):
        why = f"no primary could be reached in time; is the server up? ({said})"
        return StoreUnavailableError(store, tls_error(str(error)) or why)
    if isinstance(error, errors.ConfigurationError):
        if "essions are not supported" in said:  # it does not know its set again yet
            said = f"the server is starting, and is not yet a member of its set; retry ({said})"
            return StoreUnavailableError(store, said)
        return UnsuitableStoreError(store, f"the driver refuses the address ({said})")
    why = f"the server refused: {said}"
    if isinstance(error, TimeoutError):
        why = f"the server took longer than the time limit; see ?timeout= ({said})"
    elif isinstance(error, (errors.ConnectionFailure, OSError)):
        why = tls_error(str(error)) or f"the connection failed ({said})"
    return StoreUnavailableError(store, why)


def unknown(store: str, error: BaseException, primary: str = "") -> OutcomeUnknownError:
    """Return the error for a write that was sent, and may or may not have been done."""
    return OutcomeUnknownError(store, f"the answer to a commit was lost ({_said(error, primary)})")


def _said(error: BaseException, primary: str) -> str:
    said = str(error)[:_SHOWN] or type(error).__name__
    if isinstance(error, TimeoutError):
        said = "no answer in time"
    return said if not primary or primary in said else f"{primary}: {said}"


def may_have_happened(error: BaseException) -> bool:
    """Return True if a single write may have been done although it failed."""
    if isinstance(error, (errors.ServerSelectionTimeoutError, errors.WaitQueueTimeoutError)):
        return False
    if isinstance(error, (errors.WTimeoutError, errors.WriteConcernError)):
        return True
    return code_of(error) == 0


# --- the client, and commands with a time limit each ---------------------------------------------------------------

SNAPSHOT: Final = ReadConcern("snapshot")
MAJORITY: Final = WriteConcern("majority", j=True)
DURABLE: Final = {"w": "majority", "j": True}
HERE: Final = {"w": 1}
"""For what is durable as soon as a later commit is: the primary's log is copied in its order."""

ENDED_WITHIN: Final = 1.0
APP_NAME: Final = "standfast"
"""By which sessions of handles are told apart from those of other programs."""


@final
class PrimaryListener(TopologyListener):
    """Remembers where the primary is; the driver tells of it within a second.

    Attributes:
        place: Host and port, of the last one if there is none at the moment; empty if none was seen.
    """

    def __init__(self) -> None:
        self.place = ""

    def look(self, topology: TopologyDescription) -> str:
        """Return where the primary is, or was."""
        for (host, port), server in topology.server_descriptions().items():
            if server.server_type_name == "RSPrimary":
                self.place = f"{host}:{port}"
        return self.place

    def opened(self, event: TopologyOpenedEvent) -> None:
        """Nothing is known yet."""

    def description_changed(self, event: TopologyDescriptionChangedEvent) -> None:
        """Take notice of the primary."""
        self.look(event.new_description)

    def closed(self, event: TopologyClosedEvent) -> None:
        """Nothing more is asked."""


@final
class MongoConnection:
    """One handle's client."""

    def __init__(self, address: Address, options: MongoOptions) -> None:
        self.address, self.options = address, options
        self.name: Final = address.name
        self._primary: Final = PrimaryListener()
        self.client: Final = _client(address, options, self._primary)
        self.database: Final = self.client[options.database]
        self.records: Final = f"{options.prefix}_records"
        self.messages: Final = f"{options.prefix}_messages"
        self.listeners: Final = f"{options.prefix}_listeners"
        self._ending: Final[set[asyncio.Task[None]]] = set()
        self.milliseconds: Final = max(1, int(options.timeout * 1000))

    def collection(self, name: str) -> AsyncCollection[Document]:
        """Return a collection to read from."""
        return self.database[name]

    async def command(self, command: Document, session: AsyncClientSession | None = None) -> Document:
        """Send a command, with the driver's errors; those that a reply carries are raised as well."""
        command["maxTimeMS"] = self.milliseconds
        reply = await self.database.command(command, session=session)
        for failed in reply.get("writeErrors", ()):
            raise errors.OperationFailure(failed.get("errmsg", "refused"), failed.get("code"), failed)
        late = reply.get("writeConcernError")
        if late is not None:
            raise WriteConcernError(late.get("errmsg", "not confirmed"), late.get("code"), late)
        return reply

    async def ask(self, command: Document) -> Document:
        """Send a command that may be sent again, or that nothing depends on."""
        try:
            async with asyncio.timeout(self.options.timeout):
                return await self.command(command)
        except DRIVER_ERRORS as error:
            raise self.failure(error) from error

    async def change(self, command: Document) -> Document:
        """Send a command whose outcome matters."""
        try:
            async with asyncio.timeout(self.options.timeout):
                return await self.command({**command, "writeConcern": DURABLE})
        except DRIVER_ERRORS as error:
            if may_have_happened(error):
                raise self.unknown(error) from error
            raise self.failure(error) from error

    async def find_primary(self) -> None:
        """Wait until the primary is known, so that errors can name it."""
        with contextlib.suppress(errors.InvalidOperation):  # a router of a sharded cluster, which is refused next
            found = await self.client.address
            if found is not None:
                self._primary.place = f"{found[0]}:{found[1]}"

    def failure(self, error: BaseException) -> StoreError:
        """Return the error for a call that failed; see :func:`translate`."""
        return translate(self.name, error, self._primary.look(self.client.topology_description))

    def unknown(self, error: BaseException) -> OutcomeUnknownError:
        """Return the error for a write that may have been done."""
        return unknown(self.name, error, self._primary.look(self.client.topology_description))

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncGenerator[AsyncClientSession]:
        """A transaction on one snapshot. What is not committed is undone, a little later and without waiting for it."""
        session = self.client.start_session(causal_consistency=False)
        try:
            await session.start_transaction(SNAPSHOT, MAJORITY, max_commit_time_ms=self.milliseconds)
            yield session
        finally:
            ending = asyncio.get_running_loop().create_task(_end(session))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def aclose(self) -> None:
        """Close every connection."""
        if self._ending:
            await asyncio.wait(self._ending)
        await self.client.close()


async def _end(session: AsyncClientSession) -> None:
    with contextlib.suppress(*DRIVER_ERRORS):  # then the server ends it, in its own time
        async with asyncio.timeout(ENDED_WITHIN):
            await session.end_session()


def _client(address: Address, options: MongoOptions, listener: PrimaryListener) -> AsyncMongoClient[Document]:
    host = [f"mongodb+srv://{options.hosts[0].rpartition(':')[0]}/"] if options.is_srv else list(options.hosts)
    try:
        return AsyncMongoClient(
            host,
            username=address.user,
            password=address.password if address.user else None,
            tls=options.tls,
            maxPoolSize=options.pool,
            connectTimeoutMS=int(options.connect_timeout * 1000),
            serverSelectionTimeoutMS=int(options.connect_timeout * 1000),
            waitQueueTimeoutMS=int(options.timeout * 1000),
            retryWrites=False,
            serverMonitoringMode="poll",  # one connection less a handle; a failed command has it look at once anyway
            appname=APP_NAME,
            event_listeners=[listener],
            **options.driver,
        )
    except (errors.PyMongoError, ValueError, TypeError, OSError) as error:  # OSError: a certificate's file
        raise address.refuse(f"the driver refuses it: {error}") from None


def is_duplicate(error: BaseException, document: str) -> bool:
    """Return True if a write failed because ``document`` is there already."""
    if not isinstance(error, errors.OperationFailure) or code_of(error) != DUPLICATE_KEY:
        return False
    details = error.details or {}
    return bool(details.get("keyValue", {}).get("_id") == document)
