"""`tablegate mcp`: the queries of contracts as tools of the Model Context Protocol (MCP), by its official SDK.

How it works: each query but a Subscribe becomes a tool when the command starts. Its schemas and words are those of the
OpenAPI document. A call of a tool is one call of the gateway, with the credential of this process: the gateway decides
what may be seen. What is wrong with it is the gateway's sentence, as the error of a tool, which an agent reads and
corrects. A Range or a Scan gives so many rows at most, and a token for the next call: an agent's context is small. The
limit of a Scan counts the rows of the calls before it, so the token that an agent has says how many these were.

Sources: modelcontextprotocol.io/specification/2025-11-25/server/tools and …/2026-07-28/….

Decision: docs/decisions/0158-tools-from-the-contract.md
"""

import hashlib
import json
import os
import re
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import metadata
from types import FrameType
from typing import Any

import anyio
import uvicorn
from google.protobuf import descriptor_pool, json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    TextContent,
    Tool,
    ToolAnnotations,
)
from typing_extensions import override

from tablegate.gateway.cli.connecting import AskError, ask_errors
from tablegate.gateway.cli.gateway import Gateway
from tablegate.gateway.contract.catalogue import BatchGetQuery, Catalogue, Query, RangeQuery, ScanQuery, SubscribeQuery
from tablegate.gateway.http.json_codec import JsonCodec
from tablegate.gateway.http.rest.openapi import ABOUT, kind_text, required_names
from tablegate.gateway.http.rest.openapi_schemas import Comments, Schema, Schemas
from tablegate.gateway.http.server import keys_limits_of
from tablegate.gateway.query.errors import InvalidField, QueryError

NAME_CHARS_MAX = 64  # clients refuse longer names, though MCP would allow 128
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")

_REF = "#/components/schemas/"
_LISTEN = re.compile(rf"({'|'.join(map(re.escape, LOOPBACK))}):([0-9]{{1,5}})")
_PORT_MAX = 65_535


class QueryTools:
    """The tools of a catalogue, which ask a gateway. `rows_max`: of a Range or a Scan, in one call."""

    def __init__(self, gateway: Gateway, catalogue: Catalogue, *, rows_max: int) -> None:
        self._gateway = gateway
        self._rows_max = rows_max
        self._codec = JsonCodec([catalogue.pool, descriptor_pool.Default()], keys_limits_of(catalogue))
        comments = Comments(catalogue.files)
        queries = {path: query for path, query in catalogue.queries.items() if not isinstance(query, SubscribeQuery)}
        self._tools = {
            name: _made(name, _paged(queries[path], rows_max), comments, rows_max)
            for path, name in tool_names(queries).items()
        }

    def server(self) -> Server[Any]:
        """Return a server of the tools."""
        return Server(
            "tablegate",
            version=metadata.version("tablegate-gateway"),
            instructions=ABOUT,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )

    async def _list(self, _context: Any, _params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[tool.listed for tool in self._tools.values()])

    async def _call(self, _context: Any, params: CallToolRequestParams) -> CallToolResult:
        tool = self._tools.get(params.name)
        if tool is None:
            raise MCPError(INVALID_PARAMS, "there is no tool of this name: list the tools, and call one of them")
        try:
            request = self._request(tool, params.arguments or {})
            response, hint = await self._ask(tool.query, request)
            text = self._text(response)
        except (AskError, QueryError) as error:
            return CallToolResult(content=[TextContent(text=str(error))], is_error=True)
        content = [TextContent(text=each) for each in (text, hint) if each]
        return CallToolResult(content=[*content], structured_content=json.loads(text))

    def _text(self, response: Message) -> str:
        try:
            return self._codec.to_json(type(response), response.SerializeToString()).decode()
        except (json_format.SerializeToJsonError, ValueError):
            sentence = "the answer has a value that JSON has no text for, such as a time in the year 10000"
            raise AskError(f"{sentence}; ask for other rows, or for other fields") from None

    def _request(self, tool: "_QueryTool", arguments: Mapping[str, Any]) -> Any:
        _check_given(arguments, tool.required)
        if isinstance(query := tool.query, BatchGetQuery):
            keys = arguments.get(query.keys.json_name) or arguments.get(query.keys.name)
            for place, key in enumerate(keys if isinstance(keys, list) else ()):
                if isinstance(key, dict):
                    _check_given(key, query.key_fields, f"{query.keys.json_name}[{place}].")
        request_class = tool.query.request_class
        return request_class.FromString(self._codec.from_json(request_class, json.dumps(arguments).encode()))

    async def _ask(self, query: Query, request: Any) -> tuple[Message, str]:
        """Return the answer, and what else an agent should be told of it."""
        if isinstance(query, ScanQuery):
            return await self._scan(query, request)
        if isinstance(query, RangeQuery) and getattr(request, query.page_size.name) >= 0:  # else the gateway refuses
            asked = getattr(request, query.page_size.name) or query.default_page_size
            setattr(request, query.page_size.name, min(asked, query.max_page_size))
        return await self._read(query, request), ""

    async def _scan(self, query: ScanQuery, request: Any) -> tuple[Message, str]:
        given, wanted = 0, self._rows_max
        if query.scan_options is not None:
            options = getattr(request, query.scan_options.name)
            given, options.resume_token = _opened(options.resume_token, f"{query.scan_options.json_name}.resumeToken")
            if options.limit >= 0:
                options.limit = min(options.limit or given + wanted, given + wanted)
                wanted = options.limit - given
        response: Any = await self._read(query, request, rows_max=wanted)
        count = len(getattr(response, query.rows.name))
        is_cut = count >= self._rows_max
        progress = None if query.progress is None else getattr(response, query.progress.name)
        token = "" if progress is None or query.scan_options is None else progress.resume_token
        if progress is not None:
            progress.resume_token = f"{given + count}.{token}" if token and is_cut else ""
            progress.slice_tokens[:] = [f"{given}.{each}" for each in progress.slice_tokens]
        return response, f"{count} rows; {_more(query, token)}" if is_cut else ""

    async def _read(self, query: Query, request: Message, *, rows_max: int = 0) -> Message:
        """Return the answer of a call, of a Scan its first `rows_max` rows; a call whose reader is gone is ended."""
        call = self._gateway.call(query, request)

        def read() -> Any:
            with ask_errors(self._gateway.address):
                if not isinstance(query, ScanQuery):
                    return call.result()
                joined: Any = query.response_class()
                rows = getattr(joined, query.rows.name)
                for message in call:
                    joined.MergeFrom(message)
                    if len(rows) > rows_max:  # of a contract whose Scan takes no limit
                        del rows[rows_max:]
                        break
                return joined

        try:
            answer: Message = await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
            return answer
        finally:
            call.cancel()


