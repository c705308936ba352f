"""`tablegate contract …`: contracts that write themselves, from a row message or from what has its fields."""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tablegate.gateway.cli.errors import fail, fail_with_problems

if TYPE_CHECKING:
    from tablegate.gateway.cli.row_messages import Row
    from tablegate.gateway.cli.topic_rows import TopicRow

_SUBJECT, _TOPIC = "registry:", "topic:"
_PACKAGE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)

contracts = typer.Typer(no_args_is_help=True, help="Write contracts, and show what gateways make of them.")


class Kind(Enum):
    """Kinds of queries, as commands call them."""

    GET = "get"
    BATCH_GET = "batch-get"
    RANGE = "range"
    SCAN = "scan"
    SUBSCRIBE = "subscribe"
    COUNT = "count"


@contracts.command()
def new(
    path: Annotated[Path, typer.Argument(help="A .proto that has the row message.", metavar="CONTRACT.proto")],
    row: Annotated[
        str | None,
        typer.Option(
            help="Row message. Default: the only one there is; of JSON, as the file is called: Order of orders.proto.",
            metavar="MESSAGE",
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            help="Key column; again for each further one, in sort order. Of a topic, found out where keys tell.",
            metavar="COLUMN",
        ),
    ] = None,
    partition_by: Annotated[
        list[str] | None,
        typer.Option(
            help="Leading key column that chooses the partition, so that List reads one. Default: all of them.",
            metavar="COLUMN",
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="Name of the table. Default: the row's, in the plural.", metavar="NAME")
    ] = None,
    method: Annotated[
        list[Kind] | None,
        typer.Option(
            help="Query to write: get, batch-get, range, scan, subscribe or count; again for more. Default: all.",
            metavar="KIND",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Make the row of this: an Avro schema (.avsc), a sample (.json), another .proto, registry:SUBJECT, or "
            "topic:NAME, whose newest records are read.",
            metavar="FILE",
            envvar="TABLEGATE_CONTRACT_NEW_FROM",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(help="Field of --from to leave out; again for more.", metavar="FIELD")
    ] = None,
    package: Annotated[
        str | None, typer.Option(help="Package, with --from. Default: the table's name and .v1.", metavar="NAME")
    ] = None,
    schema_registry: Annotated[
        str | None,
        typer.Option(help="Schema registry with the Confluent API, for --from registry:SUBJECT.", metavar="URL"),
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            help="Kafka brokers, for --from topic:NAME; also bootstrap in the file of --kafka.",
            metavar="HOST:PORT,...",
            envvar="TABLEGATE_BOOTSTRAP",
        ),
    ] = None,
    kafka: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file that says how Kafka is reached and, in its part registry, the schema registry.",
            metavar="FILE",
            envvar="TABLEGATE_KAFKA",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there, with --from.")] = False,
    stdout: Annotated[bool, typer.Option("--stdout", help="Print the contract, and write no file.")] = False,
) -> None:
    """Write the queries of a row into its .proto: [bold]tablegate contract new orders.proto --key order_id[/bold].

    The message gets the table option where it has none. Then come a service with Get, BatchGet, List, Scan and
    Subscribe, their messages and REST routes: a contract to serve as it is, and yours to change.

    With --from the whole file is written, the row message too: of the JSON in a topic, for example, by
    [bold]tablegate contract new orders.proto --from topic:orders --bootstrap 127.0.0.1:9092[/bold].
    """
    from tablegate.gateway.cli.contract_files import AskedTable, complete, table_name, write
    from tablegate.gateway.cli.row_messages import RowError, row_name
    from tablegate.gateway.contract.binder.problems import ContractError
    from tablegate.gateway.contract.binder.tables import TABLE_NAME_HINT, is_table_name
    from tablegate.gateway.contract.descriptors import DescriptorError

    columns, leading, text, found = tuple(key or ()), tuple(partition_by or ()), None, None
    if source is None and (skip or package or schema_registry or force):
        fail("--skip, --package, --schema-registry and --force need --from; say what the row is made of")
    try:
        if source is not None:
            if path.suffix != ".proto" or path.is_dir():
                fail(f'contract "{path}" is not a .proto; give a file that ends so')
            if path.exists() and not (force or stdout):
                fail(f'contract "{path}" is there already; give another file, or --force to replace it')
            if package is not None and _PACKAGE.fullmatch(package) is None:
                fail(f'no package can be called "{package}"; give a name such as shop.v1')
            if table and not is_table_name(table):
                fail(f'"{table}" is no name for a table; {TABLE_NAME_HINT}')
            if source.startswith(_TOPIC):
                named = row or row_name(path)
                found = _row_of_topic(source.removeprefix(_TOPIC), named, columns, skip or (), bootstrap, kafka)
                for line in found.lines():
                    print(line, file=sys.stderr if stdout else sys.stdout)
                made, columns = found.row, tuple(found.key)
            else:
                made = _row_of(source, row or "", skip or (), schema_registry, kafka)
            if not made.name:
                made = replace(made, name=row_name(path))
            if not made.name:
                fail("a sample does not say what a row is called; say it: --row Order")
            row, columns, leading = made.name, tuple(map(made.column, columns)), tuple(map(made.column, leading))
            text = made.text(package or f"{table or table_name(row)}.v1", columns)
        kinds = [kind.value.replace("-", "_") for kind in method or Kind]
        contract = complete(path, AskedTable(row or "", table or "", columns, leading), kinds, text=text)
        if stdout:
            sys.stdout.write(contract.text)
            return
        write(path, contract.text)
    except (DescriptorError, RowError) as error:
        fail(error)
    except ContractError as error:
        fail_with_problems(error.problems)
    except OSError as error:
        if source is not None and text is None:
            fail(f'"{source}" cannot be read: {error.strerror}')
        fail(f'"{path}" cannot be written: {error.strerror}')
    tables = ", ".join(contract.tables)
    following = f"tablegate check {shlex.quote(str(path))}"
    if source is not None and found is not None:
        reached = f"--kafka {shlex.quote(str(kafka))}" if kafka is not None else f"--bootstrap {bootstrap}"
        following = (
            f"tablegate table add {tables} --topic {source.removeprefix(_TOPIC)} --key {found.codec} --value json "
            f"--contract {shlex.quote(str(path))} {reached}"
        )
    print(f"wrote {path}: the queries of table {tables}; next: {following}")


