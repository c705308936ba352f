"""The example tables, one file each."""
