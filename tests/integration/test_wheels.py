"""The wheels, installed where there is no checkout: who owns what, what each needs, what commands say without it."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tablegate.examples import CONTRACTS
from tests.kit.programs.wheels import PROJECTS, ROOT, Environment, build_wheels, files_of, wheel_of

RATINGS = CONTRACTS / "examples/ratings/v1/ratings.proto"
GATEWAY_BYTES_MAX = 90_000_000
DEMO_TIMEOUT_S = 280
PACKAGES = {
    "tablegate": {"tablegate/examples"},
    "tablegate-client": {"tablegate/client"},
    "tablegate-gateway": {"tablegate/gateway"},
    "tablegate-jobs": {"tablegate/jobs"},
    "tablegate-proto": {"tablegate/v1", "tablegate/internal"},
}
# What a user may have in the directory where they work: modules of the names of ours and of those that ours import.
NAMES = ("confluent_kafka", "gateway", "google", "grpc", "grpc_tools", "pyspark", "redis", "rich", "tablegate", "typer")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheels")
    build_wheels(directory)
    return directory


@pytest.fixture(scope="module")
def gateway_only(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("gateway-only"), wheels, "tablegate-gateway")


@pytest.fixture(scope="module")
def everything(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    directory = tmp_path_factory.mktemp("everything")
    return Environment(directory, wheels, "tablegate", also=["mypy", "pytest"])


@pytest.fixture
def shadows(tmp_path: Path) -> Path:
    """A directory of packages and modules that must never be imported."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise RuntimeError('{name} of the working directory')\n")
    for name in ("json", "logging", "typing"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name} of the working directory')\n")
    return tmp_path


def test_each_file_has_one_owner(wheels: Path) -> None:
    files = {name: files_of(wheel_of(name, wheels)) for name in PROJECTS}
    assert {name: {"/".join(file.split("/")[:2]) for file in owned} for name, owned in files.items()} == PACKAGES
    assert Counter(file for owned in files.values() for file in owned).most_common(1)[0][1] == 1
    for name, packages in PACKAGES.items():
        assert {f"{package}/py.typed" for package in packages} <= files[name]
        assert _in_checkout(name, packages) - files[name] == set(), f"{name} lacks files of the checkout"
    assert {"tablegate/v1/options.proto", "tablegate/v1/options_pb2.py"} <= files["tablegate-proto"]


def _in_checkout(name: str, packages: Iterable[str]) -> set[str]:
    root = ROOT / ("examples" if name == "tablegate" else PROJECTS[name])
    found = (path for package in packages for path in (root / package).rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix() for path in found if "__pycache__" not in path.parts}


def test_a_gateway_is_small_and_brings_no_spark(gateway_only: Environment) -> None:
    assert "No broken requirements" in gateway_only.pip("check")
    names = {one["name"] for one in json.loads(gateway_only.pip("list", "--format", "json"))}
    assert {"tablegate-gateway", "tablegate-proto"} <= names
    absent = {"pyspark", "pyarrow", "grpcio-tools", "pandas", "tablegate", "tablegate-jobs", "tablegate-client"}
    assert not names & absent
    assert gateway_only.installed_bytes() <= GATEWAY_BYTES_MAX


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["job", "run", "x.py", "--bootstrap", "localhost:1"],
            "needs tablegate.jobs, which is not installed: pip install tablegate-jobs",
        ),
        (["job", "--help"], "pip install tablegate-jobs"),
        (["demo", "--once"], "needs tablegate.examples, which is not installed: pip install tablegate"),
        (["produce-sample", "--bootstrap", "localhost:1"], "pip install tablegate"),
        (["subscribe", "ratings"], "needs tablegate.client, which is not installed: pip install tablegate-client"),
        (["check", str(RATINGS)], 'needs the protobuf compiler: pip install "tablegate-gateway[compile]", or give a'),
    ],
)
def test_a_gateway_alone_says_what_a_command_needs(
    gateway_only: Environment, tmp_path: Path, words: list[str], sentence: str
) -> None:
    done = gateway_only.run("tablegate", *words, cwd=tmp_path)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not done.stdout or words[-1] == "--help"


