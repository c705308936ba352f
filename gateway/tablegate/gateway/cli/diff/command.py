"""`tablegate diff OLD NEW`: two contracts, compared table by table.

Decision: docs/decisions/0094-a-diff-asks-the-code-that-decides.md
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tablegate.gateway.cli.connecting import AsJson
from tablegate.gateway.cli.errors import fail, fail_with_problems

if TYPE_CHECKING:
    from tablegate.gateway.cli.diff.differences import TableDifferences
    from tablegate.gateway.contract.catalogue import Catalogue

DIFFERS = 3  # 1 is an error, 2 a wrong command line


def diff(
    old: Annotated[
        Path, typer.Argument(help="The contract that runs: a .proto, a directory of them, or a descriptor set.")
    ],
    new: Annotated[Path, typer.Argument(help="The contract that is to take its place.")],
    as_json: AsJson = False,
) -> None:
    """Say what a changed contract means for its tables: [bold]tablegate diff main/orders.proto orders.proto[/bold].

    SAFE: gateways and job may take it as they are. RESTORE: gateways read the changelog anew, once. REBUILD: the
    table's next generation must be built. BREAKS CLIENTS: clients of the old contract meet something else.

    Exit with 0 where all is SAFE, with 3 where something is not, with 1 for what cannot be compared.
    """
    from tablegate.gateway.cli.diff.differences import Effect, effects_of

    found = compare(_bound(old), _bound(new))
    if as_json:
        print(json.dumps(_document(found)))
    else:
        _show(found)
    raise typer.Exit(0 if effects_of(found) == (Effect.SAFE,) else DIFFERS)


def _bound(path: Path) -> "Catalogue":
    """Return the catalogue of a contract; of a directory, that of all contracts below it."""
    from tablegate.gateway.contract.binder.binder import ContractError, bind, merge
    from tablegate.gateway.contract.descriptors import DescriptorError, load_descriptors

    paths = sorted(path.rglob("*.proto")) if path.is_dir() else [path]
    if not paths:
        fail(f'directory "{path}" has no .proto; give one that has, or a file')
    try:
        return bind(merge([load_descriptors(each) for each in paths]))
    except DescriptorError as error:
        fail(error)
    except ContractError as error:
        fail_with_problems(error.problems)


def compare(old: "Catalogue", new: "Catalogue") -> "Sequence[TableDifferences]":
    """Return in what two catalogues differ, by table; tables without a difference are left out."""
    from tablegate.gateway.cli.diff.differences import Difference, Effect, TableDifferences
    from tablegate.gateway.cli.diff.queries import query_differences
    from tablegate.gateway.cli.diff.tables import table_differences

    names_before = {table.row.full_name: name for name, table in old.tables.items() if name not in new.tables}
    tables = []
    for name in sorted({*old.tables, *new.tables}):
        before, now = old.tables.get(name), new.tables.get(name)
        if before is not None and now is not None:
            found = table_differences(before, now)
        elif before is not None:
            found = [Difference("table", "is gone: its job and its changelog stay until a person removes them")]
        else:
            assert now is not None, "one of both has it"
            known = names_before.get(now.row.full_name)
            text = f'is the new name of "{known}"' if known else "is new"
            rows = Effect.REBUILD if known else Effect.SAFE
            found = [Difference("table", f"{text}: it has no rows until its job has published it", rows)]
        found += query_differences(old, new, name)
        if found:
            tables.append(TableDifferences(name, found))
    return tables


def _document(found: "Sequence[TableDifferences]") -> dict[str, Any]:
    from tablegate.gateway.cli.diff.differences import effects_of

    return {
        "effects": [effect.name for effect in effects_of(found)],
        "tables": [
            {
                "table": table.table,
                "effects": [effect.name for effect in effects_of([table])],
                "differences": [
                    {
                        "effects": [effect.name for effect in each.effects],
                        "subject": each.subject,
                        "text": each.text,
                    }
                    for each in table.differences
                ],
            }
            for table in found
        ],
    }


def _show(found: "Sequence[TableDifferences]") -> None:
    from rich.markup import escape

    from tablegate.gateway.cli import show
    from tablegate.gateway.cli.diff.differences import EFFECTS, Effect, effects_of

    colours = {Effect.SAFE: "green", Effect.RESTORE: "yellow", Effect.REBUILD: "red", Effect.BREAKS_CLIENTS: "red"}

    def named(effects: Sequence[Effect]) -> str:
        return ", ".join(f"[{colours[effect]}]{effect.value}[/{colours[effect]}]" for effect in effects)

    if not found:
        show.OUT.print("no difference")
    for table in found:
        show.OUT.print(f"[bold]{table.table}[/bold]  {named(effects_of([table]))}")
        lines = show.columns(("effect", "subject", "difference"))
        for each in sorted(table.differences, key=lambda one: -max(map(EFFECTS.index, one.effects))):
            lines.add_row(named(each.effects), escape(each.subject), escape(each.text))
        show.print_table(lines)