@dataclass(frozen=True, slots=True)
class _QueryTool:
    """A tool. `required`: what an agent has to give."""

    query: Query
    listed: Tool
    required: Sequence[FieldDescriptor]


def _check_given(given: Mapping[str, Any], fields: Iterable[FieldDescriptor], path: str = "") -> None:
    # To protobuf, what is not given is zero or empty: most likely the key of no row.
    for field in fields:
        if given.get(field.json_name) is None and given.get(field.name) is None:
            raise InvalidField(f"{path}{field.json_name}", "is missing; give it")


def tool_names(paths: Iterable[str]) -> dict[str, str]:
    """Return the name of each path's tool: `RatingsService_GetRating`.

    Where two are the same, or one is too long, the package comes before it; then the path's hash after it. So a name
    does not depend on the order of contracts.
    """
    tiers = {path: dict.fromkeys((_joined(path.rpartition(".")[2]), _joined(path))) for path in paths}
    counts = Counter(name for names in tiers.values() for name in names)
    return {
        path: next((name for name in names if counts[name] == 1 and len(name) <= NAME_CHARS_MAX), _hashed(path))
        for path, names in tiers.items()
    }


def _joined(path: str) -> str:
    return path.strip("/").replace(".", "_").replace("/", "_")


def _hashed(path: str) -> str:
    digest = hashlib.sha256(path.encode()).hexdigest()[:12]
    return f"{_joined(path.rpartition('.')[2])[: NAME_CHARS_MAX - len(digest) - 1]}_{digest}"


def _paged(query: Query, rows_max: int) -> Query:
    if not isinstance(query, RangeQuery):
        return query
    return replace(
        query,
        max_page_size=min(query.max_page_size, rows_max),
        default_page_size=min(query.default_page_size, rows_max),
    )


def _made(name: str, query: Query, comments: Comments, rows_max: int) -> _QueryTool:
    request: Any = query.request_class.DESCRIPTOR
    response: Any = query.response_class.DESCRIPTOR
    required = [request.fields_by_name[each] for each in required_names(query)]
    given = schema_of(request, comments)
    given.pop("required", None)  # by their names in JSON, and with those that the query needs
    if required:
        given["required"] = [field.json_name for field in required]
    words = [comments.of(query.path.removeprefix("/").replace("/", ".")), _kind(query, rows_max)]
    listed = Tool(
        name=name,
        title=query.path.rpartition("/")[2],
        description="\n\n".join(filter(None, words)),
        input_schema=given,
        output_schema=_lenient(schema_of(response, comments)),
        annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
    )
    return _QueryTool(query, listed, required)


