"""Connectors and plugins for serving frameworks: KV caches move over dlslime."""
