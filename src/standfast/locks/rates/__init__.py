"""Rate limiters: a durable token bucket with a line in front of it."""
