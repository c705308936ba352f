"""The command `tablegate`, for a `CliRunner` of Click.

It is made once for all calls of a process. The runner of Typer makes all commands anew for each call, in 25 ms.
"""

import typer.main

from tablegate.gateway.cli.main import app

COMMAND = typer.main.get_command(app)
