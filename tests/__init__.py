"""The tests of Holdfast; see CONTRIBUTING.md for what lives where."""
