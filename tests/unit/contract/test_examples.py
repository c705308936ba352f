"""The contracts of the example tables: one gateway can serve all of them."""

from tablegate.examples import CONTRACTS
from tablegate.gateway.contract.binder.binder import bind, merge
from tablegate.gateway.contract.catalogue import (
    BatchGetQuery,
    CountQuery,
    GetQuery,
    Op,
    RangeQuery,
    ScanQuery,
    SubscribeQuery,
)
from tablegate.gateway.contract.descriptors import load_descriptors

EXAMPLES = sorted((CONTRACTS / "examples").glob("*/v1/*.proto"))
QUERIES = {
    "ratings": {GetQuery, BatchGetQuery, RangeQuery, ScanQuery, CountQuery, SubscribeQuery},
    "customers": {GetQuery, BatchGetQuery, RangeQuery, ScanQuery, SubscribeQuery},
    "suspicious_browsers": {GetQuery, RangeQuery, ScanQuery, SubscribeQuery},
    "reward_points": {GetQuery, BatchGetQuery, ScanQuery, SubscribeQuery},
    "stock_ticks": {GetQuery, RangeQuery, ScanQuery, SubscribeQuery},
    "product_views": {GetQuery, BatchGetQuery, ScanQuery, SubscribeQuery},
}


def test_all_together() -> None:
    catalogue = bind(merge([load_descriptors(path) for path in EXAMPLES]))
    assert len(catalogue.tables) == len(EXAMPLES)
    for table, kinds in QUERIES.items():
        queries = [query for query in catalogue.queries.values() if query.table.name == table]
        assert {type(query) for query in queries} == kinds
        assert {route.path for route in catalogue.routes} >= {query.path for query in queries}
    empty = {
        query.table.name
        for query in catalogue.queries.values()
        if isinstance(query, GetQuery) and query.missing_is_empty
    }
    assert empty >= {"suspicious_browsers", "reward_points"}
    assert not empty & {"ratings", "customers", "stock_ticks", "product_views"}
    stocks = catalogue.queries["/examples.stocks.v1.StocksService/ListStockTicks"]
    assert isinstance(stocks, RangeQuery)
    assert [param.op for param in stocks.bounds] == [Op.PREFIX]
