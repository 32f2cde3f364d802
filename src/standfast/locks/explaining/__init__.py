"""Explaining a line to people: who holds, who waits, and for how long it may take."""
