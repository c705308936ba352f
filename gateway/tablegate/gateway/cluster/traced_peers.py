"""Calls to other gateways as parts of the calls that they are made for; what they come to there is a part of them."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from google.rpc import code_pb2
from typing_extensions import override

from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.forward_token import ForwardToken
from tablegate.gateway.cluster.peers import GrpcForwarder
from tablegate.gateway.cluster.scatter import Forwarded, PeerFailed
from tablegate.gateway.telemetry.request_ids import TRACE_HEADERS
from tablegate.gateway.telemetry.spans import SPAN, Span


class TracedForwarder(GrpcForwarder):
    """Asks gateways over gRPC, with traces."""

    @override
    async def unary(
        self,
        peer: Peer,
        path: str,
        data: bytes,
        token: ForwardToken,
        time_left_s: float | None,
        *,
        may_wait: bool = False,
    ) -> Forwarded:
        with _hop(peer, path) as hop:
            try:
                answer = await super().unary(peer, path, data, token, time_left_s, may_wait=may_wait)
            except BaseException as error:
                hop.answer(_code_of(error))
                raise
            hop.answer("OK")
            return answer

    @override
    async def stream(
        self, peer: Peer, path: str, data: bytes, token: ForwardToken, time_left_s: float | None
    ) -> AsyncGenerator[bytes, None]:
        hop, code = _hop(peer, path), "OK"
        try:
            async with aclosing(super().stream(peer, path, data, token, time_left_s)) as messages:
                # The call is made when its first message is asked for. Set for longer, `SPAN` would be that of others.
                was = SPAN.set(hop)
                try:
                    message = await anext(messages, None)
                finally:
                    SPAN.reset(was)
                while message is not None:
                    yield message
                    message = await anext(messages, None)
        except BaseException as error:
            code = _code_of(error)
            raise
        finally:
            hop.answer(code)
            hop.end()

    @override
    def _metadata(self, token: ForwardToken) -> Sequence[tuple[str, str]]:
        metadata, trace = super()._metadata(token), SPAN.get().headers()
        return (*(field for field in metadata if field[0] not in TRACE_HEADERS), *trace) if trace else metadata

    @override
    def _measure(self, peer: Peer, code: str, took_s: float) -> None:
        super()._measure(peer, code, took_s)
        SPAN.get().show(self._durations[peer.gateway_id, code], took_s)


def _hop(peer: Peer, path: str) -> Span:
    return SPAN.get().hop(path, peer.gateway_id, peer.endpoint)


def _code_of(error: BaseException) -> str:
    # Whoever reads no further, or goes away, ends a call with CANCELLED.
    return code_pb2.Code.Name(error.status.code) if isinstance(error, PeerFailed) else "CANCELLED"
