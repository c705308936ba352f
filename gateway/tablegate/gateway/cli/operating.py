"""The commands for those who run gateways: serve, status, explain, drain.

Draining: a gateway hands its partitions to the others of its cluster before it is stopped. `drain` sends it SIGUSR1,
and then asks for its status until it holds no partition.
"""

import json
import os
import signal
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tablegate.gateway.cli import show
from tablegate.gateway.cli.connecting import LOCAL, Address, AsJson, AskError
from tablegate.gateway.cli.errors import fail
from tablegate.gateway.cli.gateway import Gateway, gateway_at
from tablegate.gateway.cli.served import directory_of, served_tables, whole_tables
from tablegate.gateway.cli.show import explanation
from tablegate.gateway.cli.show import status as show_status
from tablegate.gateway.contract.kafka_arguments import Bootstrap, KafkaFile
from tablegate.gateway.contract.types import Partition
from tablegate.v1.status_pb2 import GetStatusResponse

if TYPE_CHECKING:
    from tablegate.gateway.http.tls import TlsFiles
    from tablegate.gateway.server.preflight import Holder

DATA = Path(".tablegate/gateway")
DRAIN_POLL_S = 0.5
LISTED_MAX = 5  # partitions that a message names one by one


def serve(
    contract: Annotated[list[Path], typer.Option(help="Contract: a .proto or a descriptor set. Repeatable.")],
    bootstrap: Bootstrap = None,
    kafka: KafkaFile = None,
    data: Annotated[
        Path, typer.Option(help="Directory of the store, which is rebuilt if it is lost, and of token.key.")
    ] = DATA,
    store: Annotated[
        str | None,
        typer.Option(
            help="Redis that holds the store instead of the directory. Gateways of a cluster share one copy there.",
            metavar="redis://HOST:PORT/0?prefix=NAME",
            envvar="TABLEGATE_STORE",
        ),
    ] = None,
    listen: Annotated[str, typer.Option(help="Address to listen on.", metavar="HOST:PORT")] = LOCAL,
    admin: Annotated[
        str | None,
        typer.Option(
            help="Address for those who run the gateway: /metrics, /healthz, /readyz, /console, tablegate status. The "
            "data port then serves no metrics and no status. No client certificate is asked for.",
            metavar="HOST:PORT",
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Serving processes. Default: one per core.", min=1)] = None,
    streams: Annotated[
        int | None,
        typer.Option(
            help="Streams (Subscribe, Scan) that a serving process has open at once; of them a principal has a quarter "
            "at most. An idle one takes some 5 KB. Default: 10000.",
            min=1,
        ),
    ] = None,
    token_key: Annotated[
        Path | None, typer.Option(help="File with the key that signs tokens. All gateways of a service need the same.")
    ] = None,
    reflection: Annotated[
        bool,
        typer.Option(
            "--reflection",
            help="Publish the contracts to clients: for grpcurl, tablegate get …, pages /, /docs, /console and "
            "/openapi.json.",
        ),
    ] = False,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Serve TLS with this certificate chain (PEM). Replaced files are loaded again.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            help="Accept only clients whose certificate this CA (PEM) signed: mTLS. With its CRL behind it, those that "
            "are revoked are refused."
        ),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow plaintext from other machines.")] = False,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="Allow web pages of this origin to call, for example https://shop.example; * for all. Repeatable."
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Answer requests for this name alone, for example gateway.example, but for gRPC. It keeps away web "
            "pages whose own names lead here. Repeatable. Default: any name; where only this machine reaches the "
            "address, localhost and numbers."
        ),
    ] = None,
    tables_topic: Annotated[
        str | None,
        typer.Option(help="Topic of the jobs' manifests. Default: tables, behind the topic_prefix of --kafka."),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            help="Address at which other gateways reach this one. Gateways started with it form a cluster: they share "
            "the partitions, and each answers all queries. All need the same --token-key.",
            metavar="HOST:PORT",
            rich_help_panel="Cluster",
        ),
    ] = None,
    gateway_id: Annotated[
        str | None,
        typer.Option(help="Name in the cluster. Default: a random name, kept in --data.", rich_help_panel="Cluster"),
    ] = None,
    zone: Annotated[
        str,
        typer.Option(help="Zone of this gateway. Replicas are spread over zones first.", rich_help_panel="Cluster"),
    ] = "",
    replicas: Annotated[
        list[str] | None,
        typer.Option(
            help="Number of gateways that hold each partition; 0: all. Default: 2. For one table: TABLE=N. Repeatable.",
            metavar="N|TABLE=N",
            rich_help_panel="Cluster",
        ),
    ] = None,
    gateways_topic: Annotated[
        str | None,
        typer.Option(
            help="Topic in which gateways find each other. It is created if needed. Default: gateways, behind the "
            "topic_prefix of --kafka.",
            rich_help_panel="Cluster",
        ),
    ] = None,
    snapshots: Annotated[
        str | None,
        typer.Option(
            help="Directory or bucket of snapshot files, the same for all gateways of a cluster. Rows are written "
            "there now and then, and a gateway that has none begins with them, not with the changelog's start.",
            metavar="PATH|s3://BUCKET/FOLDER",
            rich_help_panel="Snapshot files",
        ),
    ] = None,
    snapshots_every: Annotated[
        float,
        typer.Option(
            help="Seconds from one snapshot file of a partition to the next.",
            min=1,
            metavar="SECONDS",
            rich_help_panel="Snapshot files",
        ),
    ] = 3_600,
    snapshots_keep: Annotated[
        int,
        typer.Option(help="How many are kept of each partition.", min=1, rich_help_panel="Snapshot files"),
    ] = 3,
    access: Annotated[
        Path | None,
        typer.Option(
            help="File that says who may read what. It is read again when it changes. Default: whoever connects may "
            "read everything."
        ),
    ] = None,
    log_file: Annotated[Path | None, typer.Option(help="File for the log. Default: stderr.")] = None,
    log_level: Annotated[str, typer.Option(help="Least level that is logged: debug, info, warning, error.")] = "info",
    log_settings: Annotated[
        Path | None,
        typer.Option(
            help="File (TOML) with what is logged: level, access_log, slow_call_ms. It is read again when it changes."
        ),
    ] = None,
    traces: Annotated[
        bool,
        typer.Option(
            "--traces",
            help="Send traces by OpenTelemetry, as its variables OTEL_… say. Needs tablegate-gateway's extra otel.",
        ),
    ] = False,
) -> None:
    """Serve the tables of contracts: restore them from their changelogs, follow them, answer queries."""
    _heed_sigterm()
    from tablegate.gateway.cluster.membership import GATEWAYS_TOPIC
    from tablegate.gateway.contract.kafka_file import KafkaSettingsError
    from tablegate.gateway.contract.kafka_settings import load_settings
    from tablegate.gateway.http.rpc.calls import STREAMS_MAX
    from tablegate.gateway.server.app import serve as run_gateway
    from tablegate.gateway.server.child import SnapshotSettings
    from tablegate.gateway.server.config import ServeConfig, ServeError, cores

    default_replicas, table_replicas = parse_replicas(replicas or ())
    try:
        settings = load_settings(kafka, bootstrap=bootstrap)
    except KafkaSettingsError as error:
        fail(error)
    config = ServeConfig(
        contracts=tuple(contract),
        bootstrap=settings.bootstrap,
        kafka_options=settings.librdkafka(),
        kafka_secret_files=settings.secret_files(),
        kafka_aws_region=settings.aws_region,
        data=data,
        store_url=store,
        listen=listen,
        admin=admin,
        workers=workers or cores(),
        streams=streams or STREAMS_MAX,
        reflection=reflection,
        tls=_tls(tls_cert, tls_key, tls_client_ca),
        insecure=insecure,
        cors_origins=tuple(cors_origin or ()),
        hosts=tuple(host or ()),
        tables_topic=settings.own_topic("tables") if tables_topic is None else tables_topic,
        advertise=advertise,
        gateway_id=gateway_id,
        zone=zone,
        replicas=default_replicas,
        replicas_of=table_replicas,
        gateways_topic=settings.own_topic(GATEWAYS_TOPIC) if gateways_topic is None else gateways_topic,
        token_key_file=token_key,
        log_file=log_file,
        log_level=log_level,
        log_settings=log_settings,
        traces=traces,
        access=access,
        snapshots=None
        if snapshots is None
        else SnapshotSettings(url=snapshots, every_s=snapshots_every, keep=snapshots_keep),
    )
    try:
        code = run_gateway(config)
    except ServeError as error:
        fail(error)
    raise typer.Exit(code)


