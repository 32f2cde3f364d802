"""``standfast completion``: scripts that let a shell complete our options, commands and keys."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

SHELLS: Final = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script for a shell that completes options, commands and keys.

    \b
    bash:  eval "$(standfast completion bash)"        in ~/.bashrc
    zsh:   eval "$(standfast completion zsh)"         in ~/.zshrc
    fish:  standfast completion fish | source         in ~/.config/fish/config.fish
    """  # noqa: D301 -- click keeps the lines after a backspace as they are
    kind = get_completion_class(shell)
    if kind is None:  # pragma: no cover -- all three are built in
        raise click.UsageError(f"There is no completion for {shell}.")
    scripts = kind(context.find_root().command, {}, "standfast", "_STANDFAST_COMPLETE")
    # Not scripts.source(): that runs a shell to find its version, and this may be another machine's.
    click.echo(scripts.source_template % scripts.source_vars())
