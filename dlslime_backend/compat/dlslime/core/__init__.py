"""The common parts of the endpoints of all generations."""
