"""The console: a page for those who run a gateway."""
