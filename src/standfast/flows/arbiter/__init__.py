"""Arbiters: who of the requests of one key has its turn, in one process or across all that share a store."""

from __future__ import annotations
