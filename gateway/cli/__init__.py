"""The command line, `tablegate`."""

from gateway.cli.main import main

__all__ = ["main"]