def _heed_sigterm() -> None:
    """Let SIGTERM end what has only begun, where this is the first process of a container: it ignores it by default."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))


def parse_replicas(texts: Iterable[str]) -> tuple[int | None, dict[str, int]]:
    """Return the replicas of each partition, None if not given; and those of single tables, by name."""
    default: int | None = None
    of_tables: dict[str, int] = {}
    for text in texts:
        table, equals, number = text.rpartition("=")
        if not (number.isascii() and number.isdecimal()) or (equals and not table):
            fail(f'--replicas "{text}" is not a number of replicas: give N, or TABLE=N for one table')
        if table:
            of_tables[table] = int(number)
        else:
            default = int(number)
    return default, of_tables


def _tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> "TlsFiles | None":
    from tablegate.gateway.http.tls import TlsFiles

    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        fail("TLS needs a certificate and its key: give both --tls-cert and --tls-key")
    return TlsFiles(certificate, key, client_ca)


def status(
    address: Address = LOCAL,
    whole: Annotated[
        bool, typer.Option("--whole", help="Exit with 1 also if a partition has fewer live replicas than it should.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a gateway, its cluster and the progress of each partition. Exit with 1 unless all tables are served."""
    with gateway_at(address) as gateway:
        try:
            answer = gateway.status(with_snapshots=True)
        except AskError as error:
            fail(error)
    directory = directory_of(answer)
    if as_json:
        print(json.dumps(show.to_dict(answer)))
    else:
        show_status(answer, directory)
    healthy = (whole_tables if whole else served_tables)(answer, directory)
    raise typer.Exit(0 if answer.tables and len(healthy) == len(answer.tables) else 1)


