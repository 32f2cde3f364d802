"""The tests of Standfast; see CONTRIBUTING.md for what lives where."""
