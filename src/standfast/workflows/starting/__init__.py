"""Starting runs and sending them something."""
