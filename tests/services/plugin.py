"""What tests get by name: the URL of each server, a mark, and a loud line for each server that is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import services

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter


@pytest.fixture(scope="session")
def cloudflare_url() -> str:
    """Our worker on Cloudflare's runtime, ``workerd``: ``cloudflare://:secret@127.0.0.1:port?tls=false``."""
    return services.url("cloudflare")


@pytest.fixture(scope="session")
def dynamodb_url() -> str:
    """An emulator of DynamoDB: ``dynamodb://key:secret@127.0.0.1:port/table?region=us-east-1&tls=false``."""
    return services.url("dynamodb")


@pytest.fixture(scope="session")
def etcd_url() -> str:
    """Etcd 3.5, one member: ``etcd://127.0.0.1:port/standfast``."""
    return services.url("etcd")


@pytest.fixture(scope="session")
def libsql_url() -> str:
    """A libSQL server: ``libsql://127.0.0.1:port?tls=0``."""
    return services.url("libsql")


@pytest.fixture(scope="session")
def mongodb_url() -> str:
    """MongoDB 6, a replica set of one: ``mongodb://127.0.0.1:port/database?replicaSet=rs0&directConnection=true``."""
    return services.url("mongodb")


@pytest.fixture(scope="session")
def mysql_url() -> str:
    """MariaDB 10.11: ``mysql://user:password@127.0.0.1:port/database``."""
    return services.url("mysql")


@pytest.fixture(scope="session")
def pgbouncer_url() -> str:
    """The pooler pgbouncer in transaction mode, in front of the server of `postgresql_url`; the same form of URL."""
    return services.url("pgbouncer")


@pytest.fixture(scope="session")
def postgresql_url() -> str:
    """PostgreSQL 18: ``postgresql://user:password@127.0.0.1:port/database``."""
    return services.url("postgresql")


@pytest.fixture(scope="session")
def redis_url() -> str:
    """Valkey 9, every write on disk before the answer: ``redis://:password@127.0.0.1:port/0``."""
    return services.url("redis")


@pytest.fixture(scope="session")
def redis7_url() -> str:
    """Redis 7.0, else as `redis_url`."""
    return services.url("redis7")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that takes the URL of a server, so that ``-m "not services"`` leaves it out."""
    for item in items:
        if URLS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.services)


URLS = {name for name in globals() if name.endswith("_url")}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand over which servers were missing, if this process is one of several."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["missing services"] = services.MISSING


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Take over which servers were missing in a process that has ended."""
    services.MISSING.update(getattr(node, "workeroutput", {}).get("missing services", {}))


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Say loudly which servers were missing."""
    for kind, why in sorted(services.MISSING.items()):
        terminalreporter.write_line(f"NOT TESTED ON {kind}: {why}", red=True, bold=True)
