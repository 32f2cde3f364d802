"""How runs are stored: records, values, exceptions. No clock, and no I/O but commits."""
