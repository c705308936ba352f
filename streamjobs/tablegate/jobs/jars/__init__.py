"""Java and the pinned jars that Spark and the embedded broker run with."""


class SetupError(Exception):
    """Something on this machine is missing or wrong, and the user can put it right.

    The message is one sentence: what, where, and what to do.
    """
