"""Tables of functions: what a declaration must be, and what in a function's code is its meaning."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.cloudpickle.cloudpickle import list_registry_pickle_by_value
from pyspark.sql.functions import udf
from pyspark.sql.types import LongType

from tablegate.jobs import DeclarationError, FrameTable, Json, Mode, Source, Table
from tablegate.jobs.dataflow.frame_batches import conversion
from tablegate.jobs.dataflow.processors import pickled_by_value
from tablegate.jobs.errors import JobError
from tablegate.jobs.function_code import function_code
from tablegate.jobs.planning.declarations import load_table
from tablegate.jobs.planning.logic import check_repeatable, logic_changes, logic_of
from tablegate.jobs.publishing import publish, publish_batch
from tests.kit.table.things import thing_routes

ORDERS = Source("orders", Json("id BIGINT"))


def rows(spark: Any, orders: Any) -> Any:
    return spark, orders


def declared(**changes: Any) -> FrameTable:
    return FrameTable(**{"name": "t", "contract": "t.proto", "rows": rows, "sources": {"orders": ORDERS}, **changes})


def of_session(session: "SparkSession", orders: Any) -> Any:  # type: ignore[name-defined]  # noqa: F821 - as text
    return session, orders


def test_a_function_gets_the_session_by_name_or_type() -> None:
    assert declared().session_parameter == "spark"
    assert declared(rows=of_session).session_parameter == "session"
    assert declared(rows=lambda orders: orders).session_parameter is None
    assert declared(rows=lambda orders, factor=2: (orders, factor)).session_parameter is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "T"}, "the name is not valid"),
        ({"output_mode": "complete"}, 'output_mode "complete" is none of update, append'),
        ({"emit_interval_s": -1}, "emit_interval_s -1 is negative"),
        ({"rows": None}, "sources are for rows="),
        ({"rows": "rows"}, "rows= is 'rows'; give a function"),
        ({"sources": {}}, 'rows= has a parameter "orders", and there are spark; name it like a source'),
        ({"sources": {"orders": ORDERS, "more": ORDERS}}, 'source "more" is no parameter of rows='),
        ({"sources": {"orders": ORDERS, "spark": ORDERS}}, '"spark" is not a valid name of a source'),
        ({"sources": {"orders": Source("o", Json("id BIGINT"), keyed=True)}}, 'source "orders" has keyed='),
        ({"sources": {"orders": Source("o", Json("t TIMESTAMP"), event_time="t")}}, "has event_time="),
    ],
)
def test_wrong_declarations_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError, match=r'table "[tT]"') as refused:
        declared(**changes)
    assert words in str(refused.value)
    assert str(refused.value).startswith(f"{__file__}:")


def test_a_job_needs_rows(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text("from tablegate.jobs import FrameTable\nTABLE = FrameTable(name='t', contract='t.proto')\n")
    with pytest.raises(JobError, match=r'job.py:2: table "t" has no rows='):
        load_table(str(file))


def test_random_orders_are_refused() -> None:
    with pytest.raises(JobError, match="order uses rand"):
        check_repeatable(declared(order="rand()"))


def test_what_changes_rows_is_their_logic() -> None:
    before = logic_of(declared())
    assert logic_of(declared(generation=2, emit_interval_s=1.0)) == before
    assert "the code of rows is" in logic_changes(before, logic_of(declared(rows=of_session)))
    assert "order is new, id" in logic_changes(before, logic_of(declared(order="id")))
    filtered = {"orders": Source("orders", Json("id BIGINT"), where="id > 0")}
    assert 'source "orders" where is new, id > 0' in logic_changes(before, logic_of(declared(sources=filtered)))


def with_amounts(orders: Any) -> Any:
    return orders.selectExpr("sum(amount) AS amount")


def test_types_of_the_fields_that_a_function_names_are_its_logic() -> None:
    def of(fields: str) -> dict[str, str]:
        return logic_of(declared(rows=with_amounts, sources={"orders": Source("orders", Json(fields))}))

    before = of("amount INT, note STRING")
    assert of("amount INT, note INT, more INT") == before
    assert logic_changes(before, of("amount DOUBLE, note STRING")) == (
        'source "orders" field "amount" is amount DOUBLE, it was amount INT'
    )


BODY = """
FACTOR = {factor}

