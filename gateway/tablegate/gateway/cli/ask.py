"""The commands that read tables: get, range, scan, count, subscribe, tables; and mcp, by which agents do."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from google.protobuf.message import Message

from tablegate.gateway.cli import row_files, show
from tablegate.gateway.cli.connecting import LOCAL, Address, AsJson, AskError, NotAllowed, NotServedHere
from tablegate.gateway.cli.errors import fail, fail_with_problems
from tablegate.gateway.cli.gateway import Gateway, gateway_at
from tablegate.gateway.cli.row_files import Format

if TYPE_CHECKING:  # read only where --fields is given
    from tablegate.gateway.query.masks import Wanted

TableName = Annotated[str, typer.Argument(help="Name of the table.", metavar="TABLE")]
Given = Annotated[
    list[str] | None, typer.Argument(help="Fields of the request, as field=value.", metavar="FIELD=VALUE...")
]


Fields = Annotated[
    str | None,
    typer.Option(
        "--fields",
        help="Only these fields of rows, and their keys: names with commas between; address.city is one of a message.",
        metavar="NAMES",
    ),
]


class _Mask:
    """The fields that --fields names: `paths` for a request, `wanted` to print, with the key; None: all."""

    def __init__(self, gateway: Gateway, table: str, fields: str | None) -> None:
        self.paths: list[str] = []
        self.wanted: Wanted | None = None
        if fields is not None:
            self.paths = [name.strip() for name in fields.split(",")]
            self._read(gateway, table)

    def _read(self, gateway: Gateway, table: str) -> None:
        from tablegate.gateway.query.errors import InvalidField
        from tablegate.gateway.query.masks import wanted_of

        try:
            known = gateway.catalogue().tables.get(table)
            wanted = None if known is None else wanted_of("--fields", self.paths, known.row)
        except (AskError, InvalidField) as error:
            fail(error)
        if known is not None and wanted is not None:
            self.wanted = {**{column.name: None for column in known.key}, **wanted}


def _print_rows(rows: Iterable[Message], mask: _Mask, *, as_json: bool) -> None:
    try:
        if as_json:
            for row in rows:
                print(json.dumps(show.to_dict(row, mask.wanted)), flush=True)
        else:
            show.rows(list(rows), mask.wanted)
    except AskError as error:
        fail(error)


def get(
    table: TableName, given: Given = None, fields: Fields = None, address: Address = LOCAL, as_json: AsJson = False
) -> None:
    """Get the row of a key: [bold]tablegate get ratings movie_id=362[/bold]. Repeat a column to get several rows."""
    with gateway_at(address) as gateway:
        mask = _Mask(gateway, table, fields)
        _print_rows(gateway.get(table, given or [], mask.paths), mask, as_json=as_json)


def range_(
    table: TableName,
    given: Given = None,
    limit: Annotated[int | None, typer.Option(help="Print at most this many rows.", min=1)] = 50,
    descending: Annotated[bool, typer.Option("--descending", help="Start with the highest key.")] = False,
    fields: Fields = None,
    address: Address = LOCAL,
    as_json: AsJson = False,
) -> None:
    """List rows in key order: [bold]tablegate range ratings movie_id_from=300 --limit 10[/bold]."""
    with gateway_at(address) as gateway:
        mask = _Mask(gateway, table, fields)
        rows = gateway.range(table, given or [], limit=limit, descending=descending, mask=mask.paths)
        _print_rows(rows, mask, as_json=as_json)


def scan(
    table: TableName,
    given: Given = None,
    limit: Annotated[int | None, typer.Option(help="Give at most this many rows. Default: all rows.", min=1)] = None,
    fields: Fields = None,
    form: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="Write rows as this. Default: a table, or what the suffix of --output names.",
            envvar="TABLEGATE_SCAN_FORMAT",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write rows to this file, which is replaced once all are there.", metavar="FILE"
        ),
    ] = None,
    address: Address = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Stream every row that passes the filters: [bold]tablegate scan ratings min_rating_count=2[/bold].

    For pandas, Polars or DuckDB: [bold]tablegate scan ratings -o ratings.parquet[/bold].
    """
    with gateway_at(address) as gateway:
        mask = _Mask(gateway, table, fields)
        try:
            wanted = row_files.format_of(form, output, as_json=as_json)
            if wanted in row_files.COLUMNS:
                scanned = gateway.scan_bytes(table, given or [], limit=limit, mask=mask.paths)
                row_files.write_columns(scanned, gateway.row_class(table), wanted, output, mask.wanted)
                return
            rows = gateway.scan(table, given or [], limit=limit, mask=mask.paths)
            if wanted is Format.TABLE:
                show.rows(list(rows), mask.wanted)
            else:
                row_files.write_rows(rows, gateway.row_class(table), wanted, output, mask.wanted)
        except AskError as error:
            fail(error)


