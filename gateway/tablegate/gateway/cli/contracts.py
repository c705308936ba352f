"""`tablegate contract …`: contracts that write themselves, from a row message or from what has its fields."""

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tablegate.gateway.cli.errors import fail, fail_with_problems

contracts = typer.Typer(no_args_is_help=True, help="Write contracts, and show what gateways make of them.")


class Kind(Enum):
    """Kinds of queries, as commands call them."""

    GET = "get"
    BATCH_GET = "batch-get"
    RANGE = "range"
    SCAN = "scan"
    SUBSCRIBE = "subscribe"


@contracts.command()
def new(
    path: Annotated[Path, typer.Argument(help="A .proto that has the row message.", metavar="ROW.proto")],
    row: Annotated[
        str | None, typer.Option(help="Row message. Not needed where there is one message.", metavar="MESSAGE")
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="Key column; again for each further one, in sort order.", metavar="COLUMN")
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
            help="Query to write: get, batch-get, range, scan or subscribe; again for more. Default: all.",
            metavar="KIND",
        ),
    ] = None,
    stdout: Annotated[bool, typer.Option("--stdout", help="Print the contract, and write no file.")] = False,
) -> None:
    """Write the queries of a row into its .proto: [bold]tablegate contract new orders.proto --key order_id[/bold].

    The message gets the table option where it has none. Then come a service with Get, BatchGet, List, Scan and
    Subscribe, their messages and REST routes: a contract to serve as it is, and yours to change.
    """
    from tablegate.gateway.cli.contract_files import AskedTable, complete, write
    from tablegate.gateway.contract.binder.problems import ContractError
    from tablegate.gateway.contract.descriptors import DescriptorError

    asked = AskedTable(row or "", table or "", tuple(key or ()), tuple(partition_by or ()))
    kinds = [kind.value.replace("-", "_") for kind in method or Kind]
    try:
        contract = complete(path, asked, kinds)
        if stdout:
            sys.stdout.write(contract.text)
            return
        write(path, contract.text)
    except DescriptorError as error:
        fail(error)
    except ContractError as error:
        fail_with_problems(error.problems)
    except OSError as error:
        fail(f'"{path}" cannot be written: {error.strerror}')
    tables = ", ".join(contract.tables)
    print(f"wrote {path}: the queries of table {tables}; next: tablegate check {path}")


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
