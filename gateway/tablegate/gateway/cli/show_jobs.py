"""Jobs on a terminal."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Shown

from tablegate.gateway.cli.show import plain
from tablegate.jobs import FrameTable, Mode
from tablegate.jobs.frame_table import Declared

if TYPE_CHECKING:  # they import Spark
    from tablegate.jobs.planning.changes import DeclarationChange
    from tablegate.jobs.running.audit import Audit
    from tablegate.jobs.running.operations import StoredArtifacts, TableState
    from tablegate.jobs.running.rebuild import RebuildProgress

LOG_EVERY_S = 5.0
MODES = {Mode.REALTIME: "Real-time Mode", Mode.MICROBATCH: "micro-batches"}


def described(table: Declared) -> str:
    """Return a declaration in one line."""
    if isinstance(table, FrameTable):
        return f"{table.name}: rows of a function, {MODES[table.mode]}"
    parts = [f"key {', '.join(table.key)}", _counted(len(table.columns), "column"), MODES[table.mode]]
    parts += [f"output {output.topic}" for output in table.outputs]
    return f"{table.name}: {', '.join(parts)}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def state_to_dict(state: "TableState") -> dict[str, Any]:
    """Return the state of a table's job as JSON has it."""
    return {
        "table": state.name,
        "generation": state.generation,
        "mode": state.mode.value if state.mode is not None else None,
        "partitions": state.partition_count,
        "sources": list(state.sources),
        "running": state.is_running,
        "rebuilding": state.rebuilding,
        "records_behind": state.records_behind,
        "marker_age_s": _age_s(state.marker_time),
    }


def states(found: "Sequence[TableState]") -> Shown:
    """Return the states of tables' jobs as a table: `behind` in records, `marker` the age of the newest one.

    Each column folds where it has to: a number that is cut is another one.
    """
    shown = Shown(box=None, pad_edge=False, header_style="bold")
    for name in ("table", "job", "gen", "mode", "behind", "marker", "sources"):  # fits 80 columns
        is_number = name in ("gen", "behind", "marker")
        shown.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for state in found:
        age_s = _age_s(state.marker_time)
        shown.add_row(
            state.name,
            _job(state),
            _text(state.generation),
            state.mode.value if state.mode is not None else "",
            _text(state.records_behind),
            "" if age_s is None else f"{age_s:,.0f} s ago",
            plain(", ".join(state.sources)),
        )
    return shown


def _job(state: "TableState") -> str:
    if state.generation is None and not state.is_running:
        return "never ran"
    text = "[green]running[/green]" if state.is_running else "[yellow]stopped[/yellow]"
    return text if state.rebuilding is None else f"{text}, builds {state.rebuilding}"


