"""Durable workflows: runs that survive the death of their process."""

from __future__ import annotations
