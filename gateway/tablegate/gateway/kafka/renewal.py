"""When a client of Kafka is to be made anew.

The last thing that a broker says while it shuts down may be that there are no brokers. librdkafka then forgets those
that it was started with, too, and never connects again (https://github.com/confluentinc/librdkafka/issues/5301). From
outside that looks like Kafka being away; so a client that is told nothing for long gives way to another.
"""

import time

RENEW_S = 10.0  # several times what one needs that can connect again


class Renewal:
    """What comes of one client. Any thread."""

    def __init__(self) -> None:
        self._failing_s: float | None = None

    def succeeded(self) -> None:
        """Take in that Kafka answered."""
        self._failing_s = None

    def failed(self) -> bool:
        """Take in that it did not; return whether it has been so for long: make another client now."""
        now_s = time.monotonic()
        failing_s = self._failing_s
        if failing_s is None:
            self._failing_s = now_s
        elif now_s >= failing_s + RENEW_S:
            self._failing_s = None
            return True
        return False
