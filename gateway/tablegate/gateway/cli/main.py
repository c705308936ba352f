"""`tablegate`: the commands, each of which is a thin layer over a function elsewhere.

An error becomes one sentence on stderr and exit code 1. Modules are imported by the commands that need them, so that
`tablegate get` starts fast, and so that the gateway runs without the jobs, the client or the examples.

Each option has an environment variable: `--limit` of `tablegate range` is TABLEGATE_RANGE_LIMIT. Options that several
commands share have a shorter name, such as TABLEGATE_BOOTSTRAP.

Decision: docs/decisions/0049-commands-import-when-asked.md
"""

import errno
import faulthandler
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from typer.core import TyperCommand, TyperGroup

from tablegate.gateway.cli import ask, operating, show
from tablegate.gateway.cli.access import access
from tablegate.gateway.cli.connecting import Trust, use_trust
from tablegate.gateway.cli.console import console
from tablegate.gateway.cli.contracts import contracts
from tablegate.gateway.cli.diff.command import diff
from tablegate.gateway.cli.errors import complain, fail, fail_with_problems, missing_distribution
from tablegate.gateway.cli.tables import tables
from tablegate.gateway.contract.kafka_arguments import Bootstrap, KafkaFile

STARTER = Path(__file__).parent / "starter-project"
DISTRIBUTIONS = ("tablegate", "tablegate-gateway", "tablegate-jobs", "tablegate-client", "tablegate-proto")


class JobCommands(TyperGroup):
    """`tablegate job …`. Its commands are imported when one is asked for: they need tablegate-jobs."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return self._loaded().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name, None if there is none."""
        return self._loaded().get_command(ctx, cmd_name)

    def _loaded(self) -> TyperGroup:
        from tablegate.gateway.cli.jobs import jobs

        group = typer.main.get_command(jobs)
        assert isinstance(group, TyperGroup), "it has several commands"
        return group


class ServeCommand(TyperCommand):
    """Says how a contract is given to those who give it as `check` takes it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; fail where one stands without its option."""
        if not ctx.resilient_parsing and "--help" not in args:
            _, more, _ = self.make_parser(ctx).parse_args(args=[*args])
            if more:
                ctx.fail(f"Contracts are given by an option: tablegate serve --contract {more[0]}")
        return super().parse_args(ctx, args)


COMMANDS: Mapping[str, Callable[..., None]] = {
    "get": ask.get,
    "range": ask.range_,
    "scan": ask.scan,
    "count": ask.count,
    "subscribe": ask.subscribe,
    "tables": ask.tables,
    "mcp": ask.mcp,
    "status": operating.status,
    "diff": diff,
    "explain": operating.explain,
    "console": console,
    "drain": operating.drain,
    "serve": operating.serve,
}

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"auto_envvar_prefix": "TABLEGATE"},
)
for name, command in COMMANDS.items():
    app.command(name, cls=ServeCommand if command is operating.serve else None)(command)
app.add_typer(
    typer.Typer(
        cls=JobCommands, no_args_is_help=True, help="Run the PySpark jobs that keep tables, and look after them."
    ),
    name="job",
)
app.add_typer(tables, name="table")
app.add_typer(contracts, name="contract")
app.add_typer(access, name="access")


def _print_versions(wanted: bool) -> None:
    if not wanted:
        return
    for name in DISTRIBUTIONS:
        try:
            print(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
    raise typer.Exit


@app.callback()
def connection(
    ca: Annotated[
        Path | None, typer.Option(help="CA (PEM) that signed the gateway's certificate.", envvar="TABLEGATE_CA")
    ] = None,
    cert: Annotated[
        Path | None, typer.Option(help="Client certificate (PEM), for mTLS.", envvar="TABLEGATE_CERT")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="Private key (PEM) of the client certificate.", envvar="TABLEGATE_KEY")
    ] = None,
    credential: Annotated[
        Path | None,
        typer.Option(
            help="File with what shows who you are: a JWT, or an API key. Not by its text: others see command lines.",
            envvar="TABLEGATE_CREDENTIAL",
        ),
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback does it
        bool,
        typer.Option(
            "--version",
            help="Print the version of each installed distribution.",
            callback=_print_versions,
            is_eager=True,
            allow_from_autoenv=False,  # many images set TABLEGATE_VERSION and mean their own
        ),
    ] = False,
) -> None:
    """Serve tables that PySpark keeps, over gRPC, Connect and REST, from one annotated .proto.

    Start with [bold]tablegate demo[/bold]: Kafka, a job with eight tables and a gateway on this machine, and questions.
    """
    use_trust(Trust(ca, cert, key, credential))


