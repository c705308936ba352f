"""Asking other gateways: what is asked of one, what it answers, and who was slow or not there lately."""

import time
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from google.rpc import code_pb2
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.forward_token import ForwardToken

FORWARDED = "tablegate-forwarded"  # the name of the metadata that says: one of ours asks

COOLING_S = 1.0  # a peer that was not there is asked last for so long
HEDGE_MIN_S = 0.01
HEDGE_MAX_S = 0.25
HEDGE_TIMES = 4  # as long as the peer takes in the mean: then the next replica is asked as well
HEDGES_SPARE = 100  # second calls beyond the share of all: those of a moment in which a gateway hangs
HEDGES_SHARE = 0.1  # of all calls: where every gateway is slow, twice the calls would make it worse
FIRST_MEAN_S = 0.025  # of a peer that was not asked yet: its connection has to be made
MEAN_WEIGHT = 0.1  # of the newest answer in the mean

_DOMAIN = "tablegate"
_ELSEWHERE = frozenset({"", "PARTITION_UNAVAILABLE", "STORE_UNAVAILABLE", "SHUTTING_DOWN"})
_STREAM_ELSEWHERE = frozenset({"OVERLOADED", "TABLE_REBUILT"})  # too: not all switch generations at once

Fields = tuple[tuple[bytes, bytes], ...]
"""Names, lower case, and values."""


class Forwarded(NamedTuple):
    """An answer: the response's bytes, and the trailer's fields that are ours."""

    message: bytes
    trailer: Fields


class PeerFailed(Exception):
    """A gateway answered with an error, or not at all. `status` is as it came, with all details.

    `reason` is that of its ErrorInfo in our domain, such as "PARTITION_UNAVAILABLE"; "" where there is none: then it
    was no gateway that spoke, but the network. `is_elsewhere`: another replica may answer. `trailer` as in `Forwarded`.
    """

    def __init__(self, status: Status, trailer: Fields = ()) -> None:
        super().__init__(status.message)
        self.status = status
        self.trailer = trailer
        self.reason = _reason_of(status)
        self.is_elsewhere = self.reason in _ELSEWHERE and status.code != code_pb2.DEADLINE_EXCEEDED

    @property
    def is_elsewhere_for_stream(self) -> bool:
        """Return whether another replica may go on with a stream."""
        return self.is_elsewhere or self.reason in _STREAM_ELSEWHERE

    @property
    def is_away(self) -> bool:
        """Return whether the gateway is not there, for any partition."""
        return self.is_elsewhere and self.reason != "PARTITION_UNAVAILABLE"


@dataclass(slots=True)
class _Known:
    """What is known of a peer. `mean_s`: how long it takes to answer."""

    mean_s: float = FIRST_MEAN_S
    cool_until_s: float = 0.0


class Forwarder:
    """Calls to other gateways, in the event loop that runs. `sign` makes the text of a mark."""

    def __init__(self, sign: Callable[[ForwardToken], str]) -> None:
        self.sign = sign
        self._known: dict[Peer, _Known] = {}
        self._hedges_left = float(HEDGES_SPARE)

    async def unary(
        self,
        peer: Peer,
        path: str,
        data: bytes,
        mark: ForwardToken,
        time_left_s: float | None,
        *,
        may_wait: bool = False,
    ) -> Forwarded:
        """Return what the peer answers; raise `PeerFailed`. `may_wait`: its request asks for freshness."""
        raise NotImplementedError

    def stream(
        self, peer: Peer, path: str, data: bytes, mark: ForwardToken, time_left_s: float | None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the messages of the peer; raise `PeerFailed`. Close it (`aclosing`) to cancel the call.

        It takes a message from the network when it is asked for one: who reads slowly makes the peer wait.
        """
        raise NotImplementedError

    def keep(self, peers: Iterable[Peer]) -> None:
        """Forget all peers but these, and close what is open to others."""
        peers = set(peers)
        for peer in [peer for peer in self._known if peer not in peers]:
            del self._known[peer]

    async def close(self) -> None:
        """Close what is open."""
        self.keep(())

    def answered(self, peer: Peer, took_s: float | None) -> None:
        """Take in that a peer answered, and how long it took; None where it may have had to wait for something."""
        self._hedges_left = min(HEDGES_SPARE, self._hedges_left + HEDGES_SHARE)
        if took_s is None:
            return
        known = self._know(peer)
        known.mean_s += MEAN_WEIGHT * (took_s - known.mean_s)

    def cool(self, peer: Peer) -> None:
        """Ask this peer last for a moment: it was not there, or another answered while it was waited for."""
        self._know(peer).cool_until_s = time.monotonic() + COOLING_S

    def is_cooling(self, peer: Peer) -> bool:
        """Return whether a peer was not there lately."""
        known = self._known.get(peer)
        return known is not None and known.cool_until_s > time.monotonic()

    def hedge_s(self, peer: Peer) -> float:
        """Return how long an answer of this peer is waited for before another is asked as well."""
        known = self._known.get(peer)
        mean_s = FIRST_MEAN_S if known is None else known.mean_s
        return min(HEDGE_MAX_S, max(HEDGE_MIN_S, HEDGE_TIMES * mean_s))

    def may_hedge(self) -> bool:
        """Return whether one more call may be a second one; count it."""
        if self._hedges_left < 1:
            return False
        self._hedges_left -= 1
        return True

    def _know(self, peer: Peer) -> _Known:
        return self._known.setdefault(peer, _Known())


def _reason_of(status: Status) -> str:
    info = ErrorInfo()
    for detail in status.details:
        if detail.Unpack(info) and info.domain == _DOMAIN:
            return str(info.reason)
    return ""
