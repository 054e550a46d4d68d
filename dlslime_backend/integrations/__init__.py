"""dlslime under the names by which serving frameworks choose what moves their KV caches."""
