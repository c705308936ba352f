"""What a gateway answers, on a terminal: rows, its tables, and its status.

The status is that of its cluster, its tables, and the progress of each partition.
"""

import json
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf import any_pb2, json_format
from google.protobuf.message import Message
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tablegate.gateway.cli.served import directory_of, partition_count, served_tables
from tablegate.gateway.cluster.directory import Directory
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.columns import is_map, is_message, is_money, type_name
from tablegate.gateway.contract.types import Partition
from tablegate.v1.cluster_pb2 import REPLICA_PHASE_LIVE, GatewayRecord, ReplicaPhase
from tablegate.v1.status_pb2 import (
    ExplainResponse,
    GatewayStatus,
    GenerationState,
    GetStatusResponse,
    PartitionRoute,
    PartitionState,
    PartitionStatus,
    SnapshotsStatus,
    TableState,
    TableStatus,
)

if TYPE_CHECKING:  # as in `ask`
    from tablegate.gateway.query.masks import Wanted

# Breaks no line: a terminal does that itself, and a reader of a pipe looks for the whole line.
OUT = Console(highlight=False, soft_wrap=True)

_AS_IN_CONTRACT = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}


def to_dict(message: Message, wanted: "Wanted | None" = None) -> dict[str, Any]:
    """Return `message` as protobuf's JSON has it, with the contract's field names and unset fields shown.

    `wanted`: only these fields, as others were not asked for; None: all.
    """
    value = _as_dict(message)
    return value if wanted is None else _only(value, wanted)


def _as_dict(message: Message) -> dict[str, Any]:
    descriptor: Any = message.DESCRIPTOR
    pool = descriptor.file.pool
    try:
        return json_format.MessageToDict(message, descriptor_pool=pool, **_AS_IN_CONTRACT)
    except TypeError:  # an Any whose type the contract does not have
        from tablegate.gateway.http.json_codec import JsonCodec

        copied = type(message).FromString(message.SerializeToString())
        shown: dict[str, Any] = JsonCodec([pool]).to_value(copied, **_AS_IN_CONTRACT)
        return shown


def _only(value: dict[str, Any], wanted: "Wanted") -> dict[str, Any]:
    return {
        name: value[name] if inner is None or not isinstance(value[name], dict) else _only(value[name], inner)
        for name, inner in wanted.items()
        if name in value
    }


def rows(messages: Sequence[Message], wanted: "Wanted | None" = None) -> None:
    """Print rows of one message type as a table, of the columns that are `wanted`; None: all."""
    if not messages:
        Console(stderr=True).print("no rows")
        return
    table = empty_table(messages[0].DESCRIPTOR, wanted)
    for message in messages:
        table.add_row(*map(plain, cells(message, wanted)))
    print_table(table)


def empty_table(row: Any, wanted: "Wanted | None" = None) -> Table:
    """Return a table with the columns of a row, whose descriptor is given, that are `wanted`."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for field in _shown(row, wanted):
        is_number = not field.is_repeated and (field.cpp_type <= field.CPPTYPE_FLOAT or is_money(field))
        # What is too long goes on in the next line: a key or a time that is cut cannot be asked for.
        table.add_column(field.name, justify="right" if is_number else "left", overflow="fold")
    return table


def cells(message: Message, wanted: "Wanted | None" = None) -> list[str]:
    """Return the columns of a row as texts: of a list an item each line, of a message its fields that are set."""
    values = to_dict(message, wanted)
    return [_cell(message, field, values.get(field.name, "")) for field in _shown(message.DESCRIPTOR, wanted)]


def _print_sentence(text: str) -> None:
    """Print a text as it is, in one line however wide the terminal is."""
    OUT.print(text, markup=False)


def plain(text: str) -> Text:
    """Return a text that is shown as it is: what looks like markup is none, and it gives a terminal no commands."""
    return Text("".join(one if one in "\n\t" or unicodedata.category(one) != "Cc" else "\ufffd" for one in text))


def _shown(row: Any, wanted: "Wanted | None") -> Sequence[Any]:
    return [field for field in row.fields if wanted is None or field.name in wanted]


def _cell(message: Message, field: Any, value: Any) -> str:
    """Return what a field holds, which is `value` in protobuf's JSON."""
    inside = getattr(message, field.name)
    if is_map(field):
        of = field.message_type.fields_by_name["value"]
        # In the order of the keys: a map of protobuf's has none.
        return "\n".join(f"{key}={_one(inside[key], of, one)}" for (key, one) in _entries(inside, value))
    if not field.is_repeated:
        is_set = not field.has_presence or message.HasField(field.name)
        return _one(inside, field, value) if is_set else ""
    between = "\n" if is_message(field) else ", "
    return between.join(_one(item, field, one) for item, one in zip(inside, value or (), strict=True))


