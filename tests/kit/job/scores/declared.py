"""The table of scores under a name of its own, and how it is read."""

from pathlib import Path

import grpc

from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.descriptors import load_descriptors
from tests.kit.gateway_processes.gateway import GatewayProcess
from tests.kit.gateway_processes.row_queries import RowQueries

ROW = Path(__file__).parent / "scores.proto"


def write_contract(directory: Path, name: str) -> Path:
    """Write the contract of a table of scores, the row alone; return its path."""
    contract = directory / f"{name}.proto"
    contract.write_text(ROW.read_text().replace("NAME", name))
    return contract


class Scores:
    """Asks a gateway for scores."""

    def __init__(self, gateway: GatewayProcess, contract: Path) -> None:
        self._queries = RowQueries(gateway, bind(load_descriptors(contract)).queries.values())

    def all(self) -> dict[int, tuple[float, str]]:
        """Return score and model of each user."""
        return {row.user: (row.score, row.model) for row in self._queries.rows()}

    def of(self, user: int) -> float | None:
        """Return the score of a user; None where there is none."""
        try:
            return float(self._queries.get(user=user).score)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:  # type: ignore[attr-defined]
                return None
            raise