def _kind(query: Query, rows_max: int) -> str:
    if isinstance(query, ScanQuery):
        rows = f"Scan: the rows of table `{query.table.name}` that pass the filters, at most {rows_max} a call"
        if query.scan_options is None or query.progress is None:
            return f"{rows}; {_more(query, '')}."
        return f"{rows}; if there may be more, {_more(query, 'token')}."
    text = kind_text(query, missing="an error")
    if isinstance(query, RangeQuery):
        given, token = query.next_page_token.json_name, query.page_token.json_name
        return f"{text} For the next page call again with `{given}` of the answer as `{token}`."
    return text


def _more(query: ScanQuery, token: str) -> str:
    if not token or query.scan_options is None or query.progress is None:
        return "there may be more, which this query cannot go on to: narrow the filters"
    answered, asked = f"{query.progress.json_name}.resumeToken", f"{query.scan_options.json_name}.resumeToken"
    return f"for the next ones call again with `{answered}` of the answer as `{asked}`"


def _opened(token: str, field: str) -> tuple[int, str]:
    """Return how many rows were given before a token of `_scan`, and the gateway's own."""
    if not token:
        return 0, ""
    count, _, own = token.partition(".")
    if not (count.isascii() and count.isdecimal() and len(count) < 19 and own):
        raise InvalidField(field, "is no token of an answer; send one as it came, or none to start anew")
    return int(count), own


def schema_of(message: Descriptor, comments: Comments) -> Schema:
    """Return the JSON schema of a message, with all that it refers to."""
    schemas = Schemas(comments, {})
    root = schemas.of_message(message)
    name = root.get("$ref", "").removeprefix(_REF)
    whole = schemas.components.pop(name) if name else root
    embedded: Schema = _embedded(whole, name)
    if schemas.components:
        embedded["$defs"] = {each: _embedded(schema, name) for each, schema in schemas.components.items()}
    return embedded


def _embedded(schema: Any, root: str) -> Any:
    """Return a schema of the OpenAPI document as one that stands alone, in which the one called `root` is the whole."""
    if isinstance(schema, list):
        return [_embedded(each, root) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _embedded(each, root) for name, each in schema.items()}
    if isinstance(schema.get("$ref"), str):
        name = schema["$ref"].removeprefix(_REF)
        made["$ref"] = "#" if name == root else f"#/$defs/{name}"
    return made


def _lenient(schema: Any) -> Any:
    """Return a schema that all answers pass, as clients check them: what is zero is left out, and enums grow.

    There is one type at each place, and lists of types nowhere: some models are given tools in a dialect without them.
    """
    if isinstance(schema, list):
        return [_lenient(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _lenient(each) for name, each in schema.items()}
    if isinstance(schema.get("required"), list):
        del made["required"]
    if isinstance(schema.get("enum"), list) and schema.get("type") == "string":
        del made["type"], made["enum"]
        made["anyOf"] = [{"type": "string", "enum": schema["enum"]}, {"type": "integer"}, {"type": "null"}]
    if schema.get("format") in ("float", "double"):
        del made["type"]
        made["anyOf"] = [{"type": "number"}, {"type": "string"}]  # "NaN", "Infinity"
    return made


def serve_stdio(server: Server[Any]) -> None:
    """Serve whoever started this process, until stdin ends."""

    async def run() -> None:
        async with stdio_server() as (reader, writer):
            await server.run(reader, writer, server.create_initialization_options())

    # The SDK reads stdin in a thread, for which Python would wait at Ctrl-C. There is nothing to clean up.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    anyio.run(run)


def serve_http(server: Server[Any], listen: str) -> None:
    """Serve whoever is on this machine, by streamable HTTP; raise `AskError` where the address cannot be had.

    Pages whose own names lead here (DNS rebinding) are refused by the SDK, as the host is a loopback address.
    """
    found = _LISTEN.fullmatch(listen)
    if found is None or int(found[2]) > _PORT_MAX:
        raise AskError(
            f'--listen "{listen}" is not an address of this machine alone: give 127.0.0.1:PORT; whoever reaches it '
            "reads with the credential of this process"
        )
    host = found[1].strip("[]")
    try:
        listening = socket.create_server(
            (host, int(found[2])), family=socket.AF_INET6 if host == "::1" else socket.AF_INET
        )
    except OSError as error:
        raise AskError(f"{listen} cannot be listened on: {error.strerror}; give another port with --listen") from None
    with closing(listening):
        print(f"MCP is served at http://{found[1]}:{listening.getsockname()[1]}/mcp", file=sys.stderr, flush=True)
        app = server.streamable_http_app(host=host)
        # httptools, which uvicorn prefers, leaves the spaces behind a header: MCP compares names of tools with it.
        McpServer(uvicorn.Config(app, http="h11", log_level="warning")).run([listening])


class McpServer(uvicorn.Server):
    """Ends at once at the second signal: there is nothing to clean up, and uvicorn would show stack traces."""

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)
        super().handle_exit(sig, frame)
