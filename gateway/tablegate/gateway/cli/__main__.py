"""`python -m tablegate.gateway.cli`: the same as `tablegate`."""

from tablegate.gateway.cli import main

main()
