"""`python -m gateway.cli`: the same as `tablegate`."""

from gateway.cli import main

main()
