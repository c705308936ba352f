"""Functions of a user's own in the expressions of tables, by the testing kit and in a check."""

from typing import Any

import pyarrow
import pyarrow.compute
import pytest
from pyspark.sql.functions import arrow_udf, udf
from pyspark.sql.types import DoubleType, StringType

from tablegate.jobs import Json, Mode, RecordOutput, Source, Table, Text
from tablegate.jobs.errors import JobError
from tablegate.jobs.testing import Event, run_table
from tests.kit.job.shop.written import HERE

pytestmark = pytest.mark.jvm


@udf(StringType(), useArrow=False)
def cleaned(product: str | None) -> str | None:
    return None if product is None else product.strip().lower()


@arrow_udf(DoubleType())
def taxed(price: pyarrow.Array) -> pyarrow.Array:
    return pyarrow.compute.multiply(price, 1.25)


@udf(DoubleType(), useArrow=False)
def inverse(price: float | None) -> float:
    return 1 / (price or 0)


def declared(**changes: Any) -> Table:
    given: dict[str, Any] = {
        "name": "shop_revenue",
        "contract": str(HERE / "shop.proto"),
        "source": Source("sales", Json("product STRING, price DOUBLE")),
        "key": {"product": "cleaned(product)"},
        "columns": {"revenue": "sum(taxed(price))", "pieces": "count(*)"},
        "functions": {"cleaned": cleaned, "taxed": taxed},
        "mode": Mode.MICROBATCH,
    }
    return Table(**{**given, **changes})


def sale(product: str, price: float | None) -> Event:
    return Event("sales", value={"product": product, "price": price})


def test_expressions_name_functions_everywhere() -> None:
    table = declared(
        having="taxed(revenue) > 2",
        outputs=(RecordOutput("cleaned-sales", key=Text("cleaned(product)"), value=Text("product")),),
    )
    result = run_table(
        table, [sale(" Pen", 2.0), sale("pen", 2.0), sale("ink", 1.0), Event("sales", value=b"{")], [sale("PEN ", None)]
    )
    assert result.rows == {("pen",): {"revenue": 5.0, "pieces": 3}}
    assert [record.key for record in result.outputs["cleaned-sales"]] == ["pen", "pen", "ink", "pen"]
    assert len(result.dead_letters) == 1


def test_a_function_that_raises_is_named_by_its_line() -> None:
    table = declared(
        key={"product": "product"},
        columns={"revenue": "sum(inverse(price))", "pieces": "count(*)"},
        functions={"inverse": inverse},
    )
    with pytest.raises(JobError) as stopped:
        run_table(table, [sale("pen", 0.0)])
    line = inverse.func.__code__.co_firstlineno + 2
    assert f"{__file__}:{line}: ZeroDivisionError" in str(stopped.value)


def test_names_of_sparks_functions_are_refused() -> None:
    table = declared(functions={"cleaned": cleaned, "taxed": taxed, "sum": taxed})
    with pytest.raises(JobError, match=r'function "sum" has the name of one of Spark\'s; give it another name'):
        run_table(table, [sale("pen", 1.0)])
