"""The table of scores under a name of its own, and how it is read."""

from pathlib import Path

import grpc

from tablegate.gateway.contract.binder.binder import bind, merge
from tablegate.gateway.contract.descriptors import load_descriptors
from tests.kit.gateway_processes.gateway import GatewayProcess

ROW = Path(__file__).parent / "scores.proto"


def write_contract(directory: Path, name: str) -> Path:
    """Write the contract of a table of scores, the row alone; return its path."""
    contract = directory / f"{name}.proto"
    contract.write_text(ROW.read_text().replace("NAME", name))
    return contract


class Scores:
    """Asks a gateway for scores."""

    def __init__(self, gateway: GatewayProcess, contract: Path) -> None:
        queries = bind(merge([load_descriptors(contract)])).queries
        self._scan = next(query for path, query in queries.items() if "/Scan" in path)
        self._get = next(query for path, query in queries.items() if "/Get" in path)
        self._gateway = gateway

    def all(self) -> dict[int, tuple[float, str]]:
        """Return score and model of each user."""
        assert self._gateway.channel is not None
        call = self._gateway.channel.unary_stream(
            self._scan.path, response_deserializer=self._scan.response_class.FromString
        )
        found: dict[int, tuple[float, str]] = {}
        for message in call(self._scan.request_class().SerializeToString(), timeout=10):
            found |= {row.user: (row.score, row.model) for row in message.rows}
        return found

    def of(self, user: int) -> float | None:
        """Return the score of a user; None where there is none."""
        assert self._gateway.channel is not None
        call = self._gateway.channel.unary_unary(
            self._get.path, response_deserializer=self._get.response_class.FromString
        )
        try:
            message = call(self._get.request_class(user=user).SerializeToString(), timeout=5)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:  # type: ignore[attr-defined]
                return None
            raise
        return float(message.row.score)
