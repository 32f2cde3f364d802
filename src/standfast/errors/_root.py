"""The root of the tree."""

from __future__ import annotations


class StandfastError(Exception):
    """The root of every error that Standfast raises on purpose."""
