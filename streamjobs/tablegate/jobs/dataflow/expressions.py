"""What Spark's Python API cannot say about expressions: evaluate once, evaluate without failing, sum without overflow.

Spark's optimizer copies an expression into each place that uses its value. Decoding is most of a record's cost, and ten
columns would decode a record ten times. `once` stops that.

A job runs in ANSI mode, where an expression that cannot be computed ends the query. `attempt` makes it null instead;
`fallible_inputs` finds what has to be attempted before an aggregate takes it, as an aggregate cannot give it back.

Decision: docs/decisions/0082-what-cannot-be-computed-is-set-aside.md
Decision: docs/decisions/0083-a-record-is-decoded-once.md
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql import types as spark_types

from tablegate.jobs.dataflow.java_classes import java_class, scala_seq

_CATALYST = "org.apache.spark.sql.catalyst"
_EXPRESSION_UTILS = "org.apache.spark.sql.classic.ExpressionUtils"
_AGGREGATE = f"{_CATALYST}.expressions.aggregate"

# Nodes that never fail, whatever their values are.
_SAFE = frozenset(
    {
        *(
            "Alias",
            "AttributeReference",
            "CaseWhen",
            "Coalesce",
            "CreateNamedStruct",
            "GetStructField",
            "If",
            "Literal",
        ),
        *("And", "Or", "Not", "IsNull", "IsNotNull", "In", "EqualTo", "EqualNullSafe"),
        *("LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"),
    }
)
_GROWING = frozenset({"count", "count_if", "max"})
"""Aggregates that never go down."""
_GROWING_SIDE = {"GreaterThan": 0, "GreaterThanOrEqual": 0, "LessThan": 1, "LessThanOrEqual": 1}
"""Which side of a comparison grows, so that it may become true, and stays so."""
_WIDE = "decimal(20, 0)"  # holds every BIGINT; the sum of such has ten digits more


def once(column: Column) -> Column:
    """Return the column's value, of which the optimizer makes no second copy.

    A partition's number is not deterministic to Spark, so nothing that contains it is moved, merged or duplicated. In
    generated code it is a constant of the task.
    """
    return sql.when(sql.spark_partition_id() >= 0, column)


def attempt(column: Column) -> Column:
    """Return a struct with the column's value as `value`, or null where computing it fails."""
    # `once` keeps parts that two columns share from being evaluated before both, and so outside of either.
    tried = sql.struct(once(column).alias("value"))
    return _column(java_class(_context(), f"{_CATALYST}.expressions.TryEval")(_expression(tried)))


def fallible_inputs(aggregated: DataFrame) -> list[Column]:
    """Return what the aggregates of `aggregated` take of one record, as far as computing it may fail.

    The columns are of the frame that was aggregated.
    """
    plan = aggregated._jdf.queryExecution().analyzed()
    while not _is(plan, f"{_CATALYST}.plans.logical.Aggregate"):
        plan = plan.children().head()
    found = plan.aggregateExpressions()
    return [column for place in range(found.size()) for column in _inputs(found.apply(place))]


def _inputs(node: Any) -> Iterator[Column]:
    if not _is(node, f"{_AGGREGATE}.AggregateExpression"):
        for child in _children(node):
            yield from _inputs(child)
        return
    arguments = [_column(argument) for argument in _arguments(node.aggregateFunction())]
    if node.filter().isDefined():
        # Of records that it leaves out, nothing is computed.
        condition = _column(node.filter().get())
        arguments = [sql.when(condition, argument) for argument in arguments]
        if _is_fallible(node.filter().get()):
            arguments.append(condition)
    yield from arguments


def _arguments(function: Any) -> Iterator[Any]:
    for child in _children(function):
        if _is(child, f"{_AGGREGATE}.AggregateFunction"):  # one that Spark replaces by another
            yield from _arguments(child)
        elif _is_fallible(child):
            yield child


def _is_fallible(node: Any) -> bool:
    return node.getClass().getSimpleName() not in _SAFE or any(map(_is_fallible, _children(node)))


