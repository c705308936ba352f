import pytest

from tests.kit.call.asker import SHOP, Asker, Ratings, Shop, make_ratings
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import FilledTable, catalogue_of


@pytest.fixture
def ratings() -> Ratings:
    return make_ratings()


@pytest.fixture
def shop() -> Shop:
    store, catalogue = MemoryStore(), catalogue_of(SHOP)
    tables = {name: FilledTable(store, catalogue.tables[name], 4) for name in ("orders", "accounts", "tags", "days")}
    for table in tables.values():
        table.publish()
    asker = Asker(catalogue, store, "/shop.v1.ShopService", None)
    return Shop(tables["orders"], tables["accounts"], tables["tags"], asker)
