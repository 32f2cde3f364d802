"""What ``make test`` leaves out: the one place that decides, the same on every machine.

``make test`` runs everything on memory and SQLite and, on each server, the essentials of every contract. The next has
the mark ``thorough``: ``make test-thorough`` runs kills, faults, one failover of each set-up, and the whole of every
contract on every server; ``.ci/run`` runs both. The rest has the mark ``exhaustive``: ``make test-exhaustive`` runs all
failovers, and whole contracts a second way: behind a pooler, on an older version. ``make prove`` runs all three at
full size.
Plain ``pytest tests/conformance/test_mysql.py`` leaves nothing out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.testing.conformance import LockConformance, RunLockConformance, StoreConformance, WorkflowConformance

if TYPE_CHECKING:
    import pytest

IN_MAKE_TEST: Final = "not thorough and not exhaustive"
"""What ``make test`` asks pytest for."""

ESSENTIAL: Final[dict[type, frozenset[str]]] = {
    StoreConformance: frozenset(
        {"CommitCases", "ExpiryCases", "HistoryCases", "RaceCases", "ScanCases", "SettlingCases"}
        | {"VersionCases", "WatchCases", "WindowCases", "WorkCases"}
    ),
    LockConformance: frozenset({"FenceCases"}),
    RunLockConformance: frozenset({"DrivenRunCases", "RunLockHoldingCases"}),
    WorkflowConformance: frozenset({"RunningCases", "TakingOverCases", "TransactionCases"}),
}
"""The parts of each contract that ``make test`` runs on every server: what the server itself decides.

What is left out is common code on top of that, which memory and SQLite go through in full.
"""

SECOND_WAYS: Final = frozenset(
    {"TestPooledLocks", "TestPooledRunLocks", "TestPooledStore", "TestPooledWorkflows", "TestRedis7"}
)
"""Contracts on a server that is tried directly, or in a newer version, as well."""

FIRST_STORM: Final = "killed, and comes back"
"""The failover that every change passes on each replicated set-up: the old primary comes back, and must not count."""

SECOND_STORM: Final = "Valkey, cluster of three and three, replicas=1-cut off]"
"""A primary that is alive and reached by none: of the set-ups that decide by themselves the one that takes least."""

DISPATCH: Final = "tests/conformance/test_dispatch.py"
"""What requests go through; on servers the contracts of arbiters, policies and ticks show what it stands on."""

RARE_MUTANTS: Final = frozenset(
    {
        "a mutex is joined that got free",
        "a server that does not see that it is replaced",
        "a worker that was replaced commits",
        "acts without its presence",
        "commits that are not fenced by the turn",
        "deadline from the answer",
        "goes on inside of a lock",
        "locks do not guard",
        "locks of other branches are lost",
        "tells nobody who was turned out",
        "the sole server does not guard its commits",
        "ticks that overlap",
        "waits for a purged child",
    }
)
"""Wrong versions of the code that only hundreds of seeds of the simulation reveal."""

LONG: Final[dict[str, tuple[str, ...]]] = {
    # shows that the same is said of the processes of xdist as of ours
    "tests/api/test_forked_workers.py": ("test_what_happened_to_each_test_is_told[of xdist]",),
    # builds the package
    "tests/api/test_package.py": (
        "test_the_sdist_can_be_built_and_tested_from",
        "test_the_same_tree_gives_the_same_bytes",
        "test_the_wheel_has_every_module_and_the_typing_marker",
    ),
    # make check goes through every source by the same rules
    "tests/api/test_security.py": ("test_the_source_keeps_the_rules",),
    # runs two type checkers, as make check does on everything else
    "tests/api/test_start_types.py": ("test_a_type_checker_finds_what_is_wrong_and_nothing_else",),
    # fetches other packages, and starts a worker of each
    "tests/docs/test_peers.py": (
        "test_the_order_in_the_words_of_a_peer_is_fulfilled_by_it[Celery]",
        "test_the_order_in_the_words_of_a_peer_is_fulfilled_by_it[DBOS]",
        "test_the_order_in_the_words_of_a_peer_is_fulfilled_by_it[Temporal]",
    ),
    # without JavaScript, where pages are the same HTML
    "tests/browser/test_dashboard.py": (
        "test_every_action_is_done_by_its_form_in_a_browser[False]",
        "test_every_screen_opens_with_and_without_javascript[False]",
    ),
    # other colours and widths
    "tests/browser/test_dashboard_accessibility.py": (
        "test_no_screen_has_anything_that_keeps_people_out[dark-1280]",
        "test_no_screen_has_anything_that_keeps_people_out[dark-375]",
        "test_no_screen_has_anything_that_keeps_people_out[light-375]",
    ),
    # starts a Prometheus
    "tests/integration/deploy/test_deploy.py": (
        "test_a_real_prometheus_scrapes_a_worker_and_a_server_and_loads_every_rule",
    ),
    # the simulation does the same to runs, without processes
    "tests/integration/fleet/test_operators.py": (
        "test_runs_end_and_workers_rest_whatever_operators_and_kills_do[sqlite]",
    ),
    # run pytest in processes of its own, of which one shows the same
    "tests/integration/services/test_sharing.py": (
        "test_a_missing_server_fails_its_tests_where_all_must_be_there",
        "test_tests_that_want_a_server_can_be_left_out",
    ),
    # [1-2] and [20-8] are as few and as many
    "tests/integration/sqlite/test_contention.py": (
        "test_processes_flat_out_get_fair_shares[1-8]",
        "test_processes_flat_out_get_fair_shares[20-2]",
    ),
    # plays the whole demonstration
    "tests/integration/test_demo.py": (
        "test_a_broken_promise_is_its_exit_code",
        "test_its_summary_for_machines_is_json",
        "test_told_so_it_keeps_serving_until_it_is_interrupted[SIGTERM]",
    ),
    # searches the largest models
    "tests/model/test_line.py": ("test_a_wrong_line_is_found_out[blind to the horizon]",),
    "tests/model/test_mutex_line.py": (
        "test_a_commit_that_looks_at_too_little_is_found_out[hands over to a known one that has gone]",
        "test_no_interleaving_of_commits_breaks_a_mutex[2-3]",
        "test_no_interleaving_of_commits_breaks_a_mutex[3-1]",
    ),
    "tests/model/test_slot_line.py": ("test_no_interleaving_of_commits_breaks_a_line_with_slots[one wants two]",),
    "tests/model/test_record.py": ("test_no_interleaving_breaks_the_lock[abc-2-1]",),
    # runs pytest on what was copied, as [done] does
    "tests/unit/web/dashboard/test_run_pages.py": (
        "test_a_run_copied_as_a_test_passes_when_it_is_pasted_and_fails_with_other_code[wait]",
    ),
    # the most commits of all shapes, each of which is one more crash
    "tests/workflows_corpus/test_corpus.py": (
        "test_a_run_that_is_killed_at_any_commit_ends_as_if_it_had_not_been[children_in_line]",
    ),
}
"""Tests that take seconds, by file, where a shorter one beside each is enough for ``make test``."""

FEW_KINDS: Final = ("mutex", "semaphore-of-3")
"""The kinds of locks that ``make test`` tries on a server: one holder, and several."""

STRIKES: Final = tuple(
    f"tests/integration/{folder}/"
    for folder in [
        "cloudflare",
        "dynamodb",
        "etcd",
        "failover",
        "faults",
        "fleet",
        "libsql",
        "mongodb",
        "moving",
        "mysql",
        "postgresql",
        "redis",
        "services",
        "tls",
        "workflows",
    ]
)
"""Folders whose tests kill, stop, cut off or fill up servers, or start one for each: seconds rather than moments."""


TOUR: Final = "tests/integration/moving/test_round_trip.py::test_everything_goes_on_after_a_tour_of_all_servers[1]"
"""One of the tours that move a store between all pairs of servers: the others are in the same folder."""


def part_of(found: type, name: str) -> str:
    """Return the name of the class that a contract's case is written in."""
    return next((each.__name__ for each in found.__mro__ if name in vars(each)), "")


