"""A gateway as commands ask it, about any contract.

`Gateway` learns by gRPC reflection which tables, queries and message types are served, binds them as the gateway itself
does, and builds messages from them at run time. So the command line needs neither a contract nor generated code.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import Message
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tablegate.gateway.cli.connecting import (
    HTTPS,
    NO_TRUST,
    AskError,
    InterruptibleStreams,
    ShownCredential,
    Trust,
    ask_errors,
    close,
    target_of,
    trust,
)
from tablegate.gateway.cli.errors import fail
from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.catalogue import (
    BatchGetQuery,
    Catalogue,
    CountQuery,
    GetQuery,
    Query,
    RangeQuery,
    ScanQuery,
    SubscribeQuery,
)
from tablegate.v1 import query_pb2
from tablegate.v1 import status_pb2 as gateway_status_pb2

if TYPE_CHECKING:  # the client need not be installed
    from tablegate.client import Subscription, TokenStore

CALL_TIMEOUT_S = 10.0  # a person waits
CHANNEL_OPTIONS = (
    ("grpc.max_reconnect_backoff_ms", 2_000),  # gRPC's own is two minutes: a person is gone by then
    ("grpc.enable_retries", 0),  # a stream that gRPC tries again may never end (decision 86)
)
STATUS_PATH = "/tablegate.v1.GatewayService/GetStatus"
EXPLAIN_PATH = "/tablegate.v1.GatewayService/Explain"


def gateway_at(address: str) -> "Gateway":
    """Return the gateway at an address; end the command with one sentence if a TLS file cannot be read."""
    try:
        return Gateway(address, trust())
    except AskError as error:
        fail(error)


class Gateway:
    """A gateway and the catalogue that it serves. Its methods raise `AskError`.

    `address`: host:port, or https://host:port if it speaks TLS.
    """

    def __init__(self, address: str, trust: Trust = NO_TRUST) -> None:
        self.address = address
        target = target_of(address)
        token = trust.token()
        if not address.startswith(HTTPS) and not trust.is_of_tls:
            self._channel = grpc.insecure_channel(target, CHANNEL_OPTIONS)
        else:
            self._channel = grpc.secure_channel(target, trust.credentials(), CHANNEL_OPTIONS)
        interceptors: list[Any] = [] if token is None else [ShownCredential(trust)]
        self._channel = grpc.intercept_channel(self._channel, *interceptors, InterruptibleStreams())
        self._catalogue: Catalogue | None = None

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(self, *_: object) -> None:
        close(self._channel)

    def status(self, *, with_snapshots: bool = False) -> gateway_status_pb2.GetStatusResponse:
        """Return the status of the gateway; raise `NotServedHere` where its admin port has it."""
        request = gateway_status_pb2.GetStatusRequest(with_snapshots=with_snapshots)
        answer: gateway_status_pb2.GetStatusResponse = self._call(
            STATUS_PATH, request, gateway_status_pb2.GetStatusResponse
        )
        return answer

    def explain(self, method: str, request: str) -> gateway_status_pb2.ExplainResponse:
        """Return which gateway would answer a request, given as JSON."""
        asked = gateway_status_pb2.ExplainRequest(method=method, json=request)
        answer: gateway_status_pb2.ExplainResponse = self._call(EXPLAIN_PATH, asked, gateway_status_pb2.ExplainResponse)
        return answer

    def catalogue(self) -> Catalogue:
        """Return the catalogue that the gateway serves. It is fetched once."""
        if self._catalogue is None:
            with ask_errors(self.address):
                self._catalogue = bind(FileDescriptorSet(file=self._files()))
        return self._catalogue

    def _files(self) -> list[FileDescriptorProto]:
        request = reflection_pb2.ServerReflectionRequest
        services = self._reflect([request(list_services="")])[0].list_services_response.service
        names = [service.name for service in services if not service.name.startswith(("grpc.", "tablegate.v1."))]
        found: dict[str, FileDescriptorProto] = {}
        wanted = [request(file_containing_symbol=name) for name in names]
        while wanted:
            for answer in self._reflect(wanted):
                for raw in answer.file_descriptor_response.file_descriptor_proto:
                    file = FileDescriptorProto.FromString(raw)
                    found[file.name] = file
            missing = {name for file in found.values() for name in file.dependency} - found.keys()
            wanted = [request(file_by_filename=name) for name in sorted(missing)]
        return _dependencies_first(found)

    def _reflect(self, requests: Sequence[Any]) -> list[Any]:
        stub = reflection_pb2_grpc.ServerReflectionStub(self._channel)
        try:
            return list(stub.ServerReflectionInfo(iter(requests), timeout=CALL_TIMEOUT_S))
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise AskError(
                    f"the gateway at {self.address} does not publish its contracts: start it with --reflection"
                ) from None
            raise

    def get(self, table: str, arguments: Sequence[str], mask: Sequence[str] = ()) -> Iterator[Message]:
        """Yield the row of the key, or of several keys if a column is given more than once; of it what `mask` names."""
        catalogue = self.catalogue()
        if max(Counter(argument.partition("=")[0] for argument in arguments).values(), default=0) > 1:
            yield from self._batch_get(catalogue, table, arguments, mask)
            return
        query = _query(catalogue, table, GetQuery, "Get")
        request = _message(query.request_class(), _fields(arguments))
        _check_key(table, (param.field.name for param in query.params), _fields(arguments))
        _set_mask(query, request, mask)
        response = self._unary(query, request)
        if response.HasField(query.row.name):
            yield getattr(response, query.row.name)

    def _batch_get(
        self, catalogue: Catalogue, table: str, arguments: Sequence[str], mask: Sequence[str]
    ) -> Iterator[Message]:
        from tablegate.gateway.cli import request_texts

        query = _query(catalogue, table, BatchGetQuery, "BatchGet")
        columns = _fields(arguments)
        if len({len(values) for values in columns.values()}) > 1:
            raise AskError("each key column must be given the same number of times")
        request = query.request_class()
        for values in zip(*columns.values(), strict=True):
            if query.key_fields:
                key = {name: [value] for name, value in zip(columns, values, strict=True)}
                request_texts.fill(getattr(request, query.keys.name).add(), key)
            else:
                request_texts.set_text(request, query.keys, values[0])
        _check_key(table, (field.name for field in query.key_fields), columns)
        _set_mask(query, request, mask)
        response = self._unary(query, request)
        for result in getattr(response, query.results.name):
            if result.HasField(query.found.name):
                yield getattr(result, query.found.name)

    def range(
        self, table: str, arguments: Sequence[str], *, limit: int | None, descending: bool, mask: Sequence[str] = ()
    ) -> Iterator[Message]:
        """Yield at most `limit` rows in key order, page by page; of each what `mask` names."""
        query = _query(self.catalogue(), table, RangeQuery, "Range")
        request: Any = _message(query.request_class(), _fields(arguments))
        _set_mask(query, request, mask)
        if descending:
            if query.order is None:
                raise AskError(f'the Range of table "{table}" has no order field: remove --descending')
            setattr(request, query.order.name, query_pb2.ORDER_DESCENDING)
        remaining = limit
        while remaining is None or remaining > 0:
            setattr(request, query.page_size.name, remaining if remaining is not None else query.max_page_size)
            response = self._unary(query, request)
            rows = getattr(response, query.rows.name)
            yield from rows
            token = getattr(response, query.next_page_token.name)
            if not token:
                return
            setattr(request, query.page_token.name, token)
            remaining = None if remaining is None else remaining - len(rows)

    def scan(
        self, table: str, arguments: Sequence[str], *, limit: int | None, mask: Sequence[str] = ()
    ) -> Iterator[Message]:
        """Yield at most `limit` of the rows that pass the filters; of each what `mask` names."""
        query = _query(self.catalogue(), table, ScanQuery, "Scan")
        for response in self._scanned(query, arguments, query.response_class, limit=limit, mask=mask):
            yield from getattr(response, query.rows.name)

    def scan_bytes(
        self, table: str, arguments: Sequence[str], *, limit: int | None, mask: Sequence[str] = ()
    ) -> Iterator[Sequence[bytes]]:
        """Yield the bytes of what `scan` yields, several rows at a time."""
        from tablegate.client.queries import scanned_class

        query = _query(self.catalogue(), table, ScanQuery, "Scan")
        response_class = scanned_class(query.response_class.DESCRIPTOR, query.table.row.full_name)
        for response in self._scanned(query, arguments, response_class, limit=limit, mask=mask):
            yield response.rows

    def _scanned(
        self, query: ScanQuery, arguments: Sequence[str], response_class: Any, *, limit: int | None, mask: Sequence[str]
    ) -> Iterator[Any]:
        """Yield the responses of a scan, with at most `limit` rows in all of them."""
        rows_name = "rows" if response_class is not query.response_class else query.rows.name
        request = _message(query.request_class(), _fields(arguments))
        _set_mask(query, request, mask)
        if limit is not None and query.scan_options is not None:
            getattr(request, query.scan_options.name).limit = limit
        call = self._channel.unary_stream(
            query.path,
            request_serializer=query.request_class.SerializeToString,
            response_deserializer=response_class.FromString,
        )
        yielded = 0
        with ask_errors(self.address):
            stream: Any = call(request)
            for response in stream:
                rows = getattr(response, rows_name)
                if limit is not None and yielded + len(rows) > limit:
                    del rows[limit - yielded :]
                yielded += len(rows)
                yield response
                if limit is not None and yielded >= limit:
                    stream.cancel()
                    return

    def row_class(self, table: str) -> type[Message]:
        """Return the class of a table's rows."""
        return _query(self.catalogue(), table, ScanQuery, "Scan").table.row_class

    def count(self, table: str, arguments: Sequence[str]) -> int:
        """Return how many rows there are that pass the filters."""
        query = _query(self.catalogue(), table, CountQuery, "Count")
        response = self._unary(query, _message(query.request_class(), _fields(arguments)))
        number: int = getattr(response, query.count.name)
        return number

    def subscribe(
        self,
        table: str,
        arguments: Sequence[str],
        *,
        tokens: "TokenStore",
        changes_only: bool,
        mask: Sequence[str] = (),
    ) -> "Subscription":
        """Return a subscription that resumes at the token in `tokens`. Iterating it raises `SubscribeError`.

        `changes_only`: without a token, start with no snapshot. Of each row comes what `mask` names.
        """
        from tablegate.client import subscribe

        query = _query(self.catalogue(), table, SubscribeQuery, "Subscribe")
        request = _message(query.request_class(), _fields(arguments))
        _set_mask(query, request, mask)
        if changes_only:
            getattr(request, query.subscribe_options.name).start = query_pb2.SUBSCRIBE_START_LIVE
        method = self._channel.unary_stream(
            query.path,
            request_serializer=query.request_class.SerializeToString,
            response_deserializer=query.response_class.FromString,
        )
        return subscribe(method, request, token_store=tokens)

    def call(self, query: Query, request: Message) -> Any:
        """Begin a call that another thread may cancel: the future of an answer, or of a Scan the stream of messages.

        It may take as long as the contract allows. What it raises is gRPC's: `ask_errors` turns it.
        """
        method = self._channel.unary_stream if isinstance(query, ScanQuery) else self._channel.unary_unary
        call: Any = method(
            query.path,
            request_serializer=query.request_class.SerializeToString,
            response_deserializer=query.response_class.FromString,
        )
        return (call if isinstance(query, ScanQuery) else call.future)(request, timeout=query.max_timeout_s)

    def _unary(self, query: Query, request: Message) -> Any:
        return self._call(query.path, request, query.response_class)

    def _call(self, path: str, request: Message, response_class: type[Message]) -> Any:
        call = self._channel.unary_unary(
            path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response_class.FromString,
        )
        with ask_errors(self.address):
            return call(request, timeout=CALL_TIMEOUT_S)


