"""`tablegate job …`: the commands that run the PySpark jobs of tables, and look after them.

This module needs tablegate-jobs. It imports Spark only in the commands that start it: that takes seconds.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tablegate.gateway.cli import show_jobs
from tablegate.gateway.cli.connecting import AsJson
from tablegate.gateway.cli.errors import complain, fail
from tablegate.gateway.cli.show import print_table
from tablegate.gateway.contract.kafka_arguments import Bootstrap, KafkaFile, SourceBootstrap
from tablegate.gateway.contract.registry_settings import RegistrySettings
from tablegate.jobs.arguments import (
    CHECKPOINTS,
    Checkpoints,
    Conf,
    Master,
    MetricsAddress,
    Once,
    OtherMode,
    Partitions,
    RegistryUrl,
    SparkLog,
    Traces,
    reach_kafka,
    reach_registry,
    spark_conf,
)
from tablegate.jobs.frame_table import Declared

if TYPE_CHECKING:  # they import Spark, which the other commands need not wait for
    from tablegate.jobs.planning.options import Options, Start
    from tablegate.jobs.running.operations import StoredArtifacts

jobs = typer.Typer(no_args_is_help=True, help="Run the PySpark jobs that keep tables, and look after them.")

Names = Annotated[
    list[str] | None,
    typer.Argument(
        help="Example tables (ratings), or .py files that define TABLE or TABLES; shop.py:orders is one of several.",
        metavar="NAME|FILE...",
        show_default=False,
    ),
]
Name = Annotated[
    str,
    typer.Argument(
        help="An example table (ratings), or a .py file that defines TABLE; shop.py:orders is one of several tables.",
        metavar="NAME|FILE",
    ),
]
Every = Annotated[bool, typer.Option("--all", help="All example tables.", envvar="TABLEGATE_JOB_ALL")]


def _named(names: list[str] | None, *, every: bool) -> list[str]:
    from tablegate.jobs.planning.declarations import example_names

    if every and names:
        fail("both names and --all are given: keep one of them")
    if not every and not names:
        fail("no table is given: give a name like ratings, a .py file that defines TABLE, or --all")
    return example_names() if every else names or []


@contextmanager
def _job_errors() -> Iterator[None]:
    from tablegate.jobs.errors import JobError

    try:
        yield
    except JobError as error:
        fail(error)


def _reached(bootstrap: str | None, kafka: Path | None, source_bootstrap: str | None = None) -> str:
    with _job_errors():
        return reach_kafka(bootstrap, kafka, source_bootstrap)


def _registry(url: str | None, kafka: Path | None) -> RegistrySettings | None:
    with _job_errors():
        return reach_registry(url, kafka)


def _conf(given: list[str] | None) -> dict[str, str]:
    with _job_errors():
        return spark_conf(given)


@jobs.command("run")
def run(
    bootstrap: Bootstrap = None,
    kafka: KafkaFile = None,
    source_bootstrap: SourceBootstrap = None,
    names: Names = None,
    every: Every = False,
    checkpoints: Checkpoints = CHECKPOINTS,
    master: Master = None,
    mode: OtherMode = None,
    partitions: Partitions = None,
    schema_registry: RegistryUrl = None,
    conf: Conf = None,
    spark_log: SparkLog = None,
    once: Once = False,
    metrics: MetricsAddress = None,
    traces: Traces = False,
) -> None:
    """Keep tables, in one Spark application: [bold]tablegate job run ratings --bootstrap 127.0.0.1:9092[/bold].

    The job resumes from its checkpoints, stops cleanly on SIGTERM and Ctrl-C, and logs JSON lines to stdout. With
    [bold]--once[/bold] it ends when it has worked off what the sources had.
    """
    from tablegate.jobs.planning.options import Options
    from tablegate.jobs.running.runner import run_declared

    bootstrap = _reached(bootstrap, kafka, source_bootstrap)
    options = Options(
        bootstrap=bootstrap,
        checkpoints=checkpoints,
        master=master,
        mode=mode,
        partition_count=partitions,
        registry=_registry(schema_registry, kafka),
        spark_log=spark_log,
        conf=_conf(conf),
        once=once,
        metrics=metrics,
        traces=traces,
    )
    with _job_errors():
        run_declared(_named(names, every=every), options)


@jobs.command()
def check(names: Names = None, every: Every = False, spark_log: SparkLog = None) -> None:
    """Check declarations against their contracts and Spark, without Kafka: [bold]tablegate job check shop.py[/bold].

    Print one line per table. Exit with 1 if a declaration is wrong. Only a run can check records and topics.
    """
    from tablegate.jobs.errors import JobError
    from tablegate.jobs.planning.declarations import load_all, load_contract
    from tablegate.jobs.running.checks import check_session, check_table

    wrong = 0
    tables: list[Declared] = []
    for name in _named(names, every=every):
        try:
            tables += load_all([name])
        except JobError as error:
            complain(error)
            wrong += 1
    sound: list[Declared] = []
    for table in tables:
        try:
            load_contract(table)
            sound.append(table)
        except JobError as error:
            complain(error)
            wrong += 1
    if sound:  # starting Spark takes seconds
        waiting = Console(stderr=True).status("starting Spark")
        with _job_errors(), waiting, check_session(sound, spark_log or Path(os.devnull)) as spark:
            for table in sound:
                waiting.update(f"checking {table.name}")
                try:
                    check_table(spark, table)
                    print(f"ok {show_jobs.described(table)}", flush=True)
                except JobError as error:
                    complain(error)
                    wrong += 1
    raise typer.Exit(1 if wrong else 0)


@jobs.command("list")
def list_(
    bootstrap: Bootstrap = None,
    kafka: KafkaFile = None,
    source_bootstrap: SourceBootstrap = None,
    names: Names = None,
    every: Every = False,
    as_json: AsJson = False,
) -> None:
    """Show the tables that jobs keep in a Kafka cluster: whether a job runs, and how far behind it is.

    [bold]tablegate job list --bootstrap 127.0.0.1:9092[/bold]

    With names or files, show the tables that these declare, also those whose job never ran:
    [bold]tablegate job list orders.py[/bold]
    """
    from tablegate.jobs.planning.declarations import load_all
    from tablegate.jobs.running.operations import list_tables

    with _job_errors():
        declared = load_all(_named(names, every=every)) if names or every else None
    bootstrap = _reached(bootstrap, kafka, source_bootstrap)
    with _job_errors():
        states = list_tables(bootstrap, declared)
    if as_json:
        for state in states:
            print(json.dumps(show_jobs.state_to_dict(state)))
    elif not states:
        no_table = f"no job has published a table at {bootstrap} yet; tablegate job run FILE keeps one"
        Console(stderr=True, soft_wrap=True, highlight=False).print(no_table, markup=False)
    else:
        print_table(show_jobs.states(states))


@jobs.command()
def audit(
    name: Name,
    bootstrap: Bootstrap = None,
    kafka: KafkaFile = None,
    checkpoints: Checkpoints = CHECKPOINTS,
    master: Master = None,
    as_json: AsJson = False,
    spark_log: SparkLog = None,
) -> None:
    """Compare each row that is served with the state of the job: [bold]tablegate job audit ratings[/bold].

    Print how many are equal, and the first that are not. Exit with 1 if one is not.

    It only reads. The job may run meanwhile, or be stopped.

    A row that changes meanwhile is skipped, and so is one whose window has ended for the job.

    Two numbers of type DOUBLE are equal up to 1e-9 of the larger, of type FLOAT up to 1e-6.

    The state of a processor does not tell its rows, so such a table cannot be audited.
    """
    from tablegate.jobs.planning.declarations import load_table
    from tablegate.jobs.running.audit import audit_job

    bootstrap = _reached(bootstrap, kafka)
    with _job_errors():
        table = load_table(name)
        with Console(stderr=True).status(f"comparing the rows of {table.name}"):
            found = audit_job(
                table,
                bootstrap=bootstrap,
                checkpoints=checkpoints,
                master=master,
                spark_log=spark_log or Path(os.devnull),
            )
    if as_json:
        print(json.dumps(show_jobs.audit_to_dict(found)))
    else:
        show_jobs.audit(found)
    raise typer.Exit(0 if found.is_equal else 1)


@jobs.command()
def diff(
    name: Name,
    bootstrap: Bootstrap = None,
    kafka: KafkaFile = None,
    checkpoints: Checkpoints = CHECKPOINTS,
    as_json: AsJson = False,
) -> None:
    """Say what a changed declaration means for the rows of a table: [bold]tablegate job diff orders.py[/bold].

    Compare it, column by column, with the one that the rows which are served were computed by.

    Say of each column whether its history is kept by tablegate job rebuild --from-state.

    Exit with 0 where nothing has changed, with 3 where something has, with 1 for what cannot be compared.

    It only reads. Spark is started only where the checkpoints are on no disk of this machine.
    """
    from tablegate.gateway.cli.diff.command import DIFFERS
    from tablegate.jobs.planning.declarations import load_table
    from tablegate.jobs.running.kept_logic import diff_job, needs_spark

    bootstrap = _reached(bootstrap, kafka)
    with _job_errors():
        table = load_table(name)
        if needs_spark(checkpoints):
            Console(stderr=True, soft_wrap=True).print(f"starting Spark, which alone can read {checkpoints}")
        found = diff_job(table, bootstrap=bootstrap, checkpoints=checkpoints, spark_log=Path(os.devnull))
    if as_json:
        print(json.dumps(show_jobs.change_to_dict(found)))
    else:
        show_jobs.change(found)
    raise typer.Exit(0 if found.is_unchanged else DIFFERS)


@jobs.command()
def rebuild(
    name: Name,
    bootstrap: Bootstrap = None,
    kafka: KafkaFile = None,
    source_bootstrap: SourceBootstrap = None,
    checkpoints: Checkpoints = CHECKPOINTS,
    master: Master = None,
    mode: OtherMode = None,
    partitions: Partitions = None,
    schema_registry: RegistryUrl = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss", help="Build it also where sources have dropped records that the table was made of."
        ),
    ] = False,
    from_state: Annotated[
        bool,
        typer.Option("--from-state", help="Begin from the state of the running generation: its history is kept."),
    ] = False,
    from_now: Annotated[
        list[str] | None,
        typer.Option(
            help="With --from-state: a column that begins with what comes from now on. Repeatable.", metavar="COLUMN"
        ),
    ] = None,
    conf: Conf = None,
    spark_log: SparkLog = None,
) -> None:
    """Build the next generation of a table from its sources: [bold]tablegate job rebuild ratings[/bold].

    Use it after a change of the columns, the key or the number of changelog partitions.

    Gateways serve the old generation until the new one has caught up.

    A running job switches to the new generation by itself. The old one stays until tablegate job drop-old.

    If the command is interrupted, run it again: it resumes.

    With [bold]--from-state[/bold] it reads on where the state of the running generation has read to. Of a column that
    this state does not have, tablegate job diff tells.
    """
    from tablegate.jobs.planning.options import Options

    if from_now and not from_state:
        fail("--from-now is given without --from-state: give both")
    bootstrap = _reached(bootstrap, kafka, source_bootstrap)
    options = Options(
        bootstrap=bootstrap,
        checkpoints=checkpoints,
        master=master,
        mode=mode,
        partition_count=partitions,
        registry=_registry(schema_registry, kafka),
        spark_log=spark_log,
        conf=_conf(conf),
        accept_loss=accept_loss,
        from_state=from_state,
        from_now=tuple(from_now or ()),
    )
    with _job_errors():
        flags = "".join([" --from-state" * from_state, *(f" --from-now {column}" for column in options.from_now)])
        _rebuild(name, options, lambda _: None, retry_hint=f"resume with tablegate job rebuild {name}{flags}")


@jobs.command()
def seek(
    name: Name,
    bootstrap: Bootstrap = None,
    kafka: KafkaFile = None,
    source_bootstrap: SourceBootstrap = None,
    time: Annotated[
        str | None,
        typer.Option(help="Read records from this time on, for example 2026-11-21T10:00:00Z.", metavar="TIME"),
    ] = None,
    offset: Annotated[
        list[str] | None,
        typer.Option(
            help="First record to read. Repeatable. Other partitions are read from their first record.",
            metavar="TOPIC:PARTITION:OFFSET",
        ),
    ] = None,
    checkpoints: Checkpoints = CHECKPOINTS,
    master: Master = None,
    mode: OtherMode = None,
    partitions: Partitions = None,
    schema_registry: RegistryUrl = None,
    conf: Conf = None,
    spark_log: SparkLog = None,
) -> None:
    """Build the next generation of a table from a part of its sources, and switch to it.

    [bold]tablegate job seek ratings --time 2026-11-21T10:00:00Z[/bold]

    [bold]tablegate job seek ratings --offset ratings:0:1200 --offset ratings:1:900[/bold]

    This is a rebuild: the new generation knows nothing of earlier records.

    To read from the first record: --time 1970-01-01T00:00:00Z
    """
    from tablegate.jobs.planning.options import Options
    from tablegate.jobs.running.operations import start_at_offsets, start_at_time

    if (time is None) == (not offset):
        fail("give either --time or --offset")
    bootstrap = _reached(bootstrap, kafka, source_bootstrap)
    options = Options(
        bootstrap=bootstrap,
        checkpoints=checkpoints,
        master=master,
        mode=mode,
        partition_count=partitions,
        registry=_registry(schema_registry, kafka),
        spark_log=spark_log,
        conf=_conf(conf),
    )
    retry_hint = "start again with the same command"
    with _job_errors():
        if time is not None:
            start = start_at_time(_moment(time))
            _rebuild(name, options, lambda _: start, retry_hint=retry_hint)
        else:
            offsets = _offsets(offset or [])
            _rebuild(name, options, lambda table: start_at_offsets(table, bootstrap, offsets), retry_hint=retry_hint)


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        fail(f'time "{text}" is not a time: write it like 2026-11-21T10:00:00Z')


def _offsets(words: list[str]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for word in words:
        topic, partition, offset = [*word.rsplit(":", 2), "", ""][:3]
        if not (topic and partition.isdecimal() and offset.isdecimal()):
            fail(f'"{word}" is not an offset: write TOPIC:PARTITION:OFFSET, for example ratings:0:1200')
        if int(partition) in found.setdefault(topic, {}):
            fail(f'offset of topic "{topic}" partition {partition} is given twice: remove one')
        found[topic][int(partition)] = int(offset)
    return found


def _rebuild(name: str, options: "Options", start_of: "Callable[[Declared], Start | None]", *, retry_hint: str) -> None:
    from tablegate.jobs.planning.declarations import load_table
    from tablegate.jobs.running.handover import HandoverPhase
    from tablegate.jobs.running.rebuild import rebuild_job

    table = load_table(name)
    start = start_of(table)
    with show_jobs.RebuildBar(table.name) as bar:
        phase = rebuild_job(table, options, start, on_progress=bar.show)
    err = Console(stderr=True, soft_wrap=True, highlight=False)
    if phase is HandoverPhase.IN_PLACE:
        err.print(f"[green]in place:[/green] table {table.name} has its new generation; a running job switches to it")
        err.print(f"the old one stays until: tablegate job drop-old {name}")
        return
    if phase in (HandoverPhase.BUILDING, HandoverPhase.CAUGHT_UP):
        next_step = retry_hint
    else:
        next_step = f"the new generation is published; to complete the switch: tablegate job run {name}"
    err.print(f"[yellow]stopped:[/yellow] {next_step}")
    raise typer.Exit(1)


def _show_and_ask(artifacts: "StoredArtifacts", question: str, *, yes: bool) -> None:
    """Print what is to be deleted; go on if that is right."""
    for line in show_jobs.artifact_lines(artifacts):
        typer.echo(line)
    if not yes:
        typer.confirm(question, abort=True)


@jobs.command("drop-old")
def drop_old(
    name: Annotated[
        str, typer.Argument(help="Name of the table, or the .py file that defines it.", metavar="TABLE|FILE")
    ],
    bootstrap: Bootstrap = None,
    kafka: KafkaFile = None,
    checkpoints: Checkpoints = CHECKPOINTS,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete what is stored of a table's older generations: [bold]tablegate job drop-old ratings[/bold].

    Use it when all gateways serve the new generation, and its rows are right.
    """
    from tablegate.jobs.planning.declarations import load_table
    from tablegate.jobs.running.operations import delete_old, find_old

    bootstrap = _reached(bootstrap, kafka)
    with _job_errors():
        table = load_table(name).name if ".py" in name else name
        artifacts = find_old(table, bootstrap, checkpoints)
        if artifacts.is_empty:
            typer.echo(f"table {table} has one generation: there is nothing to delete")
            return
        _show_and_ask(artifacts, f"Delete the older generations of table {table}?", yes=yes)
        delete_old(artifacts, bootstrap)
    typer.echo("deleted")


