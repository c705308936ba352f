"""Topics that others write: what the bytes of their records are, and the way from those to key bytes and row bytes."""