def count(table: TableName, given: Given = None, address: Address = LOCAL, as_json: AsJson = False) -> None:
    """Count the rows that pass the filters: [bold]tablegate count ratings min_rating_count=2[/bold]."""
    with gateway_at(address) as gateway:
        try:
            number = gateway.count(table, given or [])
        except AskError as error:
            fail(error)
    print(json.dumps({"count": number}) if as_json else number)


def subscribe(
    table: TableName,
    given: Given = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Keep the position of the last printed event in this file, and continue there. After a crash some "
            "events may come twice; none is lost.",
            metavar="FILE",
        ),
    ] = None,
    changes_only: Annotated[
        bool, typer.Option("--changes-only", help="Show only changes from now on, without the current rows.")
    ] = False,
    fields: Fields = None,
    address: Address = LOCAL,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object per line. This is the default if stdout is not a terminal.",
            envvar="TABLEGATE_JSON",
        ),
    ] = False,
) -> None:
    """Follow a table until Ctrl-C: [bold]tablegate subscribe ratings[/bold], or one row: [bold]… movie_id=362[/bold].

    A terminal shows the rows and highlights the latest changes. If not all rows fit, it shows those that changed last.
    The command keeps all rows in memory.

    A pipe gets one event per line:
    upsert        a row is new or has changed
    delete        the row of a key is gone
    reset         drop all rows: a snapshot begins
    catching_up   the rows so far are incomplete
    current       the rows are complete, as of as_of_time
    disconnected  the stream broke; the command reconnects and resumes
    """
    from tablegate.gateway.cli.subscribe import follow

    as_lines = as_json or not sys.stdout.isatty()
    with gateway_at(address) as gateway:
        mask = _Mask(gateway, table, fields)
        try:
            follow(
                gateway,
                table,
                given or [],
                as_json=as_lines,
                resume=resume,
                changes_only=changes_only,
                mask=mask.paths,
                wanted=mask.wanted,
            )
        except AskError as error:
            fail(error)


def tables(address: Address = LOCAL, as_json: AsJson = False) -> None:
    """Show the tables of a gateway, their keys, and the methods that read them."""
    with gateway_at(address) as gateway:
        try:
            catalogue = gateway.catalogue()
            try:
                status = gateway.status()
            except (NotServedHere, NotAllowed):
                status = None  # whether a table is served is left out
        except AskError as error:
            fail(error)
    described = show.describe_tables(catalogue, status)
    if as_json:
        for table in described:
            print(json.dumps(table))
    else:
        show.tables(described)


def mcp(
    contract: Annotated[
        list[Path] | None,
        typer.Option(
            help="Contract: a .proto or a descriptor set. Repeatable. Default: what the gateway publishes, without the "
            "comments.",
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option(help="Give at most this many rows of a Range or a Scan in one call.", min=1)
    ] = 100,
    listen: Annotated[
        str | None,
        typer.Option(
            help="Serve streamable HTTP at this address of this machine, under /mcp. Default: stdin and stdout.",
            metavar="127.0.0.1:PORT",
        ),
    ] = None,
    address: Address = LOCAL,
) -> None:
    """Let agents ask: serve each query as a tool of the Model Context Protocol, to the program that starts this.

    With --credential the gateway decides what may be seen: agents read what it allows the credential, and no more.
    """
    from tablegate.gateway.cli.mcp_server import QueryTools, serve_http, serve_stdio
    from tablegate.gateway.contract.binder.binder import ContractError, bind, merge
    from tablegate.gateway.contract.descriptors import DescriptorError, load_descriptors

    with gateway_at(address) as gateway:
        try:
            catalogue = bind(merge([load_descriptors(path) for path in contract])) if contract else gateway.catalogue()
            server = QueryTools(gateway, catalogue, rows_max=rows).server()
            if listen is None:
                serve_stdio(server)
            else:
                serve_http(server, listen)
        except (AskError, DescriptorError) as error:
            fail(error)
        except ContractError as error:
            fail_with_problems(error.problems)
