"""Durable workflows: runs that survive the death of their process."""
