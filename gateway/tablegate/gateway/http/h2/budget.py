"""How much of what costs us, and them nothing, a client may send over one HTTP/2 connection."""

from tablegate.gateway.http.h2.frames import ENHANCE_YOUR_CALM, ConnectionFault

SPAN_S = 10.0  # what follows counts in such spans
RESETS_MAX = 200  # new streams reset by the client, or any through its fault; more where there were as many answers
NOISE_MAX = 1_000  # frames that carry nothing, and NOISE_EACH more for each answer, or piece of one
NOISE_EACH = 4
NOISE_OF_IDLE_PING = 10


class Budget:
    """Counts of one span."""

    __slots__ = ("_sent_at_ping", "_since", "answers", "noise", "pieces", "resets")

    def __init__(self) -> None:
        self.answers = 0  # whole ones
        self.pieces = 0  # DATA frames of other answers
        self.resets = 0
        self.noise = 0
        self._sent_at_ping = 0
        self._since: float | None = None

    def count_reset(self) -> None:
        """Count a reset stream; raise `ConnectionFault` where there are too many (CVE-2023-44487, CVE-2025-8671)."""
        self.resets += 1
        if self.resets > RESETS_MAX and self.resets > self.answers:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many streams are reset")

    def count_noise(self, weight: int, fault: str) -> None:
        """Count a frame that carries nothing; raise `ConnectionFault` where there are too many."""
        self.noise += weight
        if self.noise > NOISE_MAX and self.noise > NOISE_MAX + NOISE_EACH * (self.answers + self.pieces):
            raise ConnectionFault(ENHANCE_YOUR_CALM, fault)

    def count_ping(self, *, idle: bool) -> None:
        """Count a PING: more where no call is at work, and nothing was answered since the last one."""
        sent = self.answers + self.pieces
        idle = idle and sent == self._sent_at_ping
        self._sent_at_ping = sent
        # Clients of gRPC know these words, and then ping less often.
        self.count_noise(NOISE_OF_IDLE_PING if idle else 1, "too_many_pings")

    def tick(self, now: float) -> bool:
        """Begin another span where it is time; return whether it was."""
        if self._since is not None and now - self._since < SPAN_S:
            return False
        self._since = now
        self.answers = self.pieces = self.resets = self.noise = 0
        return True
