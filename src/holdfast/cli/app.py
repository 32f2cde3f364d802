"""The command itself: its global options, and what can be asked of it."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Final, final

import click

from holdfast.cli.completion import completion
from holdfast.cli.exits import fail
from holdfast.cli.locks import locks
from holdfast.cli.run import run
from holdfast.cli.targets import Target, target_options
from holdfast.errors import HoldfastError

# A fixed table, never data. What they need would delay every ``holdfast run``.
_LOADED_LATER: Final = {
    "export": ("holdfast.cli.moving_export", "export_all"),
    "fence": ("holdfast.cli.moving_fence", "fence_all"),
    "import": ("holdfast.cli.moving_import", "import_all"),
    "mcp": ("holdfast.cli.mcp", "mcp"),
    "runs": ("holdfast.cli.runs", "runs"),
    "serve": ("holdfast.cli.serve", "serve"),
    "thaw": ("holdfast.cli.moving_thaw", "thaw"),
    "worker": ("holdfast.cli.worker", "worker"),
}


@final
class _Application(click.Group):
    """Shows errors of ours as messages; a traceback is for what nobody expected."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *_LOADED_LATER})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name."""
        if cmd_name in _LOADED_LATER and cmd_name not in self.commands:
            module, name = _LOADED_LATER[cmd_name]
            self.add_command(getattr(import_module(module), name))  # rule: the module comes from the fixed table above
        return super().get_command(ctx, cmd_name)

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
    """Durable locks, workflows and flows: look at them, operate on them, and run them."""
    context.ensure_object(Target)
    if os.environ.get("NO_COLOR"):
        context.color = False


application.add_command(completion)
application.add_command(locks)
application.add_command(run)


def main() -> None:
    """Run the command with the arguments of this process, and exit."""
    application(prog_name="holdfast")