def helper(value):
    return value + {added}

class Step:
    '''{docstring}'''
    def run(self, value):
        return value

def function(orders):
    '''{docstring}'''
    # {docstring}
    return helper(Step().run(orders)) * FACTOR
"""


def function_of(directory: Path, *, factor: int = 2, added: int = 1, docstring: str = "a") -> Callable[..., Any]:
    file = directory / f"{factor}-{added}-{docstring}.py"
    file.write_text(BODY.format(factor=factor, added=added, docstring=docstring))
    names: dict[str, Any] = {"__name__": "own"}
    exec(compile(file.read_text(), str(file), "exec"), names)
    found: Callable[..., Any] = names["function"]
    return found


def test_a_functions_code_is_what_it_computes(tmp_path: Path) -> None:
    before = function_code(function_of(tmp_path))
    assert function_code(function_of(tmp_path, docstring="b")) == before
    assert function_code(function_of(tmp_path, factor=3)) != before
    assert function_code(function_of(tmp_path, added=3)) != before
    assert function_code(partial(function_of(tmp_path), 1)) != before


def test_the_values_that_a_function_closes_over_are_its_code() -> None:
    def made(factor: int) -> Callable[[int], int]:
        return lambda value: value * factor

    assert function_code(made(1)) == function_code(made(1))
    assert function_code(made(1)) != function_code(made(2))


HEAD = """import dataclasses, functools, os
from datetime import date
from pyspark.sql.types import LongType, StructType
"""


def code_of(directory: Path, body: str) -> str:
    """Return the code of `rows` in a file of its own."""
    file = directory / f"{len([*directory.iterdir()])}.py"
    file.write_text(HEAD + body)
    names: dict[str, Any] = {"__name__": "own", "__file__": str(file)}
    exec(compile(file.read_text(), str(file), "exec"), names)
    return function_code(names["rows"])


CLASS = """
def helper(value): return value + 1
class Base:
    def run(self, value): return helper(value)
class Step(Base):
    def __init__(self, factor): self.factor = factor
    def __call__(self, orders): return self.run(orders) * self.factor
"""


@pytest.mark.parametrize(
    ("body", "before", "after"),
    [
        ("LIMIT = {1, 2}\ndef rows(orders): return LIMIT", "{1, 2}", "{1, 3}"),
        ("LIMIT = date(2026, 1, 1)\ndef rows(orders): return LIMIT", "2026", "2027"),
        ("LIMIT = StructType().add('a', LongType())\ndef rows(orders): return LIMIT", "'a'", "'b'"),
        ("LOW = lambda a: a < 1\nHIGH = lambda a: a < 9\ndef rows(orders): return LOW, HIGH", "< 9", "< 8"),
        ("BOTH = (lambda a: a < 1, lambda a: a < 9)\ndef rows(orders): return BOTH", "< 9", "< 8"),
        ("def made(n): return lambda a: a < n\nL, H = made(1), made(9)\ndef rows(o): return L, H", "(9)", "(8)"),
        ("LIMIT = 1\ndef rows(orders, limit=LIMIT): return limit", "= 1", "= 2"),
        ("LIMIT = 1\ndef rows(orders, *, limit=LIMIT): return limit", "= 1", "= 2"),
        ("STEPS = {'a': [lambda a: a + 1]}\ndef rows(orders): return STEPS", "+ 1", "+ 2"),
        ("def one(a): return a + 1\nrows = functools.partial(lambda f, orders: f(orders), one)", "+ 1", "+ 2"),
        (CLASS + "def rows(orders): return Step(2)(orders)", "value + 1", "value + 2"),
        (CLASS + "STEP = Step(2)\ndef rows(orders): return STEP(orders)", "Step(2)", "Step(3)"),
        (CLASS + "rows = Step(2)", "value + 1", "value + 2"),
        (CLASS + "rows = Step(2).__call__", "Step(2)", "Step(3)"),
        (
            "def plus(f):\n @functools.wraps(f)\n def g(a): return f(a) + 1\n return g\n@plus\ndef rows(o): return o",
            "+ 1",
            "+ 2",
        ),
    ],
)
def test_what_a_function_names_is_its_code(tmp_path: Path, body: str, before: str, after: str) -> None:
    assert code_of(tmp_path, body) == code_of(tmp_path, "\n# longer\n" + body)
    assert before in body
    assert code_of(tmp_path, body) != code_of(tmp_path, body.replace(before, after))


@pytest.mark.parametrize(
    "bodies",
    [
        # As two processes may have them.
        ["LIMIT = {0, 8}\ndef rows(orders): return LIMIT", "LIMIT = {8, 0}\ndef rows(orders): return LIMIT"],
        ["rows = [lambda a: a in (1,\n 2)][0]", "rows = [lambda a: a  in (1, 2)][0]"],
        ["def rows(orders): return os.path.dirname(__file__)"] * 2,
        ["LIST = []\nLIST.append(LIST)\ndef rows(orders): return LIST"] * 2,
        ["class A:\n def __init__(self): self.all = {self}\nONE = A()\ndef rows(orders): return ONE"] * 2,
    ],
)
def test_what_means_the_same_is_the_same_code(tmp_path: Path, bodies: list[str]) -> None:
    assert len({code_of(tmp_path, body) for body in bodies}) == 1


def test_a_function_of_a_notebook_is_sent_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = ModuleType("notebook")  # without a file
    monkeypatch.setitem(sys.modules, "notebook", notebook)
    with pickled_by_value([notebook]):
        assert "notebook" in list_registry_pickle_by_value()


class OfSparkConnect:
    """A DataFrame whose session is none of this process, as PySpark's own wants packages that are not here."""

    sparkSession = object()  # noqa: N815 - as PySpark has it

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} would ask the server")