@jobs.command()
def reset(
    name: Annotated[
        str, typer.Argument(help="Name of the table, or the .py file that defines it.", metavar="TABLE|FILE")
    ],
    bootstrap: Bootstrap = None,
    kafka: KafkaFile = None,
    checkpoints: Checkpoints = CHECKPOINTS,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete all that is stored of a table, after a question: [bold]tablegate job reset ratings[/bold].

    Gateways stop serving it until a job builds its next generation from the first record of its sources.
    """
    from tablegate.jobs.planning.declarations import load_table
    from tablegate.jobs.running.operations import delete_artifacts, find_stored_artifacts

    bootstrap = _reached(bootstrap, kafka)
    with _job_errors():
        table = load_table(name).name if ".py" in name else name  # it need not be declared any more
        artifacts = find_stored_artifacts(table, bootstrap, checkpoints)
        if artifacts.is_empty:
            fail(
                f'nothing is stored of table "{table}" at {bootstrap} and in "{checkpoints}": correct the name or these'
            )
        _show_and_ask(artifacts, f"Delete all this of table {table}?", yes=yes)
        delete_artifacts(artifacts, bootstrap)
    typer.echo("deleted; the next tablegate job run builds a new generation from the first record")
    if artifacts.remote is not None:
        typer.echo(f"before that, delete {artifacts.remote}: this command deletes only files of this machine", err=True)
