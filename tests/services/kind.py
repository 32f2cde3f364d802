"""What a kind of server has to say so that it can be started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path
    from signal import Signals


class Kind(Protocol):
    """A kind of server; one module each."""

    orderly: Signals
    """The signal that asks it to shut down in good order."""

    def program(self) -> Path:
        """Return the program.

        Raises:
            MissingError: it cannot be had on this machine.
        """
        ...

    def prepare(self, folder: Path, behind: str) -> None:
        """Make the data folder; ``behind`` is the URL of the server that this one stands in front of."""
        ...

    def command(self, folder: Path, port: int) -> list[str]:
        """Return the command that runs it in the foreground."""
        ...

    def url(self, folder: Path, port: int) -> str:
        """Return where it is reached, with its password."""
        ...

    def ready(self, url: str) -> bool:
        """Tell whether it takes work."""
        ...
