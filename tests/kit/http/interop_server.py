"""The server that gRPC's interoperability tests ask: their TestService, as handlers behind the server.

`python -m tests.kit.http.interop_server` prints its port, and serves until its input ends. What the tests expect is in
grpc/doc/interop-test-descriptions.md. A stream of the client's comes as one of both sides: of all that it sends, the
one answer is made.
"""

import asyncio
import base64
import sys
import tempfile
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.rpc import code_pb2, status_pb2
from grpc_tools import protoc

from tablegate.gateway.http.cors import CrossOriginExchange
from tablegate.gateway.http.rpc.calls import CallLimits, ServedCall
from tablegate.gateway.http.rpc.grpc import COMPRESSED
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.call import Call, DuplexMethod, Methods, StreamMethod, UnaryMethod
from tablegate.gateway.query.errors import InvalidField
from tests.kit.http.asked_errors import AskedError, take_any_error

SERVICE = "/grpc.testing.TestService"
TIMEOUT_S = 30.0
MESSAGE_BYTES_MAX = 512 * 1024  # the tests send 271,828 bytes, which is more than a gateway takes
PROTO = Path(__file__).with_name("interop.proto")
_ECHO_INITIAL, _ECHO_TRAILING = b"x-grpc-test-echo-initial", b"x-grpc-test-echo-trailing-bin"


@cache
def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "interop.binpb")
        assert protoc.main(["protoc", f"-I{PROTO.parent}", f"--descriptor_set_out={out}", str(PROTO)]) == 0
        for file in FileDescriptorSet.FromString(out.read_bytes()).file:
            pool.Add(file)
    return pool


@cache
def _message(name: str) -> Any:
    return GetMessageClass(_pool().FindMessageTypeByName(f"grpc.testing.{name}"))


def _echo_metadata(call: Call) -> None:
    """Send back what the client wants to see again, before and after the answer."""
    assert isinstance(call, ServedCall)
    headers = call.exchange.headers
    initial, trailing = headers.get(_ECHO_INITIAL), headers.get(_ECHO_TRAILING)
    if initial is not None:
        call.exchange = CrossOriginExchange(call.exchange, ((_ECHO_INITIAL, initial),))
    if trailing is not None:
        padded = trailing + b"=" * (-len(trailing) % 4)
        call.set_trailer(((_ECHO_TRAILING, base64.b64encode(base64.b64decode(padded)).rstrip(b"=")),))


def _raise_if_asked(request: Any) -> None:
    status = request.response_status
    if status.code:
        assert status.code in code_pb2.Code.values()
        raise AskedError(status_pb2.Status(code=status.code, message=status.message))


def _empty_call(data: bytes, call: Call) -> bytes:
    _echo_metadata(call)
    assert not data
    return b""


def _unary_call(data: bytes, call: Call) -> bytes:
    _echo_metadata(call)
    assert isinstance(call, ServedCall)
    request = _message("SimpleRequest").FromString(data)
    if request.HasField("expect_compressed") and request.expect_compressed.value != (
        call.exchange.body[0] & COMPRESSED
    ):
        raise InvalidField("expect_compressed", "is not what the message is")
    _raise_if_asked(request)
    response = _message("SimpleResponse")()
    response.payload.body = bytes(request.response_size)
    encoded: bytes = response.SerializeToString()
    return encoded


def _cacheable_unary_call(data: bytes, call: Call) -> bytes:
    """Answer with what was sent: so a client sees whether an answer is that of an earlier call."""
    _echo_metadata(call)
    response = _message("SimpleResponse")(payload=_message("SimpleRequest").FromString(data).payload)
    encoded: bytes = response.SerializeToString()
    return encoded


async def _answers(request: Any) -> AsyncIterator[bytes]:
    for parameters in request.response_parameters:
        await asyncio.sleep(parameters.interval_us / 1_000_000)
        response = _message("StreamingOutputCallResponse")()
        response.payload.body = bytes(parameters.size)
        yield response.SerializeToString()
    _raise_if_asked(request)


async def _streaming_output_call(data: bytes, call: Call) -> AsyncIterator[bytes]:
    _echo_metadata(call)
    async for answer in _answers(_message("StreamingOutputCallRequest").FromString(data)):
        yield answer


async def _streaming_input_call(messages: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
    _echo_metadata(call)
    size = 0
    async for data in messages:
        size += len(_message("StreamingInputCallRequest").FromString(data).payload.body)
    yield _message("StreamingInputCallResponse")(aggregated_payload_size=size).SerializeToString()


async def _full_duplex_call(messages: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
    _echo_metadata(call)
    async for data in messages:
        async for answer in _answers(_message("StreamingOutputCallRequest").FromString(data)):
            yield answer


async def _half_duplex_call(messages: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
    _echo_metadata(call)
    for data in [each async for each in messages]:
        async for answer in _answers(_message("StreamingOutputCallRequest").FromString(data)):
            yield answer


METHODS: Methods = {
    f"{SERVICE}/EmptyCall": UnaryMethod(_empty_call, TIMEOUT_S, TIMEOUT_S),
    f"{SERVICE}/UnaryCall": UnaryMethod(_unary_call, TIMEOUT_S, TIMEOUT_S),
    f"{SERVICE}/CacheableUnaryCall": UnaryMethod(_cacheable_unary_call, TIMEOUT_S, TIMEOUT_S),
    f"{SERVICE}/StreamingOutputCall": StreamMethod(_streaming_output_call),
    f"{SERVICE}/StreamingInputCall": DuplexMethod(_streaming_input_call),
    f"{SERVICE}/FullDuplexCall": DuplexMethod(_full_duplex_call),
    f"{SERVICE}/HalfDuplexCall": DuplexMethod(_half_duplex_call),
}


async def _serve() -> None:
    server = HttpServer(METHODS, "127.0.0.1:0", call_limits=CallLimits(message_bytes_max=MESSAGE_BYTES_MAX))
    await server.start()
    print(server.port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    take_any_error()
    asyncio.run(_serve())
