import pytest
from tablegate.gateway.query.subscribe import local as subscribe
from tablegate.gateway.query.subscribe import sources as givers
from tablegate.gateway.query.subscribe import subscription as routed_subscribe

from tests.kit.call.asker import SHOP, Asker, Ratings, Shop, make_ratings
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import FilledTable, catalogue_of


@pytest.fixture
def ratings() -> Ratings:
    return make_ratings()


@pytest.fixture
def quick_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let routed subscriptions speak often, and look often for who has which partitions; none is taken for silent."""
    monkeypatch.setattr(subscribe, "PROGRESS_MIN_S", 0.02)
    monkeypatch.setattr(givers, "AVOID_S", 0.02)
    monkeypatch.setattr(routed_subscribe, "CHECK_S", 0.02)
    monkeypatch.setattr(routed_subscribe, "RETRY_S", 0.02)
    monkeypatch.setattr(routed_subscribe, "SILENT_S", 3_600.0)


@pytest.fixture
def shop() -> Shop:
    store, catalogue = MemoryStore(), catalogue_of(SHOP)
    tables = {name: FilledTable(store, catalogue.tables[name], 4) for name in ("orders", "accounts", "tags", "days")}
    for table in tables.values():
        table.publish()
    asker = Asker(catalogue, store, "/shop.v1.ShopService", None)
    return Shop(tables["orders"], tables["accounts"], tables["tags"], asker)
