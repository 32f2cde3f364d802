"""States that are kept in slots, and locks by hand on any slot."""
