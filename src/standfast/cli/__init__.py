"""The command ``standfast``: look at locks, operate on them, and run programs under them.

Nothing else of the package imports it, so a program that uses Standfast as a library does not load it.
"""
