"""What operators do, and what can be known of a run from outside."""
