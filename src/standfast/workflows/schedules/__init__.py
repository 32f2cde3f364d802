"""Schedules: workflows that are started by the clock. Everything here is a function of values; none reads a clock."""
