"""Asks a gateway by Feast, in Feast's own environment: `feast_program.py ADDRESS DIRECTORY`. Prints JSON by name."""

import asyncio
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from feast import Entity, FeatureStore, FeatureView, Field, FileSource, RepoConfig, ValueType
from feast.types import Array, Float32, Float64, Int32, Int64, PrimitiveFeastType, String, UnixTimestamp

ADDRESS, DIRECTORY = sys.argv[1:]
SOURCE = FileSource(path=f"{DIRECTORY}/none.parquet", timestamp_field="update_time")
UNTIMED = FileSource(path=f"{DIRECTORY}/none.parquet", timestamp_field="made_at")
MOVIE = Entity(name="movie", join_keys=["movie_id"], value_type=ValueType.INT64)
TITLE = Entity(name="title", join_keys=["title"], value_type=ValueType.STRING)
FEATURES = {"average_rating": Float64, "rating_count": Int64, "update_time": UnixTimestamp}


def store_at(address: str) -> FeatureStore:
    """Return a store whose features a gateway has."""
    online = {"type": "tablegate.client.feast.TablegateOnlineStore", "address": address}
    registry = f"{DIRECTORY}/{address.replace(':', '-')}.db"
    config = RepoConfig(
        project="shop",
        provider="local",
        registry=registry,
        online_store=online,
        entity_key_serialization_version=3,
    )
    return FeatureStore(config=config)


def view_of(
    name: str, features: dict[str, Any], entity: Entity = MOVIE, source: FileSource = SOURCE, **more: Any
) -> FeatureView:
    """Return a feature view."""
    key: PrimitiveFeastType = Int64 if entity is MOVIE else String
    schema = [Field(name=entity.join_key, dtype=key), *(Field(name=one, dtype=kind) for one, kind in features.items())]
    return FeatureView(name=name, entities=[entity], schema=schema, source=source, **more)


VIEWS = [
    view_of("ratings", FEATURES),
    view_of("tagged", {"rating_count": Int32, "average_rating": Float32}, tags={"tablegate_table": "ratings"}),
    view_of("untimed", {"rating_count": Int64}, source=UNTIMED, tags={"tablegate_table": "ratings"}),
    view_of("misspelt", {"ratings_count": Int64}, tags={"tablegate_table": "ratings"}),
    view_of("mistyped", {"rating_count": String}, tags={"tablegate_table": "ratings"}),
    view_of("listed", {"rating_count": Array(Int64)}, tags={"tablegate_table": "ratings"}),
    view_of("keyed", {"rating_count": Int64}, entity=TITLE, tags={"tablegate_table": "ratings"}),
    view_of("absent", {"rating_count": Int64}),
]
STORE, AWAY = store_at(ADDRESS), store_at("127.0.0.1:1")
for store in (STORE, AWAY):
    store.apply([MOVIE, TITLE, *VIEWS])  # type: ignore[list-item]


def asked(features: list[str], keys: list[Any], key: str = "movie_id", store: FeatureStore = STORE) -> Any:
    """Return what Feast gives, each value as text that is no JSON."""
    answer = store.get_online_features(features=features, entity_rows=[{key: value} for value in keys])
    return {
        name: [value.isoformat() if isinstance(value, datetime) else value for value in values]
        for name, values in answer.to_dict(include_event_timestamps=True).items()
    }


def refused(ask: Callable[[], Any]) -> str:
    """Return the type and the sentence of an error."""
    try:
        answer = ask()
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return f"{type(error).__name__}: {error}"
    return f"no error, but {answer}"


def written() -> Any:
    """Write features to the store, as `feast push` does."""
    import pandas as pd

    rows = pd.DataFrame({"movie_id": [1], "rating_count": [1], "update_time": [datetime.now(UTC)]})
    rows["average_rating"] = 1.0
    STORE.write_to_online_store("ratings", rows)


def kinds_of(kind: PrimitiveFeastType) -> list[str]:
    """Return of what kind the values of a view are, once its feature is declared as of a type."""
    STORE.apply([view_of("retyped", {"rating_count": kind}, tags={"tablegate_table": "ratings"})])
    answer = STORE.get_online_features(features=["retyped:rating_count"], entity_rows=[{"movie_id": 2}] * 2)
    names = list(answer.proto.metadata.feature_names.val)
    values = answer.proto.results[names.index("rating_count")].values
    return [str(value.WhichOneof("val")) for value in values]


FOUND = {
    "retyped": [kinds_of(kind) for kind in (Int32, Int64, Int32)],
    "ratings": asked([f"ratings:{name}" for name in FEATURES], [3, 1, 77, 3]),
    "tagged": asked(["tagged:rating_count", "tagged:average_rating"], [2]),
    "many": asked(["ratings:rating_count"], list(range(600))),
    "untimed": asked(["untimed:rating_count"], [2]),
    "misspelt": refused(lambda: asked(["misspelt:ratings_count"], [2])),
    "mistyped": refused(lambda: asked(["mistyped:rating_count"], [2])),
    "listed": refused(lambda: asked(["listed:rating_count"], [2])),
    "keyed": refused(lambda: asked(["keyed:rating_count"], ["Alien"], key="title")),
    "absent": refused(lambda: asked(["absent:rating_count"], [2])),
    "away": refused(lambda: asked(["ratings:rating_count"], [2], store=AWAY)),
    "written": refused(written),
}
STORE.teardown()
asyncio.run(STORE.close())
print(json.dumps(FOUND))
