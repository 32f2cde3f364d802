"""The JSON gateway of etcd over HTTP: options, messages, errors, and requests that go on at another member.

Every request that is sent here may be sent twice: writes compare the revision of what they replace, and the attempt of
a commit is among that. So a request whose answer is missing is sent again, to the next member, until its time is over.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, Final, TypeVar, final

import aiohttp
import msgspec
from msgspec import Struct

from standfast.errors import (
    InvalidChangeError,
    OutcomeUnknownError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreRewoundError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores.address import Address, tls_error
from standfast.stores.remote.connection import ConnectBackoff
from standfast.stores.remote.liveness import take_grace
from standfast.stores.remote.service_time import ServiceTime, shared_time

T = TypeVar("T", bound="EtcdReply")

# --- options: what a URL says --------------------------------------------------------------------------------------

PORT: Final = 2379
SHORTEST_LEASE: Final = 10.0
"""Several times the second by which two processes may be apart in what they take for the time."""

QUOTA: Final = 2 * 1024**3
"""How many bytes etcd takes if its operator did not say (``--quota-backend-bytes``)."""

FEWEST_OPERATIONS, MOST_OPERATIONS = 32, 4096
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*", re.ASCII)
_LONGEST_PREFIX: Final = 200
OPTION_NAMES: Final = (
    *("tls", "tls_ca", "timeout", "connect_timeout", "pool", "shortest_lease"),
    *("max_txn_ops", "max_request_bytes", "quota", "liveness", "grace"),
)


class EtcdOptions(Struct, frozen=True):
    """How the keys below a prefix are opened. Its ``repr`` shows no secret.

    Attributes:
        urls: Where the members are reached.
        prefix: What all keys begin with.
        name: The store as shown to people.
        user: Who to be; empty where the cluster has no users.
        password: Returns the password as it is now.
        tls: How connections are encrypted; None: they are not.
        timeout: How many seconds a request may take, at all members together.
        connect_timeout: How many seconds connecting to one member may take.
        pool: How many connections there are at most.
        shortest_lease: The shortest lease, in seconds, that locks accept on this store. If it is short, opening the
            first handle of a process takes a second longer: the time must be known better.
        max_txn_ops: How many operations a transaction may have, as the cluster was told.
        max_request_bytes: How many bytes a request may have, as the cluster was told.
        quota: How many bytes the cluster may take, as it was told; a store that is nearly full is reported.
        liveness: Whether a process keeps a lease alive by which others see that it died.
        grace: For how many seconds others wait for a process that was silent; 0: as the cluster's elections need it.
    """

    urls: tuple[str, ...]
    prefix: str = "standfast"
    name: str = "etcd://"
    user: str = ""
    password: Callable[[], str] = str
    tls: ssl.SSLContext | None = None
    timeout: float = 5.0
    connect_timeout: float = 1.0
    pool: int = 16
    shortest_lease: float = SHORTEST_LEASE
    max_txn_ops: int = 128
    max_request_bytes: int = 1_572_864
    quota: int = QUOTA
    liveness: bool = True
    grace: float = 0.0

    def __repr__(self) -> str:
        return f"EtcdOptions({self.name})"


def read_options(address: Address) -> EtcdOptions:
    """Read a URL: ``etcd://[user:password@]host[:port],.../namespace[?tls=true&...]``.

    Raises:
        InvalidUrlError: Something in it cannot be used.
    """
    tls = address.tls(default=False)
    scheme = "http" if tls is None else "https"
    hosts = address.hosts(PORT)
    prefix = address.path() or "standfast"
    if not _PREFIX.fullmatch(prefix) or len(prefix) > _LONGEST_PREFIX:
        raise address.refuse(
            "after the hosts comes what all keys begin with: letters, digits, '_', '-', '.', and '/' in between,"
            " as in etcd://host/standfast"
        )
    if address.user and address.password is None:
        raise address.refuse("give the password of the user, in the URL or by sf.admin.Credentials")
    if not address.user and address.password is not None:
        raise address.refuse("a password needs a user: etcd://user@host/namespace")
    options = EtcdOptions(
        urls=tuple(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}" for host, port in hosts),
        prefix=prefix,
        name=address.name,
        user=address.user or "",
        password=lambda: address.password or "",
        tls=tls,
        timeout=address.take_limit("timeout"),
        connect_timeout=address.take_seconds("connect_timeout", 1.0),
        pool=address.take_count("pool", 16, most=100),
        shortest_lease=address.take_seconds("shortest_lease", SHORTEST_LEASE),
        max_txn_ops=address.take_count("max_txn_ops", 128, most=MOST_OPERATIONS),
        max_request_bytes=address.take_count("max_request_bytes", 1_572_864, most=1 << 30),
        quota=address.take_count("quota", QUOTA, most=1 << 50),
        liveness=address.take_flag("liveness", default=True),
        grace=take_grace(address, default=0.0),
    )
    address.finish(*OPTION_NAMES)
    if options.max_txn_ops < FEWEST_OPERATIONS:
        raise address.refuse(f"max_txn_ops is at least {FEWEST_OPERATIONS}; etcd's own default is 128")
    if options.connect_timeout <= 0:
        raise address.refuse("connect_timeout must be positive, for example 1s")
    return options


# --- messages: what the gateway answers. Numbers come as text, bytes as base64 --------------------------------------


class EtcdHeader(Struct, frozen=True):
    """Which cluster answered, and which revision it was at."""

    cluster_id: str = ""
    revision: int = 0


class EtcdReply(Struct, frozen=True, kw_only=True):
    """What every answer has."""

    header: EtcdHeader = EtcdHeader()


class KeyValue(Struct, frozen=True, gc=False):
    """A key as it is."""

    key: bytes
    mod_revision: int = 0
    value: bytes = b""


class RangeReply(EtcdReply, frozen=True):
    """Keys of a range, and how many there are in all of it."""

    kvs: list[KeyValue] = []
    count: int = 0


class OperationReply(Struct, frozen=True):
    """What became of one operation of a transaction; only what was read is of interest."""

    response_range: RangeReply | None = None
    response_txn: TxnReply | None = None

    @property
    def found(self) -> RangeReply:
        """What was read."""
        return self.response_range or RangeReply()


class TxnReply(EtcdReply, frozen=True):
    """Which branch was taken, and what came of its operations."""

    succeeded: bool = False
    responses: list[OperationReply] = []


class GrantReply(EtcdReply, frozen=True):
    """A lease: how many seconds it lasts."""

    ID: int = 0
    TTL: int = 0


class TimeToLiveReply(EtcdReply, frozen=True):
    """For how many whole seconds more a lease lasts, less than none if it is over, and for how many it was granted."""

    TTL: int = 0
    grantedTTL: int = 0  # noqa: N815 -- the name on the wire


class KeepAliveReply(EtcdReply, frozen=True):
    """What became of a lease that was to be kept alive."""

    result: GrantReply = GrantReply()


class StatusReply(EtcdReply, frozen=True):
    """What a member tells of itself."""

    version: str = ""
    dbSize: int = 0  # noqa: N815 -- the name on the wire
    dbSizeQuota: int = 0  # noqa: N815 -- the name on the wire, since 3.6
    leader: str = ""


class EtcdAlarm(Struct, frozen=True):
    """Something that a member is in need of."""

    alarm: str = ""


class AlarmReply(EtcdReply, frozen=True):
    """The alarms of the cluster."""

    alarms: list[EtcdAlarm] = []


class _TokenReply(EtcdReply, frozen=True):
    token: str = ""


class EtcdFailure(Struct, frozen=True):
    """What the gateway says of a request that failed: a code of gRPC, and words."""

    code: int = 2
    message: str = ""


RANGE: Final = ("/v3/kv/range", msgspec.json.Decoder(RangeReply, strict=False))
TXN: Final = ("/v3/kv/txn", msgspec.json.Decoder(TxnReply, strict=False))
GRANT: Final = ("/v3/lease/grant", msgspec.json.Decoder(GrantReply, strict=False))
KEEP_ALIVE: Final = ("/v3/lease/keepalive", msgspec.json.Decoder(KeepAliveReply, strict=False))
TIME_TO_LIVE: Final = ("/v3/lease/timetolive", msgspec.json.Decoder(TimeToLiveReply, strict=False))
REVOKE: Final = ("/v3/lease/revoke", msgspec.json.Decoder(EtcdReply, strict=False))  # rule: the address of etcd
STATUS: Final = ("/v3/maintenance/status", msgspec.json.Decoder(StatusReply, strict=False))
ALARM: Final = ("/v3/maintenance/alarm", msgspec.json.Decoder(AlarmReply, strict=False))
_LOG_IN: Final = ("/v3/auth/authenticate", msgspec.json.Decoder(_TokenReply, strict=False))
_failures: Final = msgspec.json.Decoder(EtcdFailure, strict=False)
_encode: Final = msgspec.json.Encoder().encode


# --- errors of etcd, translated once, at the edge ------------------------------------------------------------------

OK, NOT_FOUND = 200, 404

UNKNOWN, EXPIRED, UNAVAILABLE, UNAUTHENTICATED = 2, 4, 14, 16
"""Codes of gRPC."""

_NO_GATEWAY: Final = (
    "it does not answer as etcd's JSON gateway does; is it etcd, and is the gateway switched off"
    " (--enable-grpc-gateway=false)?"
)
_STALE_TOKEN: Final = ("invalid auth token", "auth store is old")


class CompactedError(Exception):
    """A revision was asked for whose history is gone."""


_WORDS: Final[tuple[tuple[str, type[StoreError], str], ...]] = (
    (
        "space exceeded",
        StoreFullError,
        (
            "its quota is used up. Compact and defragment it, or raise --quota-backend-bytes; then disarm the alarm:"
            " etcdctl alarm disarm"
        ),
    ),
    (
        "permission denied",
        StoreReadOnlyError,
        "the user may not do that; grant its role readwrite on the prefix of the store",
    ),
    (
        "user name is empty",
        StoreUnavailableError,
        "the cluster has users; name one: etcd://user:password@host/namespace",
    ),
    (
        "authentication is not enabled",
        UnsuitableStoreError,
        "the cluster has no users (auth is not enabled); leave the user out",
    ),
    ("invalid user ID or password", StoreUnavailableError, "the cluster refuses the user or the password"),
    ("corrupt", StoreCorruptError, "the cluster is damaged; restore the member from the others"),
)
"""What etcd says, and what that means. Its codes are too few to tell."""

_TOO_LARGE: Final = ("request is too large", "too many operations", "larger than max")


def translate(failure: EtcdFailure, name: str) -> Exception:
    """Return what to raise for a refusal that says that nothing was done."""
    said = failure.message.removeprefix("etcdserver: ")
    if "has been compacted" in said:
        return CompactedError(said)
    if any(words in said for words in _TOO_LARGE):
        return InvalidChangeError(f"it is too large for the cluster: {said}; write it in several commits")
    for words, error, advice in _WORDS:
        if words in said:
            return error(name, advice)
    return StoreError(name, f"the cluster refused it: {said}")


def _unreachable(error: BaseException, name: str, url: str) -> StoreUnavailableError:
    cause = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    where = url.partition("://")[2]
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        problem = tls_error(str(cause)) or f"its certificate is refused ({cause})"
    elif isinstance(cause, ssl.SSLError) or isinstance(error, aiohttp.ClientSSLError):
        problem = "it does not speak TLS there; for a cluster without it, leave out ?tls=true"
    elif isinstance(cause, ConnectionResetError) and url.startswith("https"):
        problem = "the connection was cut before it was encrypted; does it speak TLS there?"
    elif isinstance(error, TimeoutError):
        problem = "no connection could be made in time; is it up?"
    else:
        problem = f"no connection could be made ({type(cause).__name__}); is it up?"
    return StoreUnavailableError(name, f"{where}: {problem}")


class RefusedError(Exception):
    """A member did not do it for now; ``is_certain``: and it never will."""

    def __init__(self, error: StoreError, *, is_certain: bool, is_unreachable: bool = False) -> None:
        super().__init__(error)
        self.problem, self.is_certain, self.is_unreachable = error, is_certain, is_unreachable


# --- requests --------------------------------------------------------------------------------------------------------

FIRST_TRY: Final = 1.0
"""For how many seconds the first member is waited for. What was forwarded to a leader that died is never answered."""

PAUSE, LONGEST_PAUSE = 0.02, 0.3
_PIECE: Final = 1 << 18


@final
class EtcdConnection:
    """One handle's connections to a cluster, on one event loop.

    Attributes:
        revision: The highest revision that any answer has shown.
        time: The time of the cluster.
    """

    def __init__(self, options: EtcdOptions, cluster: str = "") -> None:
        self.options: Final = options
        self.name: Final = options.name
        self.time: Final[ServiceTime] = shared_time(f"{','.join(options.urls)}/{options.prefix}")
        self.revision = 0
        self.cluster = cluster
        self._backoff: Final = ConnectBackoff()
        self._member = 0
        self._token = ""
        self._lost = ""
        self._session: Final = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=options.pool, ssl=options.tls or False),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    @property
    def member(self) -> str:
        """The URL of the member that is asked first."""
        return self.options.urls[self._member]

    def move_on(self) -> None:
        """Ask the next member from now on."""
        self._member = (self._member + 1) % len(self.options.urls)

    async def ask(
        self,
        kind: tuple[str, msgspec.json.Decoder[T]],
        request: Mapping[str, Any],
        *,
        writes: bool = False,
        seconds: float | None = None,
    ) -> T:
        """Return the answer to a request, of whichever member gives one.

        Raises:
            OutcomeUnknownError: It ``writes``, was sent, and no answer came.
            StoreUnavailableError: It was certainly not done, or does not write.
        """
        body, loop = _encode(request), asyncio.get_running_loop()
        deadline, patience, pause = loop.time() + (seconds or self.options.timeout), FIRST_TRY, PAUSE
        unreachable, doubtful = 0, False
        await self._backoff.wait(self.options.timeout)
        while True:
            floor = self.revision
            try:
                answer = await self._try(kind, body, min(patience, deadline - loop.time()))
            except RefusedError as refused:
                self.move_on()
                doubtful = doubtful or not refused.is_certain
                unreachable = unreachable + 1 if refused.is_unreachable else 0
                if loop.time() + pause >= deadline or unreachable >= len(self.options.urls):
                    self._backoff.failed()
                    error = refused.problem
                    is_unknown = writes and doubtful
                    raise (OutcomeUnknownError(self.name, error.problem) if is_unknown else error) from error.__cause__
                if not refused.is_unreachable:
                    await asyncio.sleep(pause)
                    pause, patience = min(pause * 2, LONGEST_PAUSE), patience * 2
                continue
            self._backoff.succeeded()
            self._check(answer.header, floor if kind[0].startswith("/v3/kv/") else 0)
            return answer

    def _check(self, header: EtcdHeader, floor: int) -> None:
        """Notice a cluster that was restored from a backup, or is another one: what was acknowledged may be gone.

        What is asked of keys is answered by most of the members, and so never from behind what was seen before.
        """
        if header.cluster_id and header.cluster_id != self.cluster:
            if self.cluster:
                self._lost = "another cluster answers, perhaps one restored from a backup; check it, and open it again"
            self.cluster = self.cluster or header.cluster_id
        elif 0 < header.revision < floor:
            self._lost = f"it was at revision {floor}, and is at {header.revision} now: restored from a backup?"
        if self._lost:  # for good: opening it anew accepts what is there
            raise StoreRewoundError(self.name, self._lost)
        self.note_revision(header.revision)

    def note_revision(self, revision: int) -> None:
        """Take note of a revision that the cluster has shown: it never answers from behind it."""
        self.revision = max(self.revision, revision)

    async def _try(self, kind: tuple[str, msgspec.json.Decoder[T]], body: bytes, seconds: float) -> T:
        path, decoder = kind
        if self.options.user and not self._token:
            await self._log_in(seconds)
        status, answer = await self._post(path, body, seconds)
        if status == OK:
            try:
                return decoder.decode(answer)
            except msgspec.DecodeError as error:
                raise UnsuitableStoreError(self.name, _NO_GATEWAY) from error
        failure = self._failure(status, answer)
        if failure.code == UNAUTHENTICATED or any(said in failure.message for said in _STALE_TOKEN):
            self._token = ""
            refused = StoreUnavailableError(self.name, f"the cluster refuses the token: {failure.message}")
            raise RefusedError(refused, is_certain=True)
        if failure.code in {UNAVAILABLE, EXPIRED, UNKNOWN} or "too many requests" in failure.message:
            busy = "too many requests" in failure.message
            said = f"{self.member.partition('://')[2]}: {failure.message.removeprefix('etcdserver: ')}"
            told = (StoreBusyError if busy else StoreUnavailableError)(self.name, said)
            raise RefusedError(told, is_certain=busy or "no leader" in failure.message)
        raise translate(failure, self.name)

    def _failure(self, status: int, answer: bytes) -> EtcdFailure:
        try:
            failure = _failures.decode(answer)
        except msgspec.DecodeError:
            failure = EtcdFailure(UNKNOWN if status >= 500 else NOT_FOUND, answer[:200].decode(errors="replace"))  # noqa: PLR2004 -- the class of failures of a server
        if status == NOT_FOUND and "etcdserver" not in failure.message:
            raise UnsuitableStoreError(self.name, _NO_GATEWAY)
        return failure

    async def _log_in(self, seconds: float) -> None:
        request = _encode({"name": self.options.user, "password": self.options.password()})
        status, answer = await self._post(_LOG_IN[0], request, seconds)
        if status != OK:
            failure = self._failure(status, answer)
            if failure.code in {UNAVAILABLE, EXPIRED, UNKNOWN}:
                raise RefusedError(StoreUnavailableError(self.name, failure.message), is_certain=True)
            raise translate(failure, self.name)
        self._token = _LOG_IN[1].decode(answer).token

    async def _post(self, path: str, body: bytes, seconds: float) -> tuple[int, bytes]:
        limits = aiohttp.ClientTimeout(total=max(seconds, 0.01), sock_connect=self.options.connect_timeout)
        sent = self.time.elapsed()
        try:
            # A large body is sent piece by piece, so that others get their turn on the loop.
            data = BytesIO(body) if len(body) > _PIECE else body
            url = f"{self.member}{path}"
            async with self._session.post(url, data=data, headers=self._headers(), timeout=limits) as response:
                if date := response.headers.get("Date"):
                    self.time.learn(date, sent)
                return response.status, await response.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientSSLError) as error:
            problem = _unreachable(error, self.name, self.member)
            raise RefusedError(problem, is_certain=True, is_unreachable=True) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            text = "no answer came in time" if isinstance(error, TimeoutError) else "the connection broke"
            problem = StoreUnavailableError(self.name, f"{self.member.partition('://')[2]}: {text}")
            raise RefusedError(problem, is_certain=False) from error

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        return headers | {"Authorization": self._token} if self._token else headers

    # --- beside the API of keys --------------------------------------------------------------------------------

    async def version(self, url: str) -> tuple[str, str]:
        """Return which version a member has, and the ``Date`` of its answer; empty if it does not answer."""
        limits = aiohttp.ClientTimeout(total=self.options.connect_timeout + FIRST_TRY)
        try:
            async with self._session.get(f"{url}/version", timeout=limits) as response:
                told = msgspec.json.decode(await response.read(), type=dict[str, Any])
                return str(told.get("etcdserver", "")), response.headers.get("Date", "")
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
            return "", ""

    async def open_stream(self, path: str, body: bytes) -> aiohttp.ClientResponse:
        """Return a stream of answers from the member that is asked first. What is sent must be known by then.

        A WebSocket would take more later on, but has no way to say which user it is.
        """
        if self.options.user and not self._token:
            await self._log_in(FIRST_TRY)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=self.options.connect_timeout)
        headers = self._headers() | {"Grpc-Metadata-hasleader": "true"}
        try:
            response = await self._session.post(f"{self.member}{path}", data=body, headers=headers, timeout=limits)
        except aiohttp.ClientError as error:
            raise _unreachable(error, self.name, self.member) from error
        if response.status != OK:
            self._token = ""
            answer = await response.read()
            raise StoreUnavailableError(self.name, self._failure(response.status, answer).message)
        return response

    async def aclose(self) -> None:
        """Close all connections."""
        await self._session.close()