def _text(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _age_s(moment: datetime | None) -> float | None:
    return None if moment is None else max(round((datetime.now(UTC) - moment).total_seconds(), 1), 0.0)


def audit_to_dict(found: "Audit") -> dict[str, Any]:
    """Return what an audit has found as JSON has it."""
    return {
        "table": found.table,
        "generation": found.generation,
        "batch": found.batch,
        "settled": found.is_settled,
        "compared": found.compared,
        **{verdict.replace(" ", "_"): count for verdict, count in found.counts.items()},
        "differences": [
            {
                "verdict": one.verdict.replace(" ", "_"),
                "columns": list(one.columns),
                "changelog": one.changelog,
                "changelog_sequence": one.changelog_sequence,
                "state": one.state,
                "state_sequence": one.state_sequence,
            }
            for one in found.differences
        ],
    }


def audit(found: "Audit") -> None:
    """Print what an audit has found: the counts as a table, then the first rows that are not equal."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"table {found.table}, generation {found.generation}, state of batch {found.batch}")
    shown = Shown(box=None, pad_edge=False, show_header=False)
    shown.add_column()
    shown.add_column(justify="right")
    for what, count in {"rows compared": found.compared, **found.counts}.items():
        shown.add_row(what, f"{count:,}")
    console.print(shown)
    if not found.is_settled:
        console.print("its newest batch is not committed: rows that are newer than the state were skipped")
    for one in found.differences:
        columns = f": {', '.join(one.columns)}" if one.columns else ""
        console.print(f"{one.verdict}{columns}", markup=False)
        console.print(f"  changelog {_row(one.changelog, one.changelog_sequence)}", markup=False)
        console.print(f"  state     {_row(one.state, one.state_sequence)}", markup=False)


def _row(row: Mapping[str, Any] | None, sequence: int | None) -> str:
    if sequence is None:
        return "has nothing"
    text = "no row" if row is None else json.dumps(row, ensure_ascii=False)
    return f"{text}, sequence {sequence}"


def change_to_dict(found: "DeclarationChange") -> dict[str, Any]:
    """Return how a declaration has changed as JSON has it."""
    return {
        "table": found.table,
        "generation": found.generation,
        "changed": not found.is_unchanged,
        "from_state": not found.why_not,
        "why_not": found.why_not,
        "columns": [
            {
                "name": one.name,
                "key": one.is_key,
                "change": one.change.value.replace(" ", "_"),
                "before": one.before,
                "now": one.now,
                "kept": one.is_kept,
                "why_not": one.why_not,
            }
            for one in found.columns
        ],
        "others": [{"part": one.part, "before": one.before, "now": one.now} for one in found.parts],
    }


def change(found: "DeclarationChange") -> None:
    """Print how a declaration has changed: a line for each column, then what was and is, and what else has changed."""
    console = Console(highlight=False, soft_wrap=True)
    if found.is_unchanged:
        console.print(f"table {found.table}: as generation {found.generation} was computed")
        return
    console.print(f"table {found.table}, compared with generation {found.generation}")
    shown = Shown(box=None, pad_edge=False, header_style="bold")
    for name in ("column", "", "history, with --from-state"):
        shown.add_column(name, no_wrap=not name.startswith("history"), overflow="fold")
    for one in found.columns:
        history = "" if one.now is None else "kept" if one.is_kept else f"not kept: {one.why_not}"
        shown.add_row(one.name, one.change.value, history)
    console.print(shown)
    changes = [(f'column "{one.name}"', one.before, one.now) for one in found.columns if one.before != one.now]
    for part, before, now in [*changes, *((one.part, one.before, one.now) for one in found.parts)]:
        console.print(f"{part}:", markup=False)
        for when, text in (("was", before), ("is", now)):
            if text is not None:
                console.print(f"  {when:<3} {text}", markup=False)


def artifact_lines(found: "StoredArtifacts") -> Iterator[str]:
    """Yield a line for each thing that would be deleted, and for what would stay."""
    yield f"of table {found.table}:"
    if found.has_manifest:
        yield "  its manifest: gateways stop serving it"
    for topic in found.changelogs:
        yield f"  topic {topic}, a changelog"
    for directory in found.directories:
        is_outputs = directory.name == "outputs"
        what = "the positions of its outputs: they send everything again" if is_outputs else "a checkpoint"
        yield f"  directory {directory}, {what}"
    if not found.is_all:
        yield f"  not {found.remote}: delete it yourself" if found.remote is not None else "The newest one stays."
        return
    if found.remote is not None:
        yield f"  not {found.remote}: delete it yourself, or its outputs continue at their positions"
    yield "Its dead letters and the records of its outputs stay."


class RebuildBar:
    """The progress of a rebuild: a bar if stderr is a terminal, else a line of the job's log every few seconds."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("records"))
        self._progress = Progress(*columns, TimeElapsedColumn(), console=self._console)
        self._task = self._progress.add_task(f"{table}: starting", total=None)
        self._logged: tuple[int, int] | None = None
        self._log_at_s = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def show(self, progress: "RebuildProgress") -> None:
        """Show the progress."""
        if not self._console.is_terminal:
            self._log(progress)
            return
        text = f"{self._table}, generation {progress.generation}: {progress.phase.value}"
        self._progress.update(
            self._task, description=text, completed=progress.records, total=max(progress.records_total, 1)
        )

    def _log(self, progress: "RebuildProgress") -> None:
        from tablegate.jobs.log import log

        read = progress.records, progress.records_total
        now_s = time.monotonic()
        if read == self._logged or now_s < self._log_at_s:
            return
        self._logged, self._log_at_s = read, now_s + LOG_EVERY_S
        log("rebuilding", table=self._table, generation=progress.generation, records=read[0], of=read[1])
