"""The root of the tree."""

from __future__ import annotations


class HoldfastError(Exception):
    """The root of every error that Holdfast raises on purpose."""
