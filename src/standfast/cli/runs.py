"""``standfast runs``: look at the runs of workflows, and talk to them."""

from __future__ import annotations

import click

from standfast.cli.runs_list import list_runs
from standfast.cli.runs_show import show_run
from standfast.cli.runs_start import start_run
from standfast.cli.runs_tail import tail_run
from standfast.cli.runs_talk import cancel_run, retry_run, signal_run


@click.group()
def runs() -> None:
    """Look at the runs of workflows, and talk to them."""


for _command in (start_run, list_runs, show_run, tail_run, cancel_run, retry_run, signal_run):
    runs.add_command(_command)
