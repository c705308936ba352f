"""Tables on a terminal."""

from collections.abc import Sequence
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message
from rich.console import Console
from rich.table import Table
from tablegate.gateway.cli.served import directory_of, partition_count, served_tables
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.columns import is_money
from tablegate.v1.status_pb2 import GetStatusResponse

OUT = Console(highlight=False)


def to_dict(message: Message) -> dict[str, Any]:
    """Return `message` as protobuf's JSON has it, with the contract's field names and unset fields shown."""
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def rows(messages: Sequence[Message]) -> None:
    """Print rows of one message type as a table."""
    if not messages:
        Console(stderr=True).print("no rows")
        return
    table = empty_table(messages[0].DESCRIPTOR)
    for message in messages:
        table.add_row(*cells(message))
    OUT.print(table)


def empty_table(row: Any) -> Table:
    """Return a table with the columns of a row, whose descriptor is given."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for field in row.fields:
        is_number = field.cpp_type <= field.CPPTYPE_FLOAT or is_money(field)
        table.add_column(field.name, justify="right" if is_number else "left")
    return table


def cells(message: Message) -> list[str]:
    """Return the columns of a row as texts."""
    values = to_dict(message)
    values |= {field.name: _decimal(value) for field, value in message.ListFields() if is_money(field)}
    fields: Sequence[Any] = message.DESCRIPTOR.fields
    return [str(values.get(field.name, "")) for field in fields]


def _decimal(money: Any) -> str:
    """Return a google.type.Money as a decimal with two digits after the point, or as many as it needs."""
    sign = "-" if money.units < 0 or money.nanos < 0 else ""
    digits = f"{abs(money.nanos):09}"
    return f"{sign}{abs(money.units)}.{digits[:2]}{digits[2:].rstrip('0')}"


def describe_tables(catalogue: Catalogue, status: GetStatusResponse | None) -> list[dict[str, Any]]:
    """Return name, row, key, window and methods of each table; with a status, also if it is served."""
    described = []
    states = {table.table: table for table in status.tables} if status else {}
    served = served_tables(status, directory_of(status)) if status else frozenset()
    for name, table in sorted(catalogue.tables.items()):
        entry: dict[str, Any] = {
            "table": name,
            "row": table.row.full_name,
            "key": [f"{column.name} {column.type.name.lower()}" for column in table.key],
            "methods": [
                {"kind": type(query).__name__.removesuffix("Query"), "path": path.lstrip("/")}
                for path, query in catalogue.queries.items()
                if query.table is table
            ],
        }
        if table.window is not None:
            entry["window"] = {"size_s": table.window.size_us / 1e6, "hop_s": table.window.hop_us / 1e6}
        if table.retention_us is not None:
            entry["retention_s"] = table.retention_us / 1e6
        if name in states:
            entry |= {"partitions": partition_count(states[name]), "serving": name in served}
            entry |= {"problem": states[name].problem} if states[name].problem else {}
        described.append(entry)
    return described


def tables(described: Sequence[dict[str, Any]]) -> None:
    """Print the result of `describe_tables`."""
    for entry in described:
        OUT.print(f"[bold]{entry['table']}[/bold]  {entry['row']}, key ({', '.join(entry['key'])})", end="")
        if "serving" in entry:
            state = "[green]serving[/green]" if entry["serving"] else "[yellow]not serving[/yellow]"
            OUT.print(f", {entry['partitions']} partitions, {state}", end="")
        OUT.print()
        if "window" in entry:
            OUT.print(f"  {_windows(entry)}")
        if "problem" in entry:
            OUT.print(f"  [red]{entry['problem']}[/red]")
        for method in entry["methods"]:
            OUT.print(f"  {method['kind']:<10} {method['path']}")


def _windows(entry: dict[str, Any]) -> str:
    size_s, hop_s = entry["window"]["size_s"], entry["window"]["hop_s"]
    text = f"windows of {_duration(size_s)}" + (f", one each {_duration(hop_s)}" if hop_s != size_s else "")
    if "retention_s" not in entry:
        return f"{text}, kept forever"
    return f"{text}, answered until {_duration(entry['retention_s'])} after their end"


def _duration(seconds: float) -> str:
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit_s and seconds % unit_s == 0:
            return f"{seconds / unit_s:g} {unit}"
    return f"{seconds:g} s"