def guarded(expression: str, records: DataFrame) -> Column:
    """Return an expression over aggregates of `records` that fails in no aggregate, given inputs that do not fail.

    - Sums of BIGINT go beyond it and come back. A sum that overflowed within an aggregate would end the query, at each
      start again; only its value is a BIGINT.
    - What an aggregate with a FILTER takes is computed only where that is met. Generated code may compute before it
      asks, where an aggregate uses an input twice.
    """
    parser = records.sparkSession._jsparkSession.sessionState().sqlParser()
    return _column(_guarded(parser.parseExpression(expression), records))


def _guarded(node: Any, records: DataFrame) -> Any:
    children = [_guarded(child, records) for child in _children(node)]
    if not children:
        return node
    if not _is(node, f"{_CATALYST}.analysis.UnresolvedFunction"):
        return node.withNewChildren(_seq(children))
    inputs = children
    if node.filter().isDefined():
        *inputs, condition = children
        inputs = [
            _expression(sql.when(_column(condition), _column(one))) if _names_a_field(one) else one for one in inputs
        ]
        children = [*inputs, condition]
    if node.nameParts().last().lower() != "sum" or not _is_bigint(_column(inputs[0]), records):
        return node.withNewChildren(_seq(children))
    wide = node.withNewChildren(_seq([_expression(_column(inputs[0]).cast(_WIDE)), *children[1:]]))
    return _expression(_column(wide).cast("bigint"))


@dataclass(frozen=True, slots=True)
class StateAggregate:
    """An aggregate as the state of a query has it. `types`: those of its columns there, in their order.

    `initial`: what these begin with; None where only the code of the aggregate can make it.
    """

    node: Any
    types: tuple[str, ...]
    initial: tuple[Column, ...] | None

    def is_same(self, other: "StateAggregate") -> bool:
        """Return whether another one, over the same records, comes to the same."""
        return bool(self.node.equals(other.node))


def state_aggregates(
    aggregated: DataFrame, *sizes: int
) -> list[tuple[list[StateAggregate], dict[str, list[StateAggregate]]]]:
    """Return the aggregates of groups of columns, in the order in which a query of each alone has them in its state.

    `sizes`: how many columns each group has; key columns come before the first. Beside them are the aggregates of each
    column, by its name.
    """
    columns = _optimized_columns(aggregated)
    found = []
    at = columns.size() - sum(sizes)
    for size in sizes:
        distinct: list[StateAggregate] = []
        by_column: dict[str, list[StateAggregate]] = {}
        for column in (columns.apply(place) for place in range(at, at + size)):
            own = [_state_aggregate(node) for node in _aggregate_nodes(column)]
            by_column[column.name()] = own
            for one in own:
                # As Spark's planner does: of those that are not deterministic, none is left out.
                if not one.node.deterministic() or not any(map(one.is_same, distinct)):
                    distinct.append(one)
        found.append((distinct, by_column))
        at += size
    return found


def state_types(aggregated: DataFrame) -> dict[str, tuple[str, ...]]:
    """Return the types of what a query keeps in its state for each column, by the column's name."""
    columns = _optimized_columns(aggregated)
    named = (columns.apply(place) for place in range(columns.size()))
    return {
        column.name(): tuple(kind for node in _aggregate_nodes(column) for kind in _state_aggregate(node).types)
        for column in named
    }


def _optimized_columns(aggregated: DataFrame) -> Any:
    """Return the columns of an aggregate as they are optimized: what is not deterministic is made behind them."""
    execution = aggregated._jdf.queryExecution()
    plan = aggregated.sparkSession._jsparkSession.sessionState().optimizer().execute(execution.analyzed())
    while not _is(plan, f"{_CATALYST}.plans.logical.Aggregate"):
        plan = plan.children().head()
    return plan.aggregateExpressions()


def _aggregate_nodes(node: Any) -> Iterator[Any]:
    if _is(node, f"{_AGGREGATE}.AggregateExpression"):
        yield node
        return
    for child in _children(node):
        yield from _aggregate_nodes(child)


