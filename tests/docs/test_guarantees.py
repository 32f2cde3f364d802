"""Every promise of the documentation is proven by a test that exists."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from standfast.testing.conformance import LockConformance, RunLockConformance, StoreConformance
from tests.conformance.arbiters import ArbiterContract
from tests.conformance.collect_contract import CollectContract
from tests.conformance.dispatch_contract import DispatchContract
from tests.conformance.limit_contract import LimitContract
from tests.conformance.refusal_contract import RefusalContract
from tests.conformance.share_contract import ShareContract
from tests.conformance.supersede_contract import SupersedeContract

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "guarantees.md"
TEXT = PAGE.read_text(encoding="utf-8")
WHERE = ("in one process", "memory", "SQLite")
CONTRACTS = {
    "run_locks.py": RunLockConformance,
    "arbiters.py": ArbiterContract,
    "collect_contract.py": CollectContract,
    **dict.fromkeys(
        ("turn_contract.py", "burst_contract.py", "follow_contract.py", "stop_contract.py", "repeat_contract.py"),
        DispatchContract,
    ),
    "limit_contract.py": LimitContract,
    "refusal_contract.py": RefusalContract,
    "share_contract.py": ShareContract,
    "supersede_contract.py": SupersedeContract,
}
SUITES: dict[str, type] = {"locks": LockConformance}
WHERE_LOCKS = ("memory", "SQLite")
WHERE_REQUESTS = ("sole server", "shared store")
WHERE_SERVERS = ("PostgreSQL", "Redis", "MariaDB", "MongoDB", "DynamoDB", "libSQL", "Cloudflare", "etcd")
QUESTIONS = """
without pauses; whatever pauses; write to the space; write elsewhere; first come; dead waiter; killed holder;
silent holder; process kill; power cut; failover; clock; skew; lost answer; fixed time; long and many
"""
QUESTIONS_ABOUT_WORKFLOWS = """
kill -9; recorded step; at-most-once; transaction; any step happens exactly once; one process drives; was paused;
succeeded at once; costs no memory; signal; one id; changed code; histories; kills its workers; start limit;
lock of a run; clean up; tick; purged
"""
QUESTIONS_ABOUT_REQUESTS = """
runs at a time; order of arrival; superseded; not arbitrated; second server; kill -9; last event; idempotency key;
follows a request; done to a session; another tenant; itself; one commit; credentials; first user; webhook;
is refused
"""
OVERVIEW = re.compile(r"^\| \[(?P<promise>.+?)\]\(#\S+\) \| (?P<marks>.+) \|$", re.MULTILINE)
SECTION = re.compile(r"^## (?P<promise>.+)\n(?P<body>(?:(?!^## ).*\n?)*)", re.MULTILINE)
CELL = re.compile(r"^\| (?P<where>[^|]+) \| (?P<mark>[✔✖]) \| (?P<why>.+) \|$", re.MULTILINE)
PROOF = re.compile(r"\[`(?P<name>[\w.]+)`\]\((?P<path>[^)]+)\)")


def sections() -> dict[str, list[re.Match[str]]]:
    """Return the cells of each promise."""
    found = {section["promise"]: list(CELL.finditer(section["body"])) for section in SECTION.finditer(TEXT)}
    return {promise: cells for promise, cells in found.items() if cells}


@cache
def functions(path: Path) -> set[str]:
    """Return the functions of a file, and the methods of its classes with the class before them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    plain = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    methods = {
        f"{owner.name}.{node.name}"
        for owner in tree.body
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return plain | methods


@pytest.mark.parametrize(("name", "path"), sorted(set(PROOF.findall(TEXT))), ids=lambda part: part.split("/")[-1])
def test_a_proof_is_a_test_that_exists(name: str, path: str) -> None:
    """A link names a test function of the file it leads to; a case of the contract is run for every store."""
    file = (PAGE.parent / path).resolve()
    assert name in functions(file)
    if "." in name:
        suite = CONTRACTS.get(file.name) or SUITES.get(file.parent.name, StoreConformance)
        assert name.partition(".")[0] in {case.__name__ for case in suite.__mro__ if _file_of(case) == file}


def _file_of(case: type) -> Path | None:
    found = sys.modules[case.__module__].__file__ if case is not object else None
    return None if found is None else Path(found).resolve()


@pytest.mark.parametrize(
    ("file", "suite"),
    [
        ("test_memory.py", "class TestMemory(StoreConformance)"),
        ("test_sqlite.py", "SqliteFile(StoreConformance)"),
        ("test_lock_memory.py", "class TestMemoryLocks(LockConformance)"),
        ("test_lock_sqlite.py", "class TestSqliteLocks(LockConformance)"),
        ("test_run_locks.py", "class TestMemoryRunLocks("),
        ("test_run_locks.py", "class TestSqliteRunLocks("),
        ("test_arbiters.py", "class TestLocalArbiter(ArbiterContract)"),
        ("test_arbiters.py", "class Shared(ArbiterContract)"),
        ("test_dispatch.py", "class TestLocal(DispatchContract, LimitContract, ShareContract)"),
        ("test_dispatch.py", "class Shared(DispatchContract, LimitContract, ShareContract)"),
        ("test_policies.py", "class _Policies(SupersedeContract, CollectContract, RefusalContract)"),
        *(
            ("test_policies.py", f"class {case}")
            for case in ("TestLocal(_Policies)", "Shared(_Policies)", "TestSharedOnSqlite(", "TestSharedOnPostgresql(")
        ),
        ("test_policies.py", "class TestSharedOnRedis(OnRedis, Shared)"),
        *(
            (f"test_{server}.py", f", {suite})")
            for server in ("postgresql", "redis", "mysql", "mongodb", "dynamodb", "libsql", "cloudflare", "etcd")
            for suite in ("StoreConformance", "LockConformance", "RunLockConformance", "WorkflowConformance")
        ),
    ],
)
def test_a_suite_that_proves_something_is_run_on_the_store(file: str, suite: str) -> None:
    """Cases of a contract prove nothing about a store that they are not run on."""
    assert suite in (ROOT / "tests" / "conformance" / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("promise", sections())
def test_a_promise_is_proven_or_denied_everywhere(promise: str) -> None:
    """Each promise has a cell for each store; a kept one has a proof, another one a reason."""
    cells = sections()[promise]
    assert tuple(cell["where"] for cell in cells) in (WHERE, WHERE_LOCKS, WHERE_REQUESTS, WHERE_SERVERS)
    in_memory = next((cell["why"] for cell in cells if cell["where"] == "memory"), "")
    for cell in cells:
        borrowed = cell["why"].startswith("as memory") and PROOF.search(in_memory)
        assert cell["mark"] == "✖" or PROOF.search(cell["why"]) or borrowed
        assert cell["mark"] == "✔" or len(cell["why"].split()) >= 3


def test_the_overview_is_the_sum_of_the_sections() -> None:
    """The tables in front say the same as the sections, in the same order."""
    overview = {row["promise"]: row["marks"].split(" | ") for row in OVERVIEW.finditer(TEXT)}
    assert overview == {promise: [cell["mark"] for cell in cells] for promise, cells in sections().items()}
    assert list(overview) == list(sections())


def test_the_table_of_locks_answers_the_questions_that_matter() -> None:
    """Pauses, stale writers, order, crashes, durability, clocks, lost answers, wakes and limits: all are there."""
    promises = " ".join(name for name, cells in sections().items() if len(cells) == len(WHERE_LOCKS)).lower()
    for question in QUESTIONS.split(";"):
        assert question.strip() in promises


def test_the_table_of_workflows_answers_the_questions_that_matter() -> None:
    """Crashes, repetition, ownership, waiting, news, changed code, limits and schedules: all are there."""
    promises = " ".join(name for name, cells in sections().items() if len(cells) == len(WHERE_LOCKS)).lower()
    for question in QUESTIONS_ABOUT_WORKFLOWS.split(";"):
        assert question.strip() in promises


def test_the_table_of_requests_answers_the_questions_that_matter() -> None:
    """Collisions, order, crashes, repetition, following, tenants, credentials and signatures: all are there."""
    cells_of = sections().items()
    promises = " ".join(name for name, cells in cells_of if cells[0]["where"] == WHERE_REQUESTS[0]).lower()
    for question in QUESTIONS_ABOUT_REQUESTS.split(";"):
        assert question.strip() in promises
