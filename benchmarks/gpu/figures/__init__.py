"""Costs of messages and transfers on GPUs."""
