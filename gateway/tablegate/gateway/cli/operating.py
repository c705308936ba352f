"""The commands for those who run gateways."""

import json
from pathlib import Path
from typing import Annotated

import typer
from tablegate.gateway.cli import show
from tablegate.gateway.cli.ask import AskError
from tablegate.gateway.cli.connecting import LOCAL, Address, AsJson, gateway_at
from tablegate.gateway.cli.failing import fail
from tablegate.gateway.cli.served import directory_of, served_tables, whole_tables
from tablegate.gateway.cli.show_status import explanation
from tablegate.gateway.cli.show_status import status as show_status


def status(
    address: Address = LOCAL,
    whole: Annotated[
        bool, typer.Option("--whole", help="Exit with 1 also while a partition has fewer live replicas than it should.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a gateway, its cluster, and how far each partition is; exit code 1 unless all tables are served."""
    with gateway_at(address) as gateway:
        try:
            answer = gateway.status()
        except AskError as error:
            fail(error)
    directory = directory_of(answer)
    if as_json:
        print(json.dumps(show.to_dict(answer)))
    else:
        show_status(answer, directory)
    good = (whole_tables if whole else served_tables)(answer, directory)
    raise typer.Exit(0 if answer.tables and len(good) == len(answer.tables) else 1)


def explain(
    method: Annotated[str, typer.Argument(help="Method, as package.Service/Method.", metavar="METHOD")],
    request: Annotated[str, typer.Argument(help="Its request, as JSON.", metavar="JSON")] = "{}",
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
    data: Annotated[Path, typer.Option(help="Data directory of the gateway, which runs on this machine.")] = Path(
        ".tablegate/gateway"
    ),
    timeout: Annotated[float, typer.Option(help="Seconds to wait for.", min=0)] = 600,
    address: Annotated[
        str | None,
        typer.Option(
            help="Where it is asked how far it is; without it, where it says that it listens.", metavar="HOST:PORT"
        ),
    ] = None,
) -> None:
    """Have a gateway give its partitions to the others of its cluster; exit code 0 once it may be stopped."""
    from tablegate.gateway.cli.drain import DrainError, holder
    from tablegate.gateway.cli.drain import drain as run

    try:
        found = holder(data)
        with gateway_at(address or found.address) as gateway:
            name = run(found, gateway, timeout_s=timeout, tell=lambda text: print(text, flush=True))
    except (DrainError, AskError) as error:
        fail(error)
    print(f'gateway "{name}" holds no partition any more: it may be stopped (process {found.pid})')
