"""The server that the Connect conformance suite tests: its service, as handlers behind the server.

Run by the suite, with the descriptor set of its protos: it writes a message of what to serve to our input, and reads
from our output where it is served. Each is preceded by its length in four bytes.
"""

import asyncio
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.rpc import code_pb2, status_pb2

from tablegate.gateway.http.cors import CrossOriginExchange
from tablegate.gateway.http.json_codec import JsonCodec
from tablegate.gateway.http.rpc.calls import Calls, ServedCall
from tablegate.gateway.http.rpc.connect import ConnectProtocol
from tablegate.gateway.http.rpc.grpc_web import GrpcWebProtocol
from tablegate.gateway.http.server import HttpServer, WebProtocol
from tablegate.gateway.http.tls import TlsFiles
from tablegate.gateway.query.call import Call, Fields, Methods, StreamMethod, UnaryMethod
from tests.kit.http.asked_errors import AskedError, take_any_error

PACKAGE = "connectrpc.conformance.v1"
SERVICE = f"/{PACKAGE}.ConformanceService"
TIMEOUT_S = 30.0


class ConformanceService:
    """The suite's service, as its protos describe it, but for the streams of clients."""

    def __init__(self, pool: DescriptorPool) -> None:
        self._pool = pool

    def message_class(self, name: str) -> Any:
        """Return a message class of the suite."""
        return GetMessageClass(self._pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))

    def methods(self) -> Methods:
        """Return what is implemented."""
        return {
            f"{SERVICE}/Unary": UnaryMethod(self._unary("Unary"), TIMEOUT_S, TIMEOUT_S),
            f"{SERVICE}/IdempotentUnary": UnaryMethod(self._unary("IdempotentUnary"), TIMEOUT_S, TIMEOUT_S),
            f"{SERVICE}/ServerStream": StreamMethod(self._server_stream),
        }

    def _unary(self, name: str) -> Any:
        async def answer(data: bytes, call: Call) -> bytes:
            request = self.message_class(f"{name}Request").FromString(data)
            definition = request.response_definition
            info = self._request_info(request, call)
            self._set_metadata(definition, call)
            await asyncio.sleep(definition.response_delay_ms / 1000)
            if definition.WhichOneof("response") == "error":
                raise self._asked(definition.error, info)
            response = self.message_class(f"{name}Response")()
            response.payload.data = definition.response_data
            response.payload.request_info.CopyFrom(info)
            encoded: bytes = response.SerializeToString()
            return encoded

        return answer

    async def _server_stream(self, data: bytes, call: Call) -> AsyncIterator[bytes]:
        request = self.message_class("ServerStreamRequest").FromString(data)
        definition = request.response_definition
        info = self._request_info(request, call)
        self._set_metadata(definition, call)
        call._begin()  # type: ignore[attr-defined]  # the suite wants the head of a stream before its first message
        for place, item in enumerate(definition.response_data):
            await asyncio.sleep(definition.response_delay_ms / 1000)
            response = self.message_class("ServerStreamResponse")()
            response.payload.data = item
            if place == 0:
                response.payload.request_info.CopyFrom(info)
            yield response.SerializeToString()
        if definition.HasField("error"):
            raise self._asked(definition.error, None if definition.response_data else info)

    def _request_info(self, request: Any, call: Call) -> Any:
        assert isinstance(call, ServedCall)
        info = self.message_class("ConformancePayload.RequestInfo")()
        for name, value in call.exchange.headers.items():
            info.request_headers.add(name=name.decode("latin-1"), value=[value.decode("latin-1")])
        if {b"connect-timeout-ms", b"grpc-timeout"} & set(call.exchange.headers):
            left_s = call.time_left_s()
            assert left_s is not None
            info.timeout_ms = int(left_s * 1000)
        info.requests.add().Pack(request)
        if call.exchange.method == b"GET":
            query = call.exchange.target.decode("latin-1").partition("?")[2]
            for pair in query.split("&"):
                param, _, text = pair.partition("=")
                info.connect_get_info.query_params.add(name=param, value=[text])
        return info

    def _set_metadata(self, definition: Any, call: Call) -> None:
        assert isinstance(call, ServedCall)
        call.exchange = CrossOriginExchange(call.exchange, _fields(definition.response_headers))
        call.set_trailer(_fields(definition.response_trailers))

    def _asked(self, error: Any, info: Any) -> AskedError:
        status = status_pb2.Status(code=error.code, message=error.message)
        for detail in error.details:
            status.details.add(type_url=detail.type_url, value=detail.value)
        if info is not None:
            status.details.add().Pack(info)
        assert status.code in code_pb2.Code.values()
        return AskedError(status)


def _fields(headers: Any) -> Fields:
    return tuple((header.name.lower().encode(), value.encode()) for header in headers for value in header.value)


def _tls_files(request: Any, directory: Path) -> TlsFiles:
    certificate, key, ca = directory / "certificate.pem", directory / "key.pem", directory / "client_ca.pem"
    certificate.write_bytes(request.server_creds.cert)
    key.write_bytes(request.server_creds.key)
    ca.write_bytes(request.client_tls_cert)
    return TlsFiles(certificate, key, ca if request.client_tls_cert else None)


async def _serve(service: ConformanceService, pool: DescriptorPool, request: Any, directory: Path) -> None:
    def web(methods: Methods, calls: Calls) -> Sequence[WebProtocol]:
        codec = JsonCodec([pool, descriptor_pool.Default()])
        return [GrpcWebProtocol(methods, calls), ConnectProtocol(methods, calls, codec)]

    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    tls = _tls_files(request, directory) if request.use_tls else None
    server = HttpServer(service.methods(), "127.0.0.1:0", web=web, tls=tls)
    await server.start()
    response = service.message_class("ServerCompatResponse")(host="127.0.0.1", port=server.port)
    if request.use_tls:
        response.pem_cert = request.server_creds.cert
    encoded = response.SerializeToString()
    sys.stdout.buffer.write(len(encoded).to_bytes(4, "big") + encoded)
    sys.stdout.buffer.flush()
    await stopped.wait()
    await server.stop(0)


def main() -> None:
    """Serve what the suite asks for until it ends us."""
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(Path(sys.argv[1]).read_bytes()).file:
        pool.Add(file)
    service = ConformanceService(pool)
    length = int.from_bytes(sys.stdin.buffer.read(4), "big")
    request = service.message_class("ServerCompatRequest").FromString(sys.stdin.buffer.read(length))
    take_any_error()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_serve(service, pool, request, Path(directory)))


if __name__ == "__main__":
    main()
