"""The command ``holdfast``: look at locks, operate on them, and run programs under them.

Nothing else of the package imports it, so a program that uses Holdfast as a library does not load it.
"""