@app.command()
def check(
    contracts: Annotated[
        list[Path], typer.Argument(help="A .proto, or a descriptor set made with buf build -o or protoc.")
    ],
    access: Annotated[
        Path | None, typer.Option(help="File that says who may read what, as of serve: check it against them.")
    ] = None,
) -> None:
    """Check contracts: print their tables and queries, or all that is wrong with them."""
    from tablegate.gateway.access.gate import Gate
    from tablegate.gateway.access.principal import AccessFileError
    from tablegate.gateway.contract.binder.binder import ContractError, bind, merge
    from tablegate.gateway.contract.descriptors import DescriptorError, load_descriptors

    try:
        catalogue = bind(merge([load_descriptors(path) for path in contracts]))
    except DescriptorError as error:
        fail(error)
    except ContractError as error:
        fail_with_problems(error.problems)
    if access is not None:
        try:
            Gate(access, catalogue).close()
        except AccessFileError as error:
            fail(error)
    show.tables(show.describe_tables(catalogue, None))


@app.command()
def new(
    directory: Annotated[Path, typer.Argument(help="Directory to create. It may exist if it is empty.")],
) -> None:
    """Start a project of your own: a contract, a declaration, a test: [bold]tablegate new shop[/bold]."""
    try:
        if directory.is_dir() and any(directory.iterdir()):
            fail(f'directory "{directory}" is not empty; give another one, or a new name')
        directory.mkdir(parents=True, exist_ok=True)
        files = sorted(file for file in STARTER.iterdir() if file.is_file())
        for file in files:
            shutil.copyfile(file, directory / file.name)
    except OSError as error:
        fail(f'no project can be made in "{directory}": {error.strerror}; give another directory')
    print(f"made {directory}: {', '.join(file.name for file in files)}")
    for line in ("next:", f"    cd {directory}", *_commands_of(STARTER / "README.md")):
        print(line)


def _commands_of(readme: Path) -> Sequence[str]:
    """Return the indented lines of a README: the commands."""
    return [line for line in readme.read_text().splitlines() if line.startswith("    ")]


@app.command("produce-sample")
def produce_sample(
    bootstrap: Bootstrap = None,
    kafka: KafkaFile = None,
    topic: Annotated[str, typer.Option(help="Topic. It must exist.")] = "ratings",
    count: Annotated[int, typer.Option(help="Number of ratings.", min=1)] = 1_000,
    movies: Annotated[int, typer.Option(help="Number of movies.", min=2)] = 500,
    seed: Annotated[int, typer.Option(help="The same seed gives the same ratings.")] = 1,
    schema_registry: Annotated[
        str | None,
        typer.Option(
            help="Schema registry with the Confluent API; also url under registry in the file of --kafka.",
            metavar="URL",
        ),
    ] = None,
) -> None:
    """Send sample ratings to Kafka, in Avro. Movie 362 gets none: its answer stays the same."""
    from tablegate.examples.samples import ratings, send
    from tablegate.gateway.contract.kafka_settings import source_cluster
    from tablegate.jobs.arguments import reach_kafka, reach_registry
    from tablegate.jobs.errors import JobError
    from tablegate.jobs.jars import SetupError

    try:
        bootstrap, registry = source_cluster(reach_kafka(bootstrap, kafka)), reach_registry(schema_registry, kafka)
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("ratings", total=count)
            sent = send(
                bootstrap,
                ratings.events(count, movies=movies, seed=seed, topic=topic, registry=registry),
                progress=lambda done: progress.update(task, completed=done),
            )
    except (SetupError, JobError) as error:
        fail(error)
    print(f"sent {sent} ratings to {topic}")


