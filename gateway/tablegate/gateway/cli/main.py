"""The commands. Each turns words into a call, and errors into one sentence; the work is elsewhere."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from google.protobuf.message import Message
from rich.console import Console
from rich.progress import Progress
from tablegate.gateway.cli import show
from tablegate.gateway.cli.ask import AskError, Trust
from tablegate.gateway.cli.connecting import LOCAL, Address, AsJson, gateway_at, use_trust
from tablegate.gateway.cli.failing import fail
from tablegate.gateway.cli.jobs import jobs
from tablegate.gateway.cli.operating import drain, explain, status

if TYPE_CHECKING:
    from tablegate.gateway.http.tls import TlsFiles

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)
app.add_typer(jobs, name="job")

TableName = Annotated[str, typer.Argument(help="Name of the table.", metavar="TABLE")]
Fields = Annotated[
    list[str] | None, typer.Argument(help="Fields of the request, as field=value.", metavar="FIELD=VALUE...")
]


@app.callback()
def connection(
    ca: Annotated[
        Path | None, typer.Option(help="CA (PEM) that signed the gateway's certificate.", envvar="TABLEGATE_CA")
    ] = None,
    cert: Annotated[
        Path | None, typer.Option(help="Client certificate (PEM), for mTLS.", envvar="TABLEGATE_CERT")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key (PEM).", envvar="TABLEGATE_KEY")] = None,
) -> None:
    """Serve tables that PySpark keeps, over gRPC, Connect and REST, from one annotated .proto.

    Start with [bold]tablegate demo[/bold]: Kafka, a job with eight tables and a gateway on this machine, and questions.
    """
    use_trust(Trust(ca, cert, key))


def _print(rows: Iterable[Message], *, as_json: bool) -> None:
    try:
        if as_json:
            for row in rows:
                print(json.dumps(show.to_dict(row)), flush=True)
        else:
            show.rows(list(rows))
    except AskError as error:
        fail(error)


@app.command()
def get(table: TableName, fields: Fields = None, address: Address = LOCAL, as_json: AsJson = False) -> None:
    """Get the row of a key: [bold]tablegate get ratings movie_id=362[/bold]. Name a column again for another key."""
    with gateway_at(address) as gateway:
        _print(gateway.get(table, fields or []), as_json=as_json)


@app.command("range")
def range_(
    table: TableName,
    fields: Fields = None,
    limit: Annotated[int | None, typer.Option(help="Most rows.", min=1)] = 50,
    descending: Annotated[bool, typer.Option("--descending", help="Highest key first.")] = False,
    address: Address = LOCAL,
    as_json: AsJson = False,
) -> None:
    """List rows in key order: [bold]tablegate range ratings movie_id_from=300 --limit 10[/bold]."""
    with gateway_at(address) as gateway:
        _print(gateway.range(table, fields or [], limit=limit, descending=descending), as_json=as_json)


@app.command()
def scan(
    table: TableName,
    fields: Fields = None,
    limit: Annotated[int | None, typer.Option(help="Most rows; all without it.", min=1)] = None,
    address: Address = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Stream every row that passes the filters: [bold]tablegate scan ratings min_rating_count=2[/bold]."""
    with gateway_at(address) as gateway:
        _print(gateway.scan(table, fields or [], limit=limit), as_json=as_json)


@app.command()
def subscribe(
    table: TableName,
    fields: Fields = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Keep in this file how far all was shown, and go on there. Events may come again, none is left out.",
            metavar="FILE",
        ),
    ] = None,
    changes_only: Annotated[
        bool, typer.Option("--changes-only", help="Only what changes from now on, not the rows there are.")
    ] = False,
    address: Address = LOCAL,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object a line, for pipes; without it, too, where no terminal is."),
    ] = False,
) -> None:
    """Follow a table, until Ctrl-C: [bold]tablegate subscribe ratings[/bold], or one row: [bold]… movie_id=362[/bold].

    A terminal shows the rows (those that changed last, where not all fit), with what has just changed marked.
    All rows are kept in memory.

    For pipes there is an event a line:
    upsert        a row is new or has changed
    delete        the row of a key is gone
    reset         drop every row: a snapshot begins
    catching_up   the rows so far are not all
    current       they are, as of as_of_time
    disconnected  the stream broke; it goes on where it was
    """
    from tablegate.gateway.cli.subscribe import follow

    as_lines = as_json or not sys.stdout.isatty()
    with gateway_at(address) as gateway:
        try:
            follow(gateway, table, fields or [], as_json=as_lines, resume=resume, changes_only=changes_only)
        except AskError as error:
            fail(error)


