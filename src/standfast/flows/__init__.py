"""Flows: what happens when two requests collide, declared once and kept whatever transport they come by."""
