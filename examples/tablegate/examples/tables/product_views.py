"""Views per product, once a second; and the products that have just become popular."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from tablegate.jobs import Json, Mode, Processor, RowOutput, Source, Table, Text

POPULAR_VIEWS = 1_000


class Views(Processor):
    """Counts views, and emits the count of a product that was viewed once a second."""

    state = "views BIGINT, told BIGINT"
    emits = "views BIGINT, is_popular BOOLEAN"
    reads = ()
    every_s = 1.0

    def on_record(self, key: Any, record: Any, state: Any) -> None:  # noqa: ARG002 - every view is one
        """Count a view."""
        state.views += 1

    def on_timer(self, key: Any, state: Any, now: datetime) -> Iterator[dict[str, object]]:  # noqa: ARG002
        """Emit the count. It is popular the first time that it has reached the mark."""
        yield {"views": state.views, "is_popular": state.told < POPULAR_VIEWS <= state.views}
        state.told = state.views


TABLE = Table(
    name="product_views",
    contract="examples/products/v1/products.proto",
    source=Source("product_views", Json("product STRING, customer STRING")),
    key={"product": "product"},
    columns={"view_count": "views"},
    processor=Views(),
    outputs=(
        RowOutput("popular_products", key=Text("product"), value=Json("product, view_count"), where="is_popular"),
    ),
    mode=Mode.MICROBATCH,
    emit_interval_s=1,
)