@app.command()
def demo(
    once: Annotated[bool, typer.Option("--once", help="Ask, print the answers, stop.")] = False,
    gateways: Annotated[
        int, typer.Option(help="With several gateways, they share one table, and one of them is killed.", min=1, max=5)
    ] = 1,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Directory for all data of the demo. Default: .tablegate/demo, or .tablegate/cluster-demo.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(help="Port of the first gateway. If a port is taken, a free one is used.")
    ] = 50051,
) -> None:
    """Start Kafka, a job that keeps all example tables and a gateway on this machine, and ask each table.

    With --gateways 3: a cluster that goes on while one of its gateways is killed and comes back.
    With --once the exit code is then 1 unless nobody noticed.
    """
    from tablegate.examples.demo.cluster import cluster_demo
    from tablegate.examples.demo.demo import demo as run_demo
    from tablegate.examples.demo.launch import DemoError

    try:
        if gateways > 1:
            cluster_demo(data or Path(".tablegate/cluster-demo"), gateways=gateways, once=once, port=port)
        else:
            run_demo(data or Path(".tablegate/demo"), once=once, port=port)
    except DemoError as error:
        fail(error)


@app.command()
def broker(
    topic: Annotated[
        list[str] | None,
        typer.Option(
            help="Topic to make if it is missing, with N partitions, by default 1. May be repeated.", metavar="NAME[:N]"
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.", min=1, max=65_535)] = 9092,
    data: Annotated[Path, typer.Option(help="Directory of its data. It stays for the next start.")] = Path(
        ".tablegate/broker"
    ),
) -> None:
    """Run a Kafka broker on this machine until Ctrl-C: [bold]tablegate broker --topic orders:2[/bold].

    For a project of your own, while you write it: one node, without passwords, which only this machine can reach.
    """
    from tablegate.examples.demo.broker import run_broker
    from tablegate.examples.demo.launch import DemoError

    try:
        run_broker(data, port=port, topics=[_topic(text) for text in topic or []])
    except DemoError as error:
        fail(error)


def _topic(text: str) -> tuple[str, int]:
    """Return the name and the partitions of `NAME[:N]`."""
    matched = re.fullmatch(r"([^:]+)(?::([1-9][0-9]{0,3}))?", text)
    if matched is None:
        fail(f'--topic "{text}" is not NAME or NAME:PARTITIONS, such as orders:2')
    return matched[1], int(matched[2] or 1)


_STDERR = 2
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)


def main() -> None:
    """Run the command that the command line names."""
    _open_closed_files()
    faulthandler.enable()  # a crash in a library's C code then says on stderr what ran
    try:
        app()
    except ModuleNotFoundError as error:
        sentence = missing_distribution(error)
        if sentence is None:
            raise
        complain(sentence)
        raise SystemExit(1) from None
    except BrokenPipeError:  # the reader of the pipe has closed it
        sys.stderr.close()
        raise SystemExit(0) from None
    except OSError as error:
        if error.errno in _NOT_OURS and error.filename:  # as where the shell's completion goes, without a home
            complain(f'"{error.filename}" cannot be used: {error.strerror}; choose another, or ask for the right to it')
            raise SystemExit(1) from None
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = f' of "{error.filename}"' if error.filename else ""
        complain(f"there is no room on the disk{where}, and what was to be written is incomplete: make room, try again")
        _discard_output()
        raise SystemExit(1) from None


def _open_closed_files() -> None:
    """Open what is closed of stdin, stdout and stderr: what is opened next would be taken for it, by children too."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(number, True)
    os.close(number)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _discard_output() -> None:
    """Let nothing more be written, as Python's end would try it once more and fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
