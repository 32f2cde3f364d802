"""What a run says about its progress: the last word of it, for whoever looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.errors import EncodeError
from standfast.workflows.storing.values import PLAIN

if TYPE_CHECKING:
    from standfast.workflows.running.activation import Activation

LARGEST: Final = 64 * 1024


def set_progress(activation: Activation, value: object) -> None:
    """Write the progress with the next commit. While the run is replayed, what it said then was written then."""
    packed = PLAIN.pack(value)
    if len(packed) > LARGEST:
        raise EncodeError(f"the progress takes {len(packed):,} bytes, at most {LARGEST:,} are allowed")
    journal = activation.journal
    if journal is None or activation.is_unloading or not activation.replay.is_over:
        return
    journal.set_progress(packed)
    activation.host.dirty.add(activation)