def is_beyond_essentials(found: type, name: str) -> bool:
    """Return True if ``make test`` leaves out a contract's case on a server."""
    if found.__name__ in SECOND_WAYS:
        return True
    return any(issubclass(found, suite) and part_of(found, name) not in parts for suite, parts in ESSENTIAL.items())


def is_thorough(item: pytest.Item) -> bool:
    """Return True if ``make test`` leaves a test out."""
    file, _, name = item.nodeid.partition("::")
    if file in LONG and name.startswith(LONG[file]):
        return True
    if item.get_closest_marker("services") is None:
        return any(f"[{mutant}]" in item.nodeid for mutant in RARE_MUTANTS)
    if item.nodeid.startswith((*STRIKES, DISPATCH)):
        return item.nodeid != TOUR
    found: type | None = getattr(item, "cls", None)
    if found is None:
        return False
    if issubclass(found, LockConformance) and "[" in name and not any(f"[{kind}" in name for kind in FEW_KINDS):
        return True
    return is_beyond_essentials(found, getattr(item, "originalname", item.name))


def is_exhaustive(item: pytest.Item) -> bool:
    """Return True if ``make test-thorough``, too, leaves out a test that :func:`is_thorough`."""
    if item.nodeid.startswith("tests/integration/failover/test_storms.py"):
        return FIRST_STORM not in item.nodeid and SECOND_STORM not in item.nodeid
    found: type | None = getattr(item, "cls", None)
    if found is None or found.__name__ not in SECOND_WAYS:
        return False
    name = getattr(item, "originalname", item.name)
    return any(issubclass(found, suite) and part_of(found, name) not in parts for suite, parts in ESSENTIAL.items())
