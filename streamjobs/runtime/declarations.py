"""Finds declarations and their contracts, and holds the one against the other."""

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from gateway.contract import catalogue
from gateway.contract.binder import bind
from gateway.contract.descriptors import DescriptorError, load_descriptors, shipped_proto_directory
from gateway.contract.problems import ContractError
from streamjobs import tables
from streamjobs.runtime.errors import JobError
from streamjobs.table import DeclarationError, Table


def load_table(job: str) -> Table:
    """Return the declaration `job` names: an example table's name, or the path of a file that defines `TABLE`."""
    path = Path(job) if job.endswith(".py") else Path(next(iter(tables.__path__)), f"{job}.py")
    if not path.is_file() or not (job.endswith(".py") or job in example_names()):
        known = ", ".join(example_names())
        raise JobError(f'no job "{job}"; give one of {known}, or the path of a .py file that defines TABLE')
    declared = getattr(_run_file(path), "TABLE", None)
    if not isinstance(declared, Table):
        raise JobError(f"{path}: no TABLE; define TABLE = streamjobs.table.Table(…)")
    return declared


def example_names() -> list[str]:
    """Return the names of the tables that come with the project."""
    files = Path(next(iter(tables.__path__))).glob("[a-z]*.py")
    return sorted(file.stem for file in files)


def _run_file(path: Path) -> object:
    spec = importlib.util.spec_from_file_location(f"job_{path.stem}", path)
    assert spec is not None, "a .py file always has a loader"
    assert spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses of the file look their module up
    try:
        spec.loader.exec_module(module)
    except DeclarationError as error:
        raise JobError(str(error)) from None
    except Exception as error:  # noqa: BLE001 - the file is the user's: whatever it raises is theirs to read
        line = _line_in(path, error)
        raise JobError(f"{path}{line}: the file does not run: {type(error).__name__}: {error}") from None
    return module


def _line_in(path: Path, error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f":{error.lineno}"
    at, line = error.__traceback__, ""
    while at is not None:
        if at.tb_frame.f_code.co_filename == str(path):
            line = f":{at.tb_lineno}"
        at = at.tb_next
    return line


def load_contract(table: Table) -> catalogue.Table:
    """Return the contract's table of this name; raise `JobError` where declaration and contract disagree."""
    path = _contract_path(table)
    try:
        bound = bind(load_descriptors(path)).tables.get(table.name)
    except DescriptorError as error:
        raise JobError(f"{table.declared_at}: {error}") from None
    except ContractError as error:
        more = f" (and {len(error.problems) - 1} more: tablegate check {path})" if len(error.problems) > 1 else ""
        raise JobError(f"{error.problems[0]}{more}") from None
    if bound is None:
        raise JobError(f'{table.declared_at}: contract "{path}" has no table "{table.name}"; give the table its name')
    _check_columns(table, bound)
    return bound


def _contract_path(table: Table) -> Path:
    """Return the contract's path: from the declaration's directory upwards, then among the examples."""
    declared_in = Path(table.declared_at.file).resolve().parent
    for directory in (declared_in, *declared_in.parents, shipped_proto_directory()):
        if (directory / table.contract).is_file():
            return directory / table.contract
    raise JobError(
        f'{table.declared_at}: contract "{table.contract}" is neither in {declared_in} nor above it; correct the path'
    )


def _check_columns(table: Table, contract: catalogue.Table) -> None:
    key = [column.name for column in contract.key]
    if list(table.key) != key:
        raise JobError(
            f'{table.declared_at}: the key of table "{table.name}" is {_listed(table.key)}, '
            f"the contract has {_listed(key)}; give the same columns in the same order"
        )
    wanted = [column.name for column in contract.row.fields if column.name not in key]
    for name in wanted:
        if name not in table.columns:
            raise JobError(
                f'{table.declared_at}: table "{table.name}" lacks column "{name}" of the contract; '
                "add its aggregate to columns"
            )
    for name in table.columns:
        if name not in wanted:
            raise JobError(
                f'{table.declared_at}: table "{table.name}" has a column "{name}" that the contract lacks; '
                f"remove it, or add the field to message {contract.row.name}"
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
