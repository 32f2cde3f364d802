"""The parts of ``examples/demo.py``: four scenes, the screen they are drawn on, and what they found."""
