"""The public names: what users may import, and that nothing else looks public."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

PUBLIC = (
    "tablegate.jobs",
    "tablegate.jobs.publishing",
    "tablegate.jobs.testing",
    "tablegate.client",
    "tablegate.client.local",
)
GOLDEN = Path(__file__).parents[1] / "golden/public_names.txt"


@pytest.mark.parametrize("name", PUBLIC)
def test_all_public_names_are_listed_and_sorted(name: str) -> None:
    module = importlib.import_module(name)
    public = {
        key for key, value in vars(module).items() if not key.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public == set(module.__all__)
    assert [*module.__all__] == sorted(module.__all__, key=_as_ruff_sorts)


def test_the_public_names_are_those_that_users_were_promised() -> None:
    """A name that goes breaks somebody's program: change the file only with a line in the changelog."""
    names = [f"{module}.{name}" for module in PUBLIC for name in importlib.import_module(module).__all__]
    assert names == GOLDEN.read_text().splitlines()


def test_a_declaration_imports_no_spark_and_no_kafka() -> None:
    program = (
        "import sys; from tablegate.jobs import *; import tablegate.examples.tables.ratings; "
        "print(sorted({'pyspark', 'pyarrow', 'py4j', 'confluent_kafka', 'grpc'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name
