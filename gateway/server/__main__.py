"""`python -m gateway.server`: a gateway without the rest of the command line."""

import argparse
import sys
from pathlib import Path

from gateway.server.app import refuse, serve
from gateway.server.config import DEFAULT_LISTEN, ServeConfig, ServeError, cores


def main() -> int:
    """Parse the arguments and serve."""
    parser = argparse.ArgumentParser(prog="python -m gateway.server", description="Serve the tables of contracts.")
    parser.add_argument("contracts", nargs="+", type=Path, help="a .proto file or a descriptor set")
    parser.add_argument("--bootstrap", required=True, help="Kafka brokers, host:port,...")
    parser.add_argument("--data", required=True, type=Path, help="directory for the store")
    parser.add_argument("--listen", default=DEFAULT_LISTEN, help="host:port; port 0 takes a free one")
    parser.add_argument("--workers", type=int, default=cores(), help="processes that answer")
    parser.add_argument("--insecure", action="store_true", help="allow plaintext beyond loopback")
    parser.add_argument("--reflection", action="store_true", help="tell clients the contracts")
    parser.add_argument("--tables-topic", default="tables", help="topic of the manifests")
    parser.add_argument("--token-key-file", type=Path, help="keys for tokens, one a line, in hexadecimal")
    parser.add_argument("--log-file", type=Path, help="where the log goes, instead of stderr")
    arguments = vars(parser.parse_args())
    try:
        return serve(ServeConfig(**{**arguments, "contracts": tuple(arguments["contracts"])}))
    except ServeError as error:
        return refuse(error)


if __name__ == "__main__":
    sys.exit(main())