def explain(
    method: Annotated[str, typer.Argument(help="Method, as package.Service/Method.", metavar="METHOD")],
    request: Annotated[str, typer.Argument(help="Request, as JSON.", metavar="JSON")] = "{}",
    address: Address = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Show who would answer a request, and why: [bold]tablegate explain …/GetRating '{"movieId": 362}'[/bold]."""
    with gateway_at(address) as gateway:
        try:
            answer = gateway.explain(method, request)
        except AskError as error:
            fail(error)
    if as_json:
        print(json.dumps(show.to_dict(answer)))
    else:
        explanation(answer)


def drain(
    data: Annotated[Path, typer.Option(help="Data directory of the gateway, which runs on this machine.")] = DATA,
    timeout: Annotated[float, typer.Option(help="Seconds to wait.", min=0)] = 600,
    address: Annotated[
        str | None,
        typer.Option(
            help="Gateway to ask for its progress. Default: the address that it listens on.",
            metavar="HOST:PORT",
            envvar="TABLEGATE_ADDRESS",
        ),
    ] = None,
) -> None:
    """Hand the partitions of a gateway to the others of its cluster. Exit with 0 once it may be stopped."""
    from tablegate.gateway.server.preflight import holder_of

    try:
        holder = holder_of(data)
        if holder is None:
            raise DrainError(f'no gateway runs on data directory "{data}": give the --data that it was started with')
        with gateway_at(address or holder.address) as gateway:
            name = _drain(holder, gateway, timeout_s=timeout)
    except (DrainError, AskError) as error:
        fail(error)
    print(f'gateway "{name}" holds no partition any more: it may be stopped (process {holder.pid})')


class DrainError(Exception):
    """A gateway that cannot be drained; the message is one sentence for the user."""


def _drain(holder: "Holder", gateway: Gateway, *, timeout_s: float) -> str:
    """Drain the gateway and return its name once it holds no partition. Print a line whenever there is progress.

    `gateway` asks that same one. Raise `DrainError`; raise `AskError` if the first question gets no answer.
    """
    name = _drainable(gateway.status())
    try:
        os.kill(holder.pid, signal.SIGUSR1)
    except OSError as error:
        raise DrainError(f"process {holder.pid} does not accept signals: {error.strerror}") from None
    end_s = time.monotonic() + timeout_s
    printed = ""
    while True:
        text = _remaining(gateway, name)
        if not text:
            return name
        if time.monotonic() >= end_s:
            raise DrainError(
                f"not drained after {timeout_s:g} s: {text}; draining continues, call again to wait for it"
            )
        if text != printed:
            printed = text
            print(text, flush=True)
        time.sleep(DRAIN_POLL_S)


def _drainable(status: GetStatusResponse) -> str:
    """Return the name of the gateway; raise `DrainError` if no other gateway can take its partitions."""
    name = status.gateway_id
    if not name:
        raise DrainError("this gateway stands alone: no other can take its partitions; start gateways with --advertise")
    if not any(each.alive and not each.record.draining and each.record.gateway_id != name for each in status.gateways):
        raise DrainError(f'no other live gateway can take the partitions of "{name}": start one first')
    return name


def _remaining(gateway: Gateway, name: str) -> str:
    """Return what the gateway has still to do, "" once it is drained."""
    try:
        status = gateway.status()
    except AskError as error:
        return f"its progress is unknown ({error})"
    if not any(each.record.gateway_id == name and each.record.draining for each in status.gateways):
        return f'gateway "{name}" has not started to drain yet'
    here = [(table.table, partition.partition) for table in status.tables for partition in table.partitions]
    if not here:
        return ""
    directory = directory_of(status)
    nowhere = [
        (table, number)
        for table, number in here
        if all(peer.gateway_id == name for peer in directory.replicas(table, Partition(number)))
    ]
    text = f"{_counted(len(here))} here"
    return f"{text}, {len(nowhere)} on no other gateway yet: {_listed(nowhere)}" if nowhere else text


def _counted(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


def _listed(partitions: Collection[tuple[str, int]]) -> str:
    names = [f"{table} {number}" for table, number in sorted(partitions)]
    more = len(names) - LISTED_MAX
    return ", ".join(names[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")