def test_a_gateway_alone_reads_a_descriptor_set(gateway_only: Environment, tmp_path: Path) -> None:
    from tablegate.gateway.contract.descriptors import load_descriptors

    (tmp_path / "ratings.binpb").write_bytes(load_descriptors(RATINGS).SerializeToString())
    done = gateway_only.run("tablegate", "check", "ratings.binpb", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "key (movie_id int64)" in done.stdout


def test_the_client_comes_and_goes(wheels: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "environment", wheels, "tablegate-gateway[compile]", "tablegate-client")
    asked = environment.run("tablegate", "subscribe", "ratings", "--address", "127.0.0.1:1", cwd=tmp_path)
    assert "no gateway answers at 127.0.0.1:1" in asked.stderr
    environment.pip("uninstall", "--yes", "tablegate-client")
    assert "No broken requirements" in environment.pip("check")
    asked = environment.run("tablegate", "subscribe", "ratings", cwd=tmp_path)
    assert "pip install tablegate-client" in asked.stderr
    assert environment.run("tablegate", "check", str(RATINGS), cwd=tmp_path).returncode == 0
    environment.pip("install", "--quiet", "--no-index", "--no-deps", str(wheel_of("tablegate-client", wheels)))
    environment.pip("uninstall", "--yes", "tablegate-gateway")
    done = environment.run("python", "-c", "import tablegate.client, tablegate.v1.query_pb2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_all_together_want_nothing_more(everything: Environment, tmp_path: Path) -> None:
    assert "No broken requirements" in everything.pip("check")
    shown = everything.run("tablegate", "--version", cwd=tmp_path).stdout
    assert shown.split()[::2] == [
        "tablegate",
        *(f"tablegate-{name}" for name in ("gateway", "jobs", "client", "proto")),
    ]


def test_the_working_directory_shadows_nothing(everything: Environment, shadows: Path) -> None:
    for words in (["--help"], ["check", str(RATINGS)], ["job", "--help"], ["subscribe", "--help"]):
        done = everything.run("tablegate", *words, cwd=shadows)
        assert done.returncode == 0, done.stderr


def test_a_new_project_is_typed(everything: Environment, tmp_path: Path) -> None:
    assert everything.run("tablegate", "new", "shop", cwd=tmp_path).returncode == 0
    done = everything.run("python", "-m", "mypy", "--strict", ".", cwd=tmp_path / "shop")
    assert done.returncode == 0, done.stdout
    assert "no issues found in 2 source files" in done.stdout


def test_what_is_said_of_types_is_read(everything: Environment, tmp_path: Path) -> None:
    """`py.typed` is in each wheel: else all names would be Any, and mypy would find nothing wrong here."""
    (tmp_path / "wrong.py").write_text(
        "from tablegate.client import TokenFile\n"
        "from tablegate.gateway.contract.types import Partition\n"
        "from tablegate.jobs import Source\n"
        "from tablegate.v1.query_pb2 import ReadInfo\n"
        "TokenFile(1)\nPartition('x')\nSource(1)\nReadInfo(none=1)\n"
    )
    found = everything.run("python", "-m", "mypy", "--strict", "wrong.py", cwd=tmp_path).stdout.splitlines()
    assert {line.partition(":")[2].partition(":")[0] for line in found[:-1] if "error:" in line} == {"5", "6", "7", "8"}


@pytest.mark.jvm
def test_a_new_project_passes_its_own_test(everything: Environment, tmp_path: Path) -> None:
    assert everything.run("tablegate", "new", "shop", cwd=tmp_path).returncode == 0
    done = everything.run("python", "-m", "pytest", "-q", cwd=tmp_path / "shop", timeout_s=DEMO_TIMEOUT_S)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.jvm
def test_the_demo_runs_in_a_directory_of_shadows(everything: Environment, shadows: Path) -> None:
    done = everything.run("tablegate", "demo", "--once", cwd=shadows, timeout_s=DEMO_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
