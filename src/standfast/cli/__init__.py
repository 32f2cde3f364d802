"""The command ``standfast``: look at locks, operate on them, and run programs under them.

Nothing else of the package imports it, so a program that uses Standfast as a library does not load it.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, Final, final

import click

from standfast.cli.locks import locks
from standfast.cli.run import run
from standfast.cli.target import INTERRUPTED, Target, completion, end, fail, target_options
from standfast.errors import StandfastError

# A fixed table, never data. What they need would delay every ``standfast run``.
_LOADED_LATER: Final = {
    "accept-loss": ("standfast.cli.store", "accept_the_loss"),
    "audit": ("standfast.cli.audit", "audit"),
    "cloudflare": ("standfast.cli.cloudflare", "cloudflare"),
    "dashboard": ("standfast.cli.dashboard", "dashboard"),
    "export": ("standfast.cli.store", "export_all"),
    "fence": ("standfast.cli.store", "fence_all"),
    "import": ("standfast.cli.store", "import_all"),
    "limits": ("standfast.cli.limits", "limits"),
    "mcp": ("standfast.cli.serve", "mcp"),
    "requests": ("standfast.cli.requests", "requests"),
    "runs": ("standfast.cli.operations", "runs"),
    "schedules": ("standfast.cli.schedules", "schedules"),
    "serve": ("standfast.cli.serve", "serve"),
    "status": ("standfast.cli.status", "status"),
    "thaw": ("standfast.cli.store", "thaw"),
    "top": ("standfast.cli.top", "top"),
    "worker": ("standfast.cli.worker", "worker"),
    "workers": ("standfast.cli.worker", "workers"),
}


@final
class _Application(click.Group):
    """Shows errors of ours as messages; a traceback is for the unexpected."""

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
        except click.UsageError as problem:
            if problem.message.startswith("Got unexpected extra") and "://" in problem.message:
                advice = "A store is named by an option: --store URL."
                raise click.UsageError(f"{problem.message}. {advice}", problem.ctx) from None
            raise
        except StandfastError as problem:
            fail(problem)
        except KeyboardInterrupt:
            end("interrupted", INTERRUPTED)
        except BrokenPipeError:  # what reads this has seen enough, as head does: no error
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the last flush fails again
            ctx.exit(0)


@click.group(cls=_Application, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="standfast", prog_name="standfast", message="%(prog)s %(version)s")
@target_options
@click.pass_context
def application(context: click.Context) -> None:
    """Inspect, operate and run durable locks, workflows and flows."""
    context.ensure_object(Target)
    if os.environ.get("NO_COLOR"):
        context.color = False


application.add_command(completion)
application.add_command(locks)
application.add_command(run)


def main() -> None:
    """Run the command with the arguments of this process, and exit."""
    application(prog_name="standfast")
