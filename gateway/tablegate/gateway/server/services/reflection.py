"""Reflection over the contracts' own descriptor pool, with the files that a client needs to read any answer."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import _async as aio
from grpc_reflection.v1alpha import reflection_pb2
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.query.call import Call, DuplexMethod, Methods
from tablegate.gateway.query.errors import InvalidField
from tablegate.gateway.server.services.health import HEALTH_SERVICE
from tablegate.gateway.server.services.metadata import STATUS_SERVICE
from tablegate.v1 import errors_pb2
from tablegate.v1 import status_pb2 as gateway_status_pb2

# Both versions have the same messages; grpcio has Python for the older one only.
REFLECTION_SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")

_OWN_FILES: Sequence[Any] = (
    health_pb2.DESCRIPTOR,
    error_details_pb2.DESCRIPTOR,
    status_pb2.DESCRIPTOR,
    errors_pb2.DESCRIPTOR,
    gateway_status_pb2.DESCRIPTOR,
    reflection_pb2.DESCRIPTOR,
)


def reflection_pool(catalogue: Catalogue) -> DescriptorPool:
    """Return a pool of the contracts' files and of ours; where both have a file, the contracts' one counts."""
    files = {file.name: file for file in catalogue.files.file}
    pool = DescriptorPool()
    added: set[str] = set()

    def add(name: str) -> None:
        if name in added:
            return
        added.add(name)
        for dependency in files[name].dependency:
            add(dependency)
        pool.Add(files[name])

    for file in _OWN_FILES:
        _collect(file, files)
    for name in list(files):
        add(name)
    return pool


def _collect(file: FileDescriptor, files: dict[str, descriptor_pb2.FileDescriptorProto]) -> None:
    if file.name in files:
        return
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    files[file.name] = proto
    for dependency in file.dependencies:
        _collect(dependency, files)


def reflection_methods(catalogue: Catalogue) -> Methods:
    """Return the methods of both versions of reflection."""
    names = (*catalogue.services, HEALTH_SERVICE, STATUS_SERVICE, *REFLECTION_SERVICES)
    servicer = aio.ReflectionServicer(names, pool=reflection_pool(catalogue))

    async def describe(requests: AsyncIterator[bytes], _call: Call) -> AsyncIterator[bytes]:
        async for response in servicer.ServerReflectionInfo(_parsed(requests), None):
            yield response.SerializeToString()

    return {f"/{service}/ServerReflectionInfo": DuplexMethod(describe) for service in REFLECTION_SERVICES}


async def _parsed(requests: AsyncIterator[bytes]) -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
    async for data in requests:
        try:
            yield reflection_pb2.ServerReflectionRequest.FromString(data)
        except DecodeError:
            raise InvalidField("", "the request is not a ServerReflectionRequest; send one") from None
