"""The algebra of lines: pure functions of values, without I/O and without a clock."""