@pytest.mark.parametrize("of", [partial(publish, checkpoint="c"), publish_batch])
def test_a_frame_of_spark_connect_is_refused(of: Callable[..., Any]) -> None:
    with pytest.raises(JobError, match="is of Spark Connect, and publishing needs a Spark session of this process"):
        of(OfSparkConnect(), FrameTable(name="t", contract="t.proto"), bootstrap="localhost:1")


def of_udf(deterministic: bool = True, factor: int = 2) -> Any:
    def doubled(value: int) -> int:
        return value * factor

    made = udf(doubled, LongType(), useArrow=False)
    return made if deterministic else made.asNondeterministic()


def with_functions(**changes: Any) -> Table:
    given: dict[str, Any] = {
        "name": "t",
        "contract": "t.proto",
        "source": ORDERS,
        "key": {"id": "id"},
        "columns": {"n": "sum(doubled(id))"},
        "functions": {"doubled": of_udf()},
        "mode": Mode.MICROBATCH,
    }
    return Table(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"functions": {"doubled": len}}, 'function "doubled" is no UDF of Spark'),
        ({"functions": {"Doubled": of_udf()}}, '"Doubled" is not a valid name of a function'),
        ({"functions": {"doubled": of_udf(deterministic=False)}}, 'function "doubled" is called nondeterministic'),
        ({"mode": Mode.REALTIME}, 'does not support the function "doubled", which Python computes'),
    ],
)
def test_wrong_functions_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        with_functions(**changes)
    assert words in str(refused.value)


def test_the_code_of_a_function_is_a_tables_logic() -> None:
    before = logic_of(with_functions())
    assert logic_changes(before, logic_of(with_functions())) == ""
    changed = logic_of(with_functions(functions={"doubled": of_udf(factor=3)}))
    assert logic_changes(before, changed).startswith('the code of function "doubled" is ')


def test_an_enum_is_made_of_its_names_by_a_map() -> None:
    [route], _ = thing_routes(GetThing='get: "/v1/things"')
    fields = route.method.input_type.fields_by_name
    written = "map('COLOR_UNSPECIFIED', 0L, 'COLOR_DARK_RED', 1L)[shade]"
    assert conversion(fields["color"], "shade", "string", "bigint") == written
    assert conversion(fields["color"], "shade", "double", "bigint") == "CAST(shade AS BIGINT)"
    assert conversion(fields["big"], "shade", "string", "bigint") == "CAST(shade AS BIGINT)"
