"""Moving everything that a store keeps: to a file, and from a file into another store."""
