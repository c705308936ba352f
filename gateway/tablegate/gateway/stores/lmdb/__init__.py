"""The store in LMDB: the layout of its bytes, its environment, its snapshots and writes."""
