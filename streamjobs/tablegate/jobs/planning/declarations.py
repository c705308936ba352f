"""Finds declarations by name or file, and checks each against its contract."""

import importlib.util
import sys
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

from tablegate.gateway.contract import catalogue
from tablegate.gateway.contract.binder.problems import ContractError
from tablegate.jobs.contracts import contract_path, examples_directory, first_problem, table_of_contract
from tablegate.jobs.errors import JobError
from tablegate.jobs.frame_table import Declared, FrameTable
from tablegate.jobs.table import DeclarationError, Table, Window, is_window_start

_TYPE_HINT = "; Spark starts later: give a UDF its type as an object, such as DoubleType()"


def load_tables(job: str) -> list[Declared]:
    """Return the declarations that `job` names; raise `JobError`.

    It is the name of an example table, the path of a .py file that defines `TABLE` or `TABLES`, or such a path with the
    name of one table behind a colon: `shop.py:orders`.
    """
    file, separator, wanted = job.rpartition(":") if ".py:" in job else (job, "", "")
    path = Path(file) if file.endswith(".py") else examples_directory() / f"{file}.py"
    if not (file.endswith(".py") or file in example_names()):
        raise JobError(
            f'no job "{job}"; give one of {", ".join(example_names())}, or the path of a .py file that defines TABLE'
        )
    if not path.is_file():
        raise JobError(f'no job "{job}": there is no file "{path}"; correct the path')
    found = _declared_in(path)
    if not separator:
        return found
    chosen = [table for table in found if table.name == wanted]
    if not chosen:
        raise JobError(f'{path}: no table "{wanted}"; it declares {", ".join(table.name for table in found)}')
    return chosen


def load_table(job: str) -> Declared:
    """Return the one declaration that `job` names, as `load_tables` has it; raise `JobError` where it names several."""
    found = load_tables(job)
    if len(found) > 1:
        raise JobError(f"{job} declares {len(found)} tables; give one of them, for example {job}:{found[0].name}")
    return found[0]


def load_all(jobs: Iterable[str]) -> list[Declared]:
    """Return the declarations of all jobs; raise `JobError` where two have one name."""
    found: dict[str, Declared] = {}
    for job in jobs:
        for table in load_tables(job):
            other = found.setdefault(table.name, table)
            if other is not table:
                same = "is named twice" if other.declared_at == table.declared_at else f"is at {other.declared_at} too"
                raise JobError(f'{table.declared_at}: table "{table.name}" {same}; a job keeps a table once')
    return list(found.values())


def job_argument(table: Declared) -> str:
    """Return what names the table in a command: its name if it is an example, else its file and its name."""
    path = Path(table.declared_at.file).resolve()
    if path.parent == examples_directory().resolve():
        return path.stem
    here = Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{table.name}"


def rebuild_hint(table: Declared) -> str:
    """Return what to do where a generation cannot go on."""
    return f"build the next generation: tablegate job rebuild {job_argument(table)}"


def example_names() -> list[str]:
    """Return the names of the tables that come with the project."""
    return sorted(file.stem for file in examples_directory().glob("[a-z]*.py"))


def _declared_in(path: Path) -> list[Declared]:
    module = _run_file(path)
    one, several = getattr(module, "TABLE", None), getattr(module, "TABLES", None)
    if one is not None and several is not None:
        raise JobError(f"{path}: TABLE and TABLES; keep one of them")
    named = [one] if several is None else list(several) if isinstance(several, Iterable) else [several]
    found = [table for table in named if isinstance(table, Table | FrameTable)]
    if not found or len(found) < len(named):
        raise JobError(
            f"{path}: no TABLE; define TABLE = tablegate.jobs.Table(…), or TABLES = (…, …) for several tables"
        )
    for table in found:
        if isinstance(table, FrameTable) and table.rows is None:
            raise JobError(
                f'{table.declared_at}: table "{table.name}" has no rows=, so a job has no DataFrame of it; give rows=, '
                "or publish it from an application with tablegate.jobs.publishing"
            )
    return found


class _Uncached(SourceFileLoader):
    """Compiles the file each time: Python would reuse the bytecode of a file that kept its length and second."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - as the class that it is of has it
        """Compile the file."""
        return self.source_to_code(self.get_data(self.path), self.path)


def _run_file(path: Path) -> object:
    path = path.resolve()
    name = f"job_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_Uncached(name, str(path)))
    assert spec is not None, "a .py file always has a loader"
    assert spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses of the file look their module up
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # it may import what lies beside it
    try:
        spec.loader.exec_module(module)
    except DeclarationError as error:
        raise JobError(str(error)) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the file is the user's: whatever it raises is theirs to read
        line = _line_in(path, error)
        message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
        hint = _TYPE_HINT if "SESSION_OR_CONTEXT_NOT_EXISTS" in message else ""
        raise JobError(f"{path}{line}: the file does not run: {type(error).__name__}: {message}{hint}") from None
    return module


def _line_in(path: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f":{error.lineno}"
    at, line = error.__traceback__, ""
    while at is not None:
        if at.tb_frame.f_code.co_filename == str(path):
            line = f":{at.tb_lineno}"
        at = at.tb_next
    return line


def load_contract(table: Declared) -> catalogue.Table:
    """Return the contract's table of this name; raise `JobError` where declaration and contract disagree.

    The columns of a DataFrame are compared when there is one.
    """
    bound = find_contract(table)
    if isinstance(table, Table):
        _check_columns(table, bound)
        _check_window(table, bound)
    return bound


def find_contract(table: Declared) -> catalogue.Table:
    """Return the contract's table of this name; raise `JobError` where there is none."""
    try:
        return table_of_contract(table.name, table.contract, table.declared_at)
    except ContractError as error:
        raise JobError(first_problem(error, contract_path(table.contract, table.declared_at))) from None
    except ValueError as error:
        raise JobError(f"{table.declared_at}: {error}") from None


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


def _check_window(table: Table, contract: catalogue.Table) -> None:
    """Raise `JobError` where the windows differ from the contract's, as gateways expire rows by the contract's."""
    declared, wanted = table.window, contract.window
    where = f'{table.declared_at}: table "{table.name}"'
    if declared is None and wanted is None:
        return
    if declared is None or wanted is None:
        raise JobError(f"{where} has a window {_only_in(declared)}; add it to the other, or remove it there")
    start = contract.key[wanted.start_index].name
    if not is_window_start(table.key[start]):
        raise JobError(f'{where}: key column "{start}" is the start of the window in the contract; write window.start')
    size_us, hop_us = (round(s * 1_000_000) for s in (declared.size_s, declared.hop_s or declared.size_s))
    if (size_us, hop_us) != (wanted.size_us, wanted.hop_us):
        raise JobError(
            f"{where} has windows of {declared.size_s:g} s each {declared.hop_s or declared.size_s:g} s, the contract "
            f"of {wanted.size_us / 1e6:g} s each {wanted.hop_us / 1e6:g} s; make them agree"
        )


def _only_in(declared: Window | None) -> str:
    return "in the contract only" if declared is None else "in the declaration only"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
