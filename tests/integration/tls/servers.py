"""Servers that let nobody in without TLS, each in its own way."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import redis
from msgspec import Struct
from pymongo import MongoClient

from tests import services
from tests.integration.etcd.clusters import ask
from tests.integration.libsql.conftest import Tokens
from tests.integration.mysql.ground import run_sql
from tests.integration.tls.authority import NAME, Authority
from tests.services.server_process import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

FORMS: Final = {
    "postgresql": "postgresql://standfast{password}@{place}/standfast?schema={name}",
    "redis": "rediss://default{password}@{place}/0?prefix={name}",
    "mysql": "mysql://standfast{password}@{place}/standfast?prefix={name}",
    "mongodb": "mongodb://app{password}@{place}/standfast?prefix={name}&directConnection=true",
    "dynamodb": "dynamodb://AKIASTANDFAST{password}@{place}/{name}?create=true",
    "libsql": "libsql://{password}@{place}?prefix={name}",
    "cloudflare": "cloudflare://{password}@{place}?prefix={name}",
    "etcd": "etcd://app{password}@{place}/{name}?shortest_lease=1s",
}


class Guarded(Struct, frozen=True):
    """A server: where it is, what opens it, and where it takes plain connections if TLS is put in front of it."""

    kind: str
    port: int
    password: str
    plain: str = ""

    def url(
        self, password: str = "", *, host: str = NAME, port: int = 0, ca: Path | None = None, more: str = ""
    ) -> str:
        """Return the URL of a place that no other test uses, with TLS unless ``more`` says otherwise."""
        secret = f":{password}" if password else ""
        place = {"place": f"{host}:{port or self.port}", "name": f"t{uuid.uuid4().hex[:12]}", "password": secret}
        authority = "" if ca is None else f"&tls_ca={ca}"
        return FORMS[self.kind].format(**place).replace("//@", "//") + (more or "&tls=true") + authority


@contextlib.contextmanager
def _postgresql(_authority: Authority) -> Iterator[Guarded]:
    """The server that all tests share; its program was built without TLS."""
    url = services.url("postgresql")
    yield Guarded("postgresql", 0, urlsplit(url).password or "", url)


@contextlib.contextmanager
def _redis(authority: Authority) -> Iterator[Guarded]:
    """Redis 7: the program of Valkey was built without TLS."""
    port = free_port()
    settings = {"port": port, "cert-file": authority.chain, "key-file": authority.key, "ca-cert-file": authority.ca}
    arguments = [part for name, value in settings.items() for part in (f"--tls-{name}", str(value))]
    with services.private("redis7", arguments=[*arguments, "--tls-auth-clients", "no"]) as server:
        with contextlib.closing(redis.Redis.from_url(server.url)) as client:
            client.config_set("port", 0)
        yield Guarded("redis", port, urlsplit(server.url).password or "")


@contextlib.contextmanager
def _mysql(authority: Authority) -> Iterator[Guarded]:
    arguments = [f"--ssl-cert={authority.chain}", f"--ssl-key={authority.key}"]
    with services.private("mysql", arguments=arguments) as server:
        asyncio.run(run_sql(server.url, "SET GLOBAL require_secure_transport=ON"))
        parts = urlsplit(server.url)
        yield Guarded("mysql", parts.port or 0, parts.password or "")


@contextlib.contextmanager
def _mongodb(authority: Authority) -> Iterator[Guarded]:
    arguments = ["--tlsMode", "allowTLS", "--tlsCertificateKeyFile", str(authority.both)]
    arguments += ["--tlsCAFile", str(authority.ca), "--tlsAllowConnectionsWithoutCertificates"]
    password = uuid.uuid4().hex
    with services.private("mongodb", arguments=arguments) as server:
        with MongoClient[dict[str, Any]](server.url) as client:
            client.admin.command("createUser", "app", pwd=password, roles=["root"])
            for mode in ("preferTLS", "requireTLS"):
                client.admin.command("setParameter", 1, tlsMode=mode)
        yield Guarded("mongodb", urlsplit(server.url).port or 0, password)


@contextlib.contextmanager
def _dynamodb(_authority: Authority) -> Iterator[Guarded]:
    """The emulator that all tests share; it speaks no TLS."""
    url = services.url("dynamodb")
    yield Guarded("dynamodb", 0, urlsplit(url).password or "", url)


@contextlib.contextmanager
def _libsql(authority: Authority) -> Iterator[Guarded]:
    """A server that wants a token; it speaks no TLS."""
    tokens, file = Tokens(), authority.ca.with_name("tokens")
    file.write_text(tokens.public_key)
    with services.private("libsql", arguments=["--auth-jwt-key-file", str(file)]) as server:
        yield Guarded("libsql", 0, tokens.token(a="rw"), server.url)


@contextlib.contextmanager
def _cloudflare(_authority: Authority) -> Iterator[Guarded]:
    """The runtime that all tests share; here it speaks no TLS."""
    url = services.url("cloudflare")
    yield Guarded("cloudflare", 0, urlsplit(url).password or "", url)


@contextlib.contextmanager
def _etcd(_authority: Authority) -> Iterator[Guarded]:
    """A member with users; TLS is put in front of it."""
    password = uuid.uuid4().hex
    with services.private("etcd", arguments=["--bcrypt-cost", "4"]) as server:
        ask(server.url, "/v3/auth/role/add", name="root")
        for user in ("root", "app"):
            ask(server.url, "/v3/auth/user/add", name=user, password=password)
            ask(server.url, "/v3/auth/user/grant", user=user, role="root")
        ask(server.url, "/v3/auth/enable")
        yield Guarded("etcd", 0, password, server.url)


STARTED: Final[dict[str, Callable[[Authority], AbstractContextManager[Guarded]]]] = {
    "postgresql": _postgresql,
    "redis": _redis,
    "mysql": _mysql,
    "mongodb": _mongodb,
    "dynamodb": _dynamodb,
    "libsql": _libsql,
    "cloudflare": _cloudflare,
    "etcd": _etcd,
}
