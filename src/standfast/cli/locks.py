"""``standfast locks``: look at locks, and operate on them."""

from __future__ import annotations

import click

from standfast.cli.locks_explain import explain_lock
from standfast.cli.locks_inspect import inspect_lock
from standfast.cli.locks_list import list_locks
from standfast.cli.locks_release import release_lock
from standfast.cli.locks_withdraw import withdraw_waiter


@click.group()
def locks() -> None:
    """Look at locks, and operate on them."""


for _command in (list_locks, inspect_lock, explain_lock, release_lock, withdraw_waiter):
    locks.add_command(_command)
