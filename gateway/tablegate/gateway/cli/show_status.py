"""A gateway's status on a terminal: its cluster, its tables, and the progress of each partition."""

import time
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tablegate.gateway.cli.served import partition_count, served_tables
from tablegate.gateway.cli.show import OUT
from tablegate.gateway.cluster.directory import Directory
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
    TableState,
    TableStatus,
)

PIPE_COLUMNS = 1_000


def status(answer: GetStatusResponse, directory: Directory) -> None:
    """Print the status of a gateway. `directory` is made of the same status."""
    age_s = time.time() - answer.beat_time.ToMilliseconds() / 1000
    kafka = "reachable" if answer.kafka_reachable else "[yellow]unreachable: answers become stale[/yellow]"
    name = f"gateway {answer.gateway_id}, " if answer.gateway_id else ""
    OUT.print(f"{name}replicator seen {max(age_s, 0):.1f} s ago, Kafka {kafka}")
    if answer.gateways:
        OUT.print()
        _print(_gateways(answer.gateways))
    served = served_tables(answer, directory)
    for table in answer.tables:
        OUT.print()
        _table(table, directory, is_served=table.table in served)


def _gateways(gateways: Sequence[GatewayStatus]) -> Table:
    shown = _columns(("gateway", "endpoint", "zone", "state"), ("last beat",), ("partitions",))
    newest_ms = max(each.beat_time.ToMilliseconds() for each in gateways)
    for each in gateways:
        record = each.record
        # Both times are Kafka's: its clock may differ from ours.
        age_s = (newest_ms - each.beat_time.ToMilliseconds()) / 1000
        beat = f"{age_s:.1f} s ago" if each.HasField("beat_time") else "none yet"
        shown.add_row(record.gateway_id, record.endpoint, record.zone, _state(each), beat, _partitions_on(record))
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


def _table(table: TableStatus, directory: Directory, *, is_served: bool) -> None:
    state = "[green]serving[/green]" if is_served else f"[yellow]not serving[/yellow]{_unserved_state(table)}"
    OUT.print(f"[bold]{table.table}[/bold] {state}", end="")
    if table.manifest.generation:
        topic = table.manifest.changelog_topic  # unknown if only other gateways have the table
        OUT.print(f", generation {table.manifest.generation}{topic and f' of {topic}'}", end="")
    OUT.print(f", {table.poison_records} records skipped" if table.poison_records else "")
    if table.problem:
        OUT.print(f"  {table.problem}")
    elif not table.manifest.generation:
        OUT.print("  its job has not published a manifest yet, or the gateway has not reached Kafka")
    for each in table.generations:
        if each.state != GenerationState.GENERATION_STATE_SERVING:
            name = _name(GenerationState.Name(each.state), "GENERATION_STATE_")
            why = f": {each.waits_for}" if each.waits_for and each.waits_for != table.problem else ""
            OUT.print(f"  generation {each.generation} is {name}{why}")
    if table.restore_rows_per_second:
        left_s = table.restore_seconds_left
        OUT.print(f"  restoring {table.restore_rows_per_second:,.0f} rows/s, about {left_s:.0f} s left")
    if directory.own_id and partition_count(table):
        _print(_all_partitions(table, directory))
    elif table.partitions:
        _print(_own_partitions(table))


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


def _own_partitions(table: TableStatus) -> Table:
    shown = _columns((), ("partition",), ("state",), ("next offset", "end offset", "lag", "staleness"))
    for partition in table.partitions:
        shown.add_row(str(partition.partition), *_progress(partition))
    return shown


def _all_partitions(table: TableStatus, directory: Directory) -> Table:
    """Return all partitions of a table and the gateways that have them; the progress of those on this gateway."""
    right = ("next offset", "end offset", "lag", "staleness")
    shown = _columns((), ("partition",), ("owner", "standby", "coming", "here"), right)
    local = {partition.partition: partition for partition in table.partitions}
    coming = _coming(table.table, directory)
    for number in range(partition_count(table)):
        names = [peer.gateway_id for peer in directory.replicas(table.table, Partition(number))]
        owner = names[0] if names else "[red]none[/red]"
        progress = _progress(local[number]) if number in local else ("", "", "", "", "")
        shown.add_row(str(number), owner, ", ".join(names[1:]), ", ".join(coming.get(number, ())), *progress)
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
    shown = _columns((), ("partition",), ("route", "why", "replicas"))
    for plan in answer.partitions:
        route = PartitionRoute.Name(plan.route).removeprefix("PARTITION_ROUTE_").lower()
        replicas = [f"{each.gateway_id} {_phase(each.phase)} at {each.next_offset}".strip() for each in plan.replicas]
        shown.add_row(str(plan.partition), route, plan.why, ", ".join(replicas))
    if answer.partitions:
        _print(shown)


def _columns(*names: Sequence[str]) -> Table:
    """Return an empty table. The columns of every second sequence are right-aligned."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for place, group in enumerate(names):
        for name in group:
            shown.add_column(name, justify="right" if place % 2 else "left", overflow="fold")
    return shown


def _print(table: Table) -> None:
    """Print a table: as wide as the terminal, or in a pipe as wide as its content."""
    console = OUT if OUT.is_terminal else Console(highlight=False, width=PIPE_COLUMNS)
    console.print(table)
