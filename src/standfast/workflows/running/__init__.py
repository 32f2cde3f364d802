"""A run in memory: its branches, its history as it is replayed and grows, and how it ends."""
