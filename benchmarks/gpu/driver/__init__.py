"""Behaviour of the CUDA driver: programs without dlslime."""
