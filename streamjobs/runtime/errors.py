"""What a job says when it cannot go on."""


class JobError(Exception):
    """A job that cannot start or go on; the message is one sentence: what, where, what to do."""
