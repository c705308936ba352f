"""`tablegate access …`: what the access file of a gateway is made with."""

import sys
from typing import Annotated

import typer

from tablegate.gateway.cli.errors import fail

access = typer.Typer(no_args_is_help=True, help="Make credentials for those who call a gateway.")


@access.callback()
def _group() -> None:
    """Make credentials for those who call a gateway."""


@access.command("new-key")
def new_key(
    name: Annotated[str, typer.Argument(help="Who is to have it: calls with it are those of [bold]key NAME[/bold].")],
) -> None:
    """Make an API key: [bold]tablegate access new-key reports >> keys.toml[/bold].

    The key goes to stderr, once: nothing keeps it. Its entry for the file of API keys goes to stdout.
    """
    from tablegate.gateway.access.api_keys import new_key
    from tablegate.gateway.access.principal import AccessFileError

    try:
        key, entry = new_key(name)
    except AccessFileError as error:
        fail(error)
    print(entry)
    sys.stdout.flush()
    print(key, file=sys.stderr)