@app.command()
def tables(address: Address = LOCAL, as_json: AsJson = False) -> None:
    """Show the tables of a gateway, their keys, and the methods that read them."""
    with gateway_at(address) as gateway:
        try:
            catalogue, status = gateway.catalogue(), gateway.status()
        except AskError as error:
            fail(error)
    described = show.describe_tables(catalogue, status)
    if as_json:
        for table in described:
            print(json.dumps(table))
    else:
        show.tables(described)


for command in (status, explain, drain):
    app.command()(command)


@app.command()
def check(
    contracts: Annotated[
        list[Path], typer.Argument(help="A .proto, or a descriptor set made with buf build -o or protoc.")
    ],
) -> None:
    """Check contracts: print their tables and queries, or everything that is wrong with them."""
    from tablegate.gateway.contract.binder.binder import ContractError, bind, merge
    from tablegate.gateway.contract.descriptors import DescriptorError, load_descriptors

    try:
        catalogue = bind(merge([load_descriptors(path) for path in contracts]))
    except DescriptorError as error:
        fail(error)
    except ContractError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        fail(f"{len(error.problems)} problem{'s' if len(error.problems) > 1 else ''} in the contract")
    show.tables(show.describe_tables(catalogue, None))


@app.command()
def serve(
    contract: Annotated[list[Path], typer.Option(help="Contract: a .proto or a descriptor set. May be repeated.")],
    bootstrap: Annotated[
        str, typer.Option(help="Kafka brokers.", metavar="HOST:PORT,...", envvar="TABLEGATE_BOOTSTRAP")
    ],
    data: Annotated[Path, typer.Option(help="Directory of the store, which may be lost, and of token.key.")] = Path(
        ".tablegate/gateway"
    ),
    store: Annotated[
        str | None,
        typer.Option(
            help="Redis that is to hold the store in place of the directory; gateways of a cluster share a copy there.",
            metavar="redis://HOST:PORT/0?prefix=NAME",
            envvar="TABLEGATE_STORE",
        ),
    ] = None,
    listen: Annotated[str, typer.Option(help="Address to listen on.", metavar="HOST:PORT")] = LOCAL,
    workers: Annotated[int | None, typer.Option(help="Serving processes; one a core without it.", min=1)] = None,
    token_key: Annotated[
        Path | None, typer.Option(help="File with the key that signs tokens, the same on every gateway of a service.")
    ] = None,
    reflection: Annotated[
        bool,
        typer.Option(
            "--reflection",
            help="Tell clients the contracts: for grpcurl, tablegate get …, /openapi.json and /docs.",
        ),
    ] = False,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Serve TLS with this certificate chain (PEM). Replaced files are taken up.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="Take only clients whose certificate this CA (PEM) signed: mTLS.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow plaintext beyond this machine.")] = False,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Let pages of this origin call, for example https://shop.example; * for all. Repeatable."),
    ] = None,
    tables_topic: Annotated[str, typer.Option(help="Topic of the jobs' manifests.")] = "tables",
    advertise: Annotated[
        str | None,
        typer.Option(
            help="Be one of a cluster: gateways that share the partitions, and of which any answers. The others reach "
            "this one there; all need the same --token-key.",
            metavar="HOST:PORT",
            rich_help_panel="Cluster",
        ),
    ] = None,
    gateway_id: Annotated[
        str | None,
        typer.Option(help="Name in the cluster; without it a made-up one, kept in --data.", rich_help_panel="Cluster"),
    ] = None,
    zone: Annotated[
        str,
        typer.Option(help="Where it stands: replicas go to different zones first.", rich_help_panel="Cluster"),
    ] = "",
    replicas: Annotated[
        list[str] | None,
        typer.Option(
            help="How many gateways are to have each partition; 0 for all, 2 without it. For one table: TABLE=N. "
            "Repeatable.",
            metavar="N|TABLE=N",
            rich_help_panel="Cluster",
        ),
    ] = None,
    gateways_topic: Annotated[
        str,
        typer.Option(help="Topic where gateways find each other; made where there is none.", rich_help_panel="Cluster"),
    ] = "gateways",
    log_file: Annotated[Path | None, typer.Option(help="File for the log; stderr without it.")] = None,
) -> None:
    """Serve the tables of contracts: restore them from their changelogs, follow them, answer queries."""
    from tablegate.gateway.server.app import serve as run
    from tablegate.gateway.server.config import ServeConfig, ServeError, cores

    of_all, of_tables = _replicas(replicas or ())
    config = ServeConfig(
        contracts=tuple(contract),
        bootstrap=bootstrap,
        data=data,
        store_url=store,
        listen=listen,
        workers=workers or cores(),
        reflection=reflection,
        tls=_tls(tls_cert, tls_key, tls_client_ca),
        insecure=insecure,
        cors_origins=tuple(cors_origin or ()),
        tables_topic=tables_topic,
        advertise=advertise,
        gateway_id=gateway_id,
        zone=zone,
        replicas=of_all,
        replicas_of=of_tables,
        gateways_topic=gateways_topic,
        token_key_file=token_key,
        log_file=log_file,
    )
    try:
        code = run(config)
    except ServeError as error:
        fail(error)
    raise typer.Exit(code)


