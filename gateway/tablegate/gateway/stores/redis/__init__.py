"""The store in Redis: the layout of its keys, its scripts, its snapshots and writes."""