def _entries(map_: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    for key in sorted(map_):
        yield key, value[str(key).lower() if isinstance(key, bool) else str(key)]


def _one(inside: Any, field: Any, value: Any) -> str:
    if is_money(field):
        return _decimal(inside)
    if is_message(field) and field.message_type.full_name != any_pb2.Any.DESCRIPTOR.full_name:
        parts = {one.name: _cell(inside, one, value.get(one.name, "")) for one in _shown(inside.DESCRIPTOR, None)}
        return " ".join(f"{name}={text.replace(chr(10), ', ')}" for name, text in parts.items() if text)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


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
            "key": [
                f"{column.name} {type_name(table.row.fields_by_name[column.name]).rpartition('.')[2]}"
                for column in table.key
            ],
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
            OUT.print(f"  [red]{escape(entry['problem'])}[/red]")
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


PIPE_COLUMNS = 1_000


def status(answer: GetStatusResponse, directory: Directory) -> None:
    """Print the status of a gateway. `directory` is made of the same status."""
    age_s = time.time() - answer.beat_time.ToMilliseconds() / 1000
    hangs = " and hangs" if answer.replicator_hangs else ""
    kafka = "reachable" if answer.kafka_reachable else "[yellow]unreachable: answers become stale[/yellow]"
    name = f"gateway {answer.gateway_id}, " if answer.gateway_id else ""
    OUT.print(f"{name}replicator seen {max(age_s, 0):.1f} s ago{hangs}, Kafka {kafka}")
    if answer.gateways:
        OUT.print()
        print_table(_gateways(answer.gateways))
    if answer.snapshots.problem:
        why = answer.snapshots.problem
        _print_sentence(f"no snapshot file can be written: {why}")
    served = served_tables(answer, directory)
    for table in answer.tables:
        OUT.print()
        snapshots = answer.snapshots if answer.HasField("snapshots") else None
        _table(table, directory, is_served=table.table in served, snapshots=snapshots)


def _gateways(gateways: Sequence[GatewayStatus]) -> Table:
    shown = columns(("gateway", "endpoint", "zone", "state"), ("last beat",), ("partitions",))
    newest_ms = max(each.beat_time.ToMilliseconds() for each in gateways)
    for each in gateways:
        record = each.record
        # Both times are Kafka's: its clock may differ from ours.
        age_s = (newest_ms - each.beat_time.ToMilliseconds()) / 1000
        beat = f"{age_s:.1f} s ago" if each.HasField("beat_time") else "none yet"
        names = map(plain, (record.gateway_id, record.endpoint, record.zone))  # [fe80::1]:50051 is no markup
        shown.add_row(*names, _state(each), beat, _partitions_on(record))
    return shown


def _state(gateway: GatewayStatus) -> str:
    if not gateway.alive:
        return "[red]away[/red]"
    return "[yellow]draining[/yellow]" if gateway.record.draining else "[green]alive[/green]"


def _partitions_on(record: GatewayRecord) -> str:
    """Return the partitions of each table on a gateway: how many are live, the phases of the others, refusals."""
    parts = []
    for table in record.tables:
        counts = Counter(table.serving.phases) + Counter(table.building.phases)
        live = counts.pop(REPLICA_PHASE_LIVE, 0)
        others = [f"{count} {_phase(phase)}" for phase, count in sorted(counts.items())]
        if table.refused_generation:
            others.append(f"refuses generation {table.refused_generation}")
        if live or others:
            parts.append(f"{table.table} {' + '.join([str(live), *others])}")
    return ", ".join(parts) or "none"


def _phase(phase: ReplicaPhase) -> str:
    if phase not in ReplicaPhase.values():  # a gateway of another version sent it
        return "unknown"
    return ReplicaPhase.Name(phase).removeprefix("REPLICA_PHASE_").lower().replace("_", " ")


def _dropped(table: TableStatus) -> list[tuple[str, int]]:
    """Return what records of the changelog were not applied, or lie in a wrong order, with their numbers."""
    return [
        ("records skipped", table.poison_records),
        ("stale records", table.stale_records),
        ("versions with two contents", table.conflicting_records),
        ("repairs pending", table.pending_repairs),
        ("records repaired", table.repaired_records),
    ]


def _table(table: TableStatus, directory: Directory, *, is_served: bool, snapshots: SnapshotsStatus | None) -> None:
    state = "[green]serving[/green]" if is_served else f"[yellow]not serving[/yellow]{_unserved_state(table)}"
    OUT.print(f"[bold]{table.table}[/bold] {state}", end="")
    if table.manifest.generation:
        topic = table.manifest.changelog_topic  # unknown if only other gateways have the table
        OUT.print(f", generation {table.manifest.generation}{topic and f' of {topic}'}", end="")
    OUT.print("".join(f", {count} {what}" for what, count in _dropped(table) if count))
    if table.repair_problem:
        _print_sentence(f"  {table.repair_problem}")
    if table.problem:
        _print_sentence(f"  {table.problem}")
    elif not table.manifest.generation:
        OUT.print("  its job has not published a manifest yet, or the gateway has not reached Kafka")
    if table.fault:
        _print_sentence(f"  nothing is applied for now, by a mistake of ours: {table.fault}")
    for poison in table.poison:
        _print_sentence(f"  set aside {poison.count} times: {poison.reason}")
    for each in table.generations:
        if each.state != GenerationState.GENERATION_STATE_SERVING:
            name = _name(GenerationState.Name(each.state), "GENERATION_STATE_")
            why = f": {each.waits_for}" if each.waits_for and each.waits_for != table.problem else ""
            _print_sentence(f"  generation {each.generation} is {name}{why}")
    if table.restore_rows_per_second:
        left_s = table.restore_seconds_left
        OUT.print(f"  restoring {table.restore_rows_per_second:,.0f} rows/s, about {left_s:.0f} s left")
    for file in () if snapshots is None else snapshots.useless:
        if file.table == table.table:
            text = f"  snapshot file {file.file} of partition {file.partition} is of no use: {file.problem}"
            _print_sentence(text)
    files = None if snapshots is None else _files(table, snapshots)
    if directory.own_id and partition_count(table):
        print_table(_all_partitions(table, directory, files))
    elif table.partitions:
        print_table(_own_partitions(table, files))


def _files(table: TableStatus, snapshots: SnapshotsStatus) -> dict[int, str]:
    """Return what is known of the newest snapshot file of each partition that this gateway is to write."""
    files = {}
    for each in snapshots.files:
        if each.table == table.table:
            files[each.partition] = "none yet"
            if each.HasField("write_time"):
                age_s = max(0.0, time.time() - each.write_time.ToMilliseconds() / 1_000)
                files[each.partition] = f"{age_s:,.0f} s ago, at {each.next_offset}"
    return files


def _unserved_state(table: TableStatus) -> str:
    """Return the state of a table that is not served whole; "" of a gateway of an earlier version."""
    if table.state in (TableState.TABLE_STATE_UNSPECIFIED, TableState.TABLE_STATE_SERVING):
        return ""
    return f" ({_name(TableState.Name(table.state), 'TABLE_STATE_')})"


def _partition_state(partition: PartitionStatus) -> str:
    if not partition.state:  # of a gateway of an earlier version
        return _phase(partition.phase)
    return _name(PartitionState.Name(partition.state), "PARTITION_STATE_")


def _name(value: str, prefix: str) -> str:
    return value.removeprefix(prefix).lower().replace("_", " ")


def _own_partitions(table: TableStatus, files: Mapping[int, str] | None) -> Table:
    shown = columns((), ("partition",), ("state",), _progress_columns(files))
    for partition in table.partitions:
        number = partition.partition
        shown.add_row(str(number), *_progress(partition), *(() if files is None else (files.get(number, ""),)))
    return shown


def _progress_columns(files: Mapping[int, str] | None) -> Sequence[str]:
    return ("next offset", "end offset", "lag", "staleness", *(() if files is None else ("snapshot file",)))


def _all_partitions(table: TableStatus, directory: Directory, files: Mapping[int, str] | None) -> Table:
    """Return all partitions of a table and the gateways that have them; the progress of those on this gateway."""
    right = _progress_columns(files)
    shown = columns((), ("partition",), ("owner", "standby", "coming", "here"), right)
    local = {partition.partition: partition for partition in table.partitions}
    coming = _coming(table.table, directory)
    for number in range(partition_count(table)):
        names = [escape(peer.gateway_id) for peer in directory.replicas(table.table, Partition(number))]
        owner = names[0] if names else "[red]none[/red]"
        progress = _progress(local[number]) if number in local else ("", "", "", "", "")
        file = () if files is None else (files.get(number, ""),)
        shown.add_row(str(number), owner, ", ".join(names[1:]), ", ".join(coming.get(number, ())), *progress, *file)
    return shown


def _coming(table: str, directory: Directory) -> dict[int, list[str]]:
    """Return, by partition, the gateways whose copy is not live yet, and its phase."""
    coming: dict[int, list[str]] = {}
    for record in directory.records:
        for announced in (each for each in record.tables if each.table == table):
            for part, suffix in (
                (announced.serving, ""),
                (announced.building, f" of generation {announced.building.generation}"),
            ):
                for partition, phase in zip(part.partitions, part.phases, strict=False):
                    if suffix or phase != REPLICA_PHASE_LIVE:
                        coming.setdefault(partition, []).append(f"{record.gateway_id} {_phase(phase)}{suffix}")
    return coming


def _progress(partition: PartitionStatus) -> Sequence[str]:
    """Return state, next offset, end offset, lag and staleness."""
    staleness_s = time.time() - partition.as_of_time.ToMilliseconds() / 1000
    return (
        _partition_state(partition),
        str(partition.next_offset),
        str(partition.end_offset),
        str(max(partition.end_offset - partition.next_offset, 0)),
        f"{max(staleness_s, 0):.1f} s" if partition.as_of_time.seconds else "",
    )


def explanation(answer: ExplainResponse) -> None:
    """Print which gateways would answer a request."""
    OUT.print(f"[bold]{answer.query}[/bold] of {answer.table}, generation {answer.generation}")
    OUT.print(f"reads {answer.reads}")
    OUT.print(f"as fresh as: {answer.freshness}")
    shown = columns((), ("partition",), ("route", "why", "replicas"))
    for plan in answer.partitions:
        route = PartitionRoute.Name(plan.route).removeprefix("PARTITION_ROUTE_").lower()
        replicas = [f"{each.gateway_id} {_phase(each.phase)} at {each.next_offset}".strip() for each in plan.replicas]
        shown.add_row(str(plan.partition), route, plain(plan.why), plain(", ".join(replicas)))
    if answer.partitions:
        print_table(shown)
    for sentence in answer.not_promised:
        _print_sentence(f"not promised: {sentence}")


def columns(*names: Sequence[str]) -> Table:
    """Return an empty table. The columns of every second sequence are right-aligned."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for place, group in enumerate(names):
        for name in group:
            shown.add_column(name, justify="right" if place % 2 else "left", overflow="fold")
    return shown


def print_table(table: Table) -> None:
    """Print a table: as wide as the terminal, or in a pipe as wide as its content."""
    console = Console(highlight=False, width=None if OUT.is_terminal else PIPE_COLUMNS)
    console.print(table)
