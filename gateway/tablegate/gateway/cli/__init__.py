"""The command line, `tablegate`."""

from tablegate.gateway.cli.main import main

__all__ = ["main"]
