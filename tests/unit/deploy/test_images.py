"""The images, without Docker: what they are built from, and who runs in them."""

import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.kit.programs.deployment import DEPLOY, ROOT, compose

DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
STAGES = re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE)


def _stage(name: str) -> str:
    """Return the lines of a stage."""
    return re.split(r"^FROM .*$", DOCKERFILE, flags=re.MULTILINE)[[stage for _, stage in STAGES].index(name) + 1]


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DEPLOY / "Dockerfile"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_services_are_built_from_stages_that_do_not_run_as_root() -> None:
    targets = {service["build"]["target"] for service in compose()["services"].values() if "build" in service}
    assert targets == {"gateway", "job"}
    for target in targets:
        assert re.findall(r"^USER (.+)$", _stage(target), re.MULTILINE)[-1:] == ["10001:10001"]
    assert "--uid 10001 --gid tablegate" in _stage("base")


def test_bases_are_pinned_to_the_python_of_the_paths() -> None:
    bases = {base for base, _ in STAGES} - {stage for _, stage in STAGES}
    assert len(bases) == 1, "all stages have the same Python"
    found = re.fullmatch(r"python:(3\.\d+)\.\d+-slim-\w+", bases.pop())
    assert found is not None
    used = set(re.findall(r"/lib/python(3\.\d+)/", DOCKERFILE + (ROOT / "docker-compose.yml").read_text()))
    assert used == {found[1]}


def test_everything_that_is_copied_is_there_and_let_through() -> None:
    allowed = [
        line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")
    ]
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)]
    sources = {source for words in copied for source in words}
    assert sources == set(allowed)
    assert all((ROOT / source).exists() for source in sources)


def test_contract_and_script_are_where_the_services_look_for_them() -> None:
    contract = "/opt/contracts/examples/ratings/v1/ratings.proto"
    assert f"--contract={contract}" in compose()["services"]["gateway-1"]["entrypoint"]
    assert (ROOT / "examples/tablegate/examples" / contract.removeprefix("/opt/")).is_file()
    assert " /opt/contracts\n" in _stage("gateway")
    (script,) = (word for word in compose()["services"]["ratings"]["command"] if word.endswith(".py"))
    prefix = "/opt/job/lib/python3.11/site-packages/"
    assert script.startswith(prefix)
    assert (ROOT / "streamjobs" / script.removeprefix(prefix)).is_file()
    assert "--jars=/opt/tablegate/jars/spark/*.jar" in compose()["services"]["ratings"]["command"]
    assert "TABLEGATE_CACHE=/opt/tablegate\n" in _stage("job")


def _packages(requirement: str) -> dict[str, str]:
    """Return what `runtime_lock.py` leaves of the lock: name → its lines."""
    command = [sys.executable, str(DEPLOY / "runtime_lock.py"), requirement]
    text = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    return {block.partition("==")[0]: block for block in re.split(r"\n(?!\s)", text.rstrip())}


@pytest.mark.tools
def test_images_have_what_runs_and_no_tools() -> None:
    job, gateway = _packages("tablegate"), _packages("tablegate-gateway[compile]")
    assert {"pyspark", "py4j", "pyarrow", "grpcio", "confluent-kafka", "fastavro", "protobuf", "pyjwt"} <= set(job)
    assert {"grpcio-tools", "lmdb", "redis"} <= set(gateway) < set(job)
    assert not {"pyspark", "py4j", "pyarrow", "avro", "pyjwt", "cryptography"} & set(gateway)
    tools = ("pytest*", "mypy*", "ruff", "hypothesis", "pre-commit", "buf-bin")
    assert [name for name in job for tool in tools if fnmatch(name, tool)] == []
    lock = (ROOT / "requirements.lock").read_text()
    assert all(block in lock and "--hash=sha256:" in block for block in job.values())
