"""The parts of ``examples/demo.py``: five scenes, the screen they are drawn on, and what they found."""
