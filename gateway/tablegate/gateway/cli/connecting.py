"""How commands reach a gateway."""

from typing import Annotated

import typer
from tablegate.gateway.cli.ask import NO_TRUST, AskError, Gateway, Trust
from tablegate.gateway.cli.failing import fail

LOCAL = "127.0.0.1:50051"

Address = Annotated[
    str,
    typer.Option(help="Gateway to ask; https://HOST:PORT for TLS.", envvar="TABLEGATE_ADDRESS", metavar="HOST:PORT"),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line, for pipes.")]

_trust = NO_TRUST


def use_trust(trust: Trust) -> None:
    """Trust those that `trust` says, from now on."""
    global _trust
    _trust = trust


def gateway_at(address: str) -> Gateway:
    """Return the gateway at an address; end the command with a sentence where the files of TLS cannot be read."""
    try:
        return Gateway(address, _trust)
    except AskError as error:
        fail(error)
