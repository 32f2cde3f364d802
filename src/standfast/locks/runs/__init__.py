"""Run locks: the lease of one activation on one run of a workflow."""
