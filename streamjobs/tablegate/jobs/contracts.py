"""Tables of contracts, as declarations name them."""

import importlib.util
from functools import cache
from pathlib import Path

from tablegate.gateway.contract import catalogue
from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.binder.problems import ContractError
from tablegate.gateway.contract.descriptors import DescriptorError, load_descriptors
from tablegate.jobs.declared import SourceLine


def examples_directory() -> Path:
    """Return the directory of the example tables; it is not there where the examples are not installed."""
    found = importlib.util.find_spec("tablegate")
    assert found is not None, "this module is of it"
    portions = [Path(portion, "examples", "tables") for portion in found.submodule_search_locations or ()]
    return next((portion for portion in portions if portion.is_dir()), portions[0])


def contract_path(contract: str, declared_at: SourceLine) -> Path:
    """Return a contract's path: from the declaration's directory upwards, then among the examples.

    Raise `ValueError` where it is in none of them.
    """
    declared_in = Path(declared_at.file).resolve().parent
    for directory in (declared_in, *declared_in.parents, examples_directory().with_name("contracts")):
        if (directory / contract).is_file():
            return directory / contract
    raise ValueError(f'contract "{contract}" is neither in {declared_in} nor above it; correct the path')


def table_of_contract(name: str, contract: str, declared_at: SourceLine) -> catalogue.Table:
    """Return a table of a contract; raise `ValueError` where there is none, and `ContractError`."""
    path = contract_path(contract, declared_at)
    bound = _tables(path, path.stat().st_mtime_ns).get(name)
    if bound is None:
        raise ValueError(f'contract "{path}" has no table "{name}"; give the table its name')
    return bound


@cache  # a declaration is asked for the fields of its sources again and again
def _tables(path: Path, changed_ns: int) -> dict[str, catalogue.Table]:  # noqa: ARG001 - a file that changed is another
    try:
        return dict(bind(load_descriptors(path)).tables)
    except DescriptorError as error:
        raise ValueError(str(error)) from None


def first_problem(error: ContractError, path: Path) -> str:
    """Return what is wrong with a contract in one sentence."""
    more = f" (and {len(error.problems) - 1} more: tablegate check {path})" if len(error.problems) > 1 else ""
    return f"{error.problems[0]}{more}"
