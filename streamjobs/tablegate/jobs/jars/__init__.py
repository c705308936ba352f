"""What one machine needs to try everything: Java, pinned jars, a real Kafka, sample events."""


class LocalError(Exception):
    """Something that the user can put right; the message is one sentence: what, where, what to do."""