def _row_of(source: str, name: str, skipped: Sequence[str], registry: str | None, kafka: Path | None) -> "Row":
    """Return the row that is made of a file or of a subject; raise `RowError` and what reading it raises."""
    from tablegate.gateway.cli.row_messages import RowError, row_of

    try:
        if source.startswith(_SUBJECT):
            row = _row_of_subject(source.removeprefix(_SUBJECT), name, skipped, registry, kafka)
        elif registry is not None:
            raise RowError(f"--schema-registry needs a subject; give --from {_SUBJECT}orders-value")
        else:
            row = row_of(Path(source), name, skipped)
    except RecursionError:
        raise RowError(
            f'"{source}" has more objects in one another than a row may have; give one that has not'
        ) from None
    return row


def _row_of_topic(
    topic: str,
    name: str,
    key: Sequence[str],
    skipped: Sequence[str],
    bootstrap: str | None,
    kafka: Path | None,
) -> "TopicRow":
    """Return the row that the newest records of a topic have in common."""
    from tablegate.gateway.cli.row_messages import RowError
    from tablegate.gateway.cli.tables import kafka_of
    from tablegate.gateway.cli.topic_rows import topic_row
    from tablegate.gateway.cli.topic_samples import SAMPLE_RECORDS_MAX
    from tablegate.gateway.contract.kafka_file import KafkaSettingsError
    from tablegate.gateway.contract.types import is_topic_name
    from tablegate.gateway.kafka.log import LogUnavailable

    try:
        with kafka_of(bootstrap, kafka) as published:
            facts = published.describe(topic) if is_topic_name(topic) else None
            if facts is None:
                raise RowError(f'topic "{topic}" does not exist; create it, or correct --from')
            records = (record for _, record in published.read_some(topic, facts, SAMPLE_RECORDS_MAX))
            return topic_row(records, name, key, skipped, topic=topic)
    except (KafkaSettingsError, LogUnavailable) as error:
        raise RowError(str(error)) from None
    except RecursionError:
        raise RowError(
            f'topic "{topic}" has more objects in one another than a row may have; leave them out: --skip FIELD'
        ) from None


def _row_of_subject(subject: str, name: str, skipped: Sequence[str], url: str | None, kafka: Path | None) -> "Row":
    """Return the row of the newest schema of a subject."""
    from tablegate.gateway.cli import registry as registries
    from tablegate.gateway.cli.json_schema_rows import json_schema_row
    from tablegate.gateway.cli.row_messages import RowError, avro_row, proto_row
    from tablegate.gateway.cli.topic_schemas import compiled
    from tablegate.gateway.contract.kafka_file import KafkaSettingsError
    from tablegate.gateway.contract.registry_settings import load_registry

    try:
        settings = load_registry(kafka, url=url)
        if settings is None:
            raise RowError(
                f"--from {_SUBJECT}{subject} needs the registry; give --schema-registry http://host:port, or --kafka "
                "with a file that has [registry]"
            )
        schema = registries.newest_schema(settings, subject)
    except (registries.RegistryError, KafkaSettingsError) as error:
        raise RowError(str(error)) from None
    what = f'"{_SUBJECT}{subject}"'
    match schema.language:
        case registries.AVRO:
            return avro_row(schema.text, name, skipped, what=what)
        case registries.JSON_SCHEMA:
            return json_schema_row(schema.text, name, skipped, what=what)
        case registries.PROTOBUF:
            try:
                return proto_row(compiled(schema), name, skipped, what=what)
            except registries.RegistryError as error:
                raise RowError(str(error)) from None
    raise RowError(f"{what} is of {schema.language}, and only Avro, Protobuf and JSON Schema make a row")


@contracts.command()
def show(
    path: Annotated[Path, typer.Argument(help="A .proto.", metavar="CONTRACT.proto")],
) -> None:
    """Print a contract with the queries that gateways add to a row alone: to generate clients from."""
    from tablegate.gateway.cli import contract_files
    from tablegate.gateway.contract.binder.problems import ContractError
    from tablegate.gateway.contract.descriptors import DescriptorError

    try:
        sys.stdout.write(contract_files.show(path))
    except DescriptorError as error:
        fail(error)
    except ContractError as error:
        fail_with_problems(error.problems)
