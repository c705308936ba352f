"""Snapshot files: what is in one, and the directory or object store that keeps them."""
