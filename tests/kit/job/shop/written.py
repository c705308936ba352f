"""The tables of the shop under names of their own, in files as a user has them, and what a gateway says of them."""

from pathlib import Path
from typing import Any

from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.descriptors import load_descriptors
from tests.kit.gateway_processes.gateway import GatewayProcess
from tests.kit.gateway_processes.row_queries import RowQueries

HERE = Path(__file__).parent
PREFIX = "shop_"  # of tables and topics


def write_shop(directory: Path, prefix: str) -> Path:
    """Write declarations and contract; return the path of the declarations."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("tables.py", "shop.proto"):
        (directory / name).write_text((HERE / name).read_text().replace(PREFIX, prefix))
    return directory / "tables.py"


class ShopRows:
    """Asks a gateway for the rows of the shop's tables."""

    def __init__(self, gateway: GatewayProcess, contract: Path, prefix: str) -> None:
        bound = bind(load_descriptors(contract))
        self._queries = {
            name.removeprefix(prefix): RowQueries(
                gateway, [query for query in bound.queries.values() if query.table.name == name]
            )
            for name in bound.tables
        }

    def of(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return these columns of all rows, sorted."""
        return sorted(tuple(getattr(row, name) for name in columns) for row in self._queries[table].rows())
