"""How much a client may send of what costs us something and the client nothing: floods, and how they are told apart.

Each frame without content (PING, SETTINGS, WINDOW_UPDATE, PRIORITY, empty DATA, …) and each stream that is begun and
given up counts. An honest client sends them too, but along with calls: so the bounds grow with the answers that it got
in the same span of time, and an attacker, who wants many frames and no answers, meets the constant part alone.

Sources: CVE-2019-9511 to 9518 (the floods), CVE-2023-44487 (rapid reset), CVE-2025-8671 (the server is made to reset).
"""

from tablegate.gateway.http.h2.frames import ENHANCE_YOUR_CALM, Http2ConnectionError

SPAN_S = 10.0  # what follows counts in such spans: short enough that an attack ends soon, and longer than bursts
RESETS_MAX = 200  # new streams that end by RST_STREAM of either side; more where there were as many answers
EMPTY_FRAMES_MAX = 1_000  # frames without content, and EMPTY_FRAMES_EACH more for each answer, or DATA frame of one
EMPTY_FRAMES_EACH = 4  # a PING, its acknowledgement and two WINDOW_UPDATEs: what clients send that measure round trips
IDLE_PING_WEIGHT = 10  # 100 PINGs without a call in ten seconds: gRPC servers allow fewer, one in five minutes


class Budget:
    """Counts of one span."""

    __slots__ = ("_sent_at_ping", "_since", "answers", "data_frames", "empty_frames", "resets")

    def __init__(self) -> None:
        self.answers = 0  # whole ones
        self.data_frames = 0  # of other answers
        self.resets = 0
        self.empty_frames = 0
        self._sent_at_ping = 0
        self._since: float | None = None

    def count_reset(self) -> None:
        """Count a reset stream; raise `Http2ConnectionError` where there are too many."""
        self.resets += 1
        if self.resets > RESETS_MAX and self.resets > self.answers:
            raise Http2ConnectionError(ENHANCE_YOUR_CALM, "too many streams are reset")

    def count_empty_frame(self, weight: int, error_text: str) -> None:
        """Count a frame without content; raise `Http2ConnectionError` where there are too many."""
        self.empty_frames += weight
        if self.empty_frames > EMPTY_FRAMES_MAX and self.empty_frames > EMPTY_FRAMES_MAX + EMPTY_FRAMES_EACH * (
            self.answers + self.data_frames
        ):
            raise Http2ConnectionError(ENHANCE_YOUR_CALM, error_text)

    def count_ping(self, *, idle: bool) -> None:
        """Count a PING: more where no call is open, and nothing was answered since the last one."""
        sent = self.answers + self.data_frames
        idle = idle and sent == self._sent_at_ping
        self._sent_at_ping = sent
        # Clients of gRPC know these words, and then ping less often.
        self.count_empty_frame(IDLE_PING_WEIGHT if idle else 1, "too_many_pings")

    def tick(self, now: float) -> bool:
        """Begin another span where it is time; return whether it was."""
        if self._since is not None and now - self._since < SPAN_S:
            return False
        self._since = now
        self.answers = self.data_frames = self.resets = self.empty_frames = 0
        return True
