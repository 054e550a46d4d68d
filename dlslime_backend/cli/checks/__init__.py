"""The doctor's checks: each module has functions that yield findings about a host."""
