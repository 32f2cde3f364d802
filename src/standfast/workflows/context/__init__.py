"""What a workflow does through its context."""
