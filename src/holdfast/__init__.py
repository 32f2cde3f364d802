"""Durable concurrency for Python: who may run, on which key, in which order, until when."""

from __future__ import annotations

from holdfast.errors import HoldfastError
from holdfast.keys import Key, KeyFamily
from holdfast.space import Space, open

__all__ = ["HoldfastError", "Key", "KeyFamily", "Space", "open"]
