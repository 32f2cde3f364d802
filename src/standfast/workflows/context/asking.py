"""Asking the store on behalf of a run's code."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from standfast.errors import StoreError
from standfast.workflows.running.control import Unload

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from standfast.workflows.running.activation import Activation

T = TypeVar("T")


async def ask(activation: Activation, work: Awaitable[T]) -> T:
    """Return what the store answers. Should it fail, that is no matter of the run's code: the run is loaded again."""
    try:
        return await work
    except StoreError:
        activation.abandon()
        raise Unload from None
