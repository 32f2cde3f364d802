"""The command itself: its global options, and what can be asked of it."""

from __future__ import annotations

import os
from typing import Any, final

import click

from holdfast.cli.completion import completion
from holdfast.cli.exits import fail
from holdfast.cli.locks import locks
from holdfast.cli.run import run
from holdfast.cli.runs import runs
from holdfast.cli.targets import Target, target_options
from holdfast.cli.worker import worker
from holdfast.errors import HoldfastError


@final
class _Application(click.Group):
    """Shows errors of ours as messages; a traceback is for what nobody expected."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 -- whatever a command returns
        try:
            return super().invoke(ctx)
        except HoldfastError as problem:
            fail(problem)


@click.group(cls=_Application, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="holdfast", prog_name="holdfast", message="%(prog)s %(version)s")
@target_options
@click.pass_context
def application(context: click.Context) -> None:
    """Durable locks and workflows: look at them, operate on them, and run them."""
    context.ensure_object(Target)
    if os.environ.get("NO_COLOR"):
        context.color = False


application.add_command(completion)
application.add_command(locks)
application.add_command(run)
application.add_command(runs)
application.add_command(worker)


def main() -> None:
    """Run the command with the arguments of this process, and exit."""
    application(prog_name="holdfast")