def _replicas(texts: Iterable[str]) -> tuple[int | None, dict[str, int]]:
    """Return how many replicas each partition is to have, None where that is not said; and those of certain tables."""
    of_all: int | None = None
    of_tables: dict[str, int] = {}
    for text in texts:
        table, equals, number = text.rpartition("=")
        if not (number.isascii() and number.isdecimal()) or (equals and not table):
            fail(f'--replicas "{text}" is no number of replicas; give N, or TABLE=N for one table')
        if table:
            of_tables[table] = int(number)
        else:
            of_all = int(number)
    return of_all, of_tables


def _tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> "TlsFiles | None":
    from tablegate.gateway.http.tls import TlsFiles

    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        fail("TLS needs a certificate and its key: give both --tls-cert and --tls-key")
    return TlsFiles(certificate, key, client_ca)


@app.command()
def new(
    directory: Annotated[Path, typer.Argument(help="Directory to make; it may be there and empty.")],
) -> None:
    """Start a project of your own: a contract, a declaration, a test: [bold]tablegate new shop[/bold]."""
    from tablegate.gateway.cli.new import NewError, make_project

    try:
        steps = make_project(directory)
    except NewError as error:
        fail(error)
    for line in steps:
        print(line)


@app.command("produce-sample")
def produce_sample(
    bootstrap: Annotated[
        str, typer.Option(help="Kafka brokers.", metavar="HOST:PORT,...", envvar="TABLEGATE_BOOTSTRAP")
    ],
    topic: Annotated[str, typer.Option(help="Topic, which must be there.")] = "ratings",
    count: Annotated[int, typer.Option(help="How many ratings.", min=1)] = 1_000,
    movies: Annotated[int, typer.Option(help="Of how many movies.", min=2)] = 500,
    seed: Annotated[int, typer.Option(help="The same seed gives the same ratings.")] = 1,
    schema_registry: Annotated[
        str | None, typer.Option(help="Schema registry with the Confluent API.", metavar="URL")
    ] = None,
) -> None:
    """Send sample ratings to Kafka, in Avro. Movie 362 gets none: its answer stays known."""
    from tablegate.examples.samples import ratings, send
    from tablegate.jobs.jars import SetupError

    try:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("ratings", total=count)
            sent = send(
                bootstrap,
                ratings.events(count, movies=movies, seed=seed, topic=topic, registry_url=schema_registry),
                progress=lambda done: progress.update(task, completed=done),
            )
    except SetupError as error:
        fail(error)
    print(f"sent {sent} ratings to {topic}")


@app.command()
def demo(
    once: Annotated[bool, typer.Option("--once", help="Ask, print the answers, stop.")] = False,
    gateways: Annotated[
        int, typer.Option(help="With several, they share one table, and one of them is killed.", min=1, max=5)
    ] = 1,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Directory for everything the demo keeps; without it .tablegate/demo, or .tablegate/cluster-demo.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(help="Port of the gateway, the first of several; free ones where they are taken.")
    ] = 50051,
) -> None:
    """Start Kafka, a job that keeps all example tables and a gateway on this machine, and ask each table.

    With --gateways 3: a cluster that goes on while one of its gateways is killed and comes back.
    With --once the exit code is then 1 unless nobody noticed.
    """
    from tablegate.examples.demo.cluster import cluster_demo
    from tablegate.examples.demo.demo import demo as run
    from tablegate.examples.demo.launch import DemoError

    try:
        if gateways > 1:
            cluster_demo(data or Path(".tablegate/cluster-demo"), gateways=gateways, once=once, port=port)
        else:
            run(data or Path(".tablegate/demo"), once=once, port=port)
    except DemoError as error:
        fail(error)


def main() -> None:
    """Run the command that the command line names."""
    try:
        app()
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        raise SystemExit(0) from None
