"""Measurements: one program a subject, each against the bare limit and against its peers in one run."""
