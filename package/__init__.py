"""Builds of the package; see README.md."""