def _dependencies_first(files: dict[str, FileDescriptorProto]) -> list[FileDescriptorProto]:
    ordered: dict[str, FileDescriptorProto] = {}

    def add(name: str) -> None:
        if name not in ordered:
            for dependency in files[name].dependency:
                add(dependency)
            ordered[name] = files[name]

    for name in sorted(files):
        add(name)
    return list(ordered.values())


Q = TypeVar("Q", bound=Query)


def _query(catalogue: Catalogue, table: str, kind: type[Q], word: str) -> Q:
    if table not in catalogue.tables:
        known = ", ".join(sorted(catalogue.tables))
        raise AskError(f'this gateway has no table "{table}": it has {known}')
    for query in catalogue.queries.values():
        if isinstance(query, kind) and query.table.name == table:
            return query
    raise AskError(
        f'the contract of table "{table}" has no {word} query: use another query, or add one to the contract'
    )


def _fields(arguments: Iterable[str]) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals or not name:
            raise AskError(f'"{argument}" is not an argument: write field=value')
        fields.setdefault(name, []).append(value)
    return fields


def _check_key(table: str, wanted: Iterable[str], given: Collection[str]) -> None:
    # What is not given is zero or empty to protobuf, and most likely found nowhere.
    missing = [name for name in wanted if name not in given]
    if missing:
        raise AskError(f'"{missing[0]}" of the key of table "{table}" is missing: add {missing[0]}=VALUE')


def _set_mask(query: Query, request: Any, paths: Sequence[str]) -> None:
    if not paths:
        return
    if query.read_mask is None:
        name = request.DESCRIPTOR.name
        raise AskError(f"{name} has no field mask: remove --fields, or give the message a google.protobuf.FieldMask")
    getattr(request, query.read_mask.name).paths.extend(paths)


def _message(message: Message, fields: Mapping[str, Sequence[str]]) -> Message:
    from tablegate.gateway.cli import request_texts

    request_texts.fill(message, fields)
    return message