def _state_aggregate(node: Any) -> StateAggregate:
    function = node.aggregateFunction()
    attributes = function.aggBufferAttributes()
    types = tuple(attributes.apply(place).dataType().simpleString() for place in range(attributes.size()))
    initial = None
    if _is(function, f"{_AGGREGATE}.DeclarativeAggregate"):
        values = function.initialValues()
        initial = tuple(_column(values.apply(place)) for place in range(values.size()))
    return StateAggregate(node.canonicalized(), types, initial)


def ever_met(having: str, columns: Mapping[str, str], spark: SparkSession) -> Column | None:
    """Return an aggregate that is true of all keys that may have met `having`, now or before; None without a bound.

    A count and a largest value never go down. So a key of which `count(*) >= 5` is not true was never one of which it
    was. What may go up and down again, like a sum, is taken for met.
    """
    parser = spark._jsparkSession.sessionState().sqlParser()
    parsed = {name: parser.parseExpression(expression) for name, expression in columns.items()}
    found = _ever_met(parser.parseExpression(having), parsed)
    return _column(found) if found is not None else None


def _ever_met(node: Any, columns: Mapping[str, Any]) -> Any:
    kind, children = node.getClass().getSimpleName(), _children(node)
    if kind in ("And", "Or"):
        met = [found for child in children if (found := _ever_met(child, columns)) is not None]
        if len(met) == len(children):
            return node.withNewChildren(_seq(met))
        return met[0] if met and kind == "And" else None
    if kind not in _GROWING_SIDE:
        return None
    side = _GROWING_SIDE[kind]
    values = _growing(children[side], columns)
    if not values or not _is_literal(children[1 - side]):
        return None
    met = [node.withNewChildren(_seq([value, children[1]] if side == 0 else [children[0], value])) for value in values]
    return functools.reduce(java_class(_context(), f"{_CATALYST}.expressions.Or"), met)


def _growing(node: Any, columns: Mapping[str, Any]) -> list[Any]:
    """Return the values that an expression may have, none of which ever goes down; nothing where one might."""
    if _is(node, f"{_CATALYST}.analysis.UnresolvedAttribute"):
        # Within the expression of a column, names are fields of records.
        column = columns.get(node.name())
        return _growing(column, {}) if column is not None else []
    if _is_literal(node):
        return [node]
    if not _is(node, f"{_CATALYST}.analysis.UnresolvedFunction"):
        return []
    name, children = node.nameParts().last().lower(), _children(node)
    if name in _GROWING:
        return [] if node.filter().isDefined() else [node]  # `guarded` makes another aggregate of a filtered one
    chosen = {"if": children[1:], "coalesce": children}.get(name, [])
    values = [_growing(child, columns) for child in chosen]
    return [value for found in values for value in found] if all(values) else []


def _is_literal(node: Any) -> bool:
    return bool(node.getClass().getSimpleName() == "Literal")


def _names_a_field(node: Any) -> bool:
    if _is(node, f"{_CATALYST}.expressions.SortOrder"):  # of WITHIN GROUP, which is no value
        return False
    return _is(node, f"{_CATALYST}.analysis.UnresolvedAttribute") or any(map(_names_a_field, _children(node)))


def _is_bigint(column: Column, records: DataFrame) -> bool:
    try:
        return isinstance(records.select(column).schema[0].dataType, spark_types.LongType)
    except PySparkException:  # the analysis of the whole column names it
        return False


def _column(expression: Any) -> Column:
    return Column(java_class(_context(), _EXPRESSION_UTILS).column(expression))


def _expression(column: Column) -> Any:
    return java_class(_context(), _EXPRESSION_UTILS).expression(column._jc)


def _children(node: Any) -> list[Any]:
    found = node.children()
    return [found.apply(place) for place in range(found.size())]


def _seq(nodes: list[Any]) -> Any:
    return scala_seq(_context(), nodes)


def _is(node: Any, name: str) -> bool:
    return bool(java_class(_context(), "py4j.reflection.TypeUtil").isInstanceOf(name, node))


def _context() -> SparkContext:
    context = SparkContext._active_spark_context
    assert context is not None, "who has a frame has a context"
    return context
