"""Driving lines over a store: records, steps, presences, and getting in and out of a line."""
