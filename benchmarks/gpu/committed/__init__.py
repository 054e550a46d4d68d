"""A prototype of committed waits, in plain driver calls."""
