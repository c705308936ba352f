"""Jobs as managed Spark starts them: the command of the page, and the entrypoint of the image; without a cloud."""

import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import yaml

from tablegate.examples.demo.kafka import Broker, free_port
from tablegate.gateway.contract.rows import row_schema
from tablegate.jobs.jars.jars import jars
from tablegate.jobs.planning.declarations import load_contract, load_table
from tests.kit.docs.pages import DOCS, blocks
from tests.kit.job.process import Changelog, JobProcess, wait_until
from tests.kit.job.ratings_job import PARTITIONS, fold_source, some_ratings, write_job
from tests.kit.programs.deployment import DEPLOY, ROOT
from tests.kit.programs.kafka import new_topic, produce

pytestmark = pytest.mark.jvm

ENTRYPOINT = str(DEPLOY / "spark" / "entrypoint.sh")
SPEC = yaml.safe_load((DEPLOY / "kubernetes" / "spark-application.yaml").read_text())["spec"]
PAGE = DOCS / "how-to/run-jobs-on-managed-spark.md"
RATINGS = 300


def environment(**more: str) -> dict[str, str]:
    """Return the environment of the image, as this machine has it."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": programs, "SPARK_LOCAL_IP": "127.0.0.1", **more}


def test_a_driver_keeps_a_table(broker: Broker, tmp_path: Path) -> None:
    """All is as in its pod, but that its tasks run in itself: no Kubernetes is there to start executors."""
    name = f"pods_{uuid.uuid4().hex[:8]}"
    source = new_topic(broker.bootstrap, PARTITIONS, prefix="ratings")
    job = write_job(tmp_path, name, source)
    contract = load_contract(load_table(job))
    produce(broker.bootstrap, source, some_ratings(RATINGS, seed=1))
    wanted = fold_source(broker.bootstrap, source)
    classes = {key: f"{jars('spark')[0].parent}/*" for key in SPEC["sparkConf"]}
    properties = {**classes, "spark.master": "local[6]", "spark.submit.deployMode": "cluster"}
    properties["spark.kubernetes.submitInDriver"] = "true"
    (tmp_path / "spark.properties").write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    replacements = {"/etc/tablegate/declarations/orders.py": job, "kafka:9092": broker.bootstrap}
    replacements |= {"/var/lib/tablegate": str(tmp_path), "0.0.0.0:50071": f"127.0.0.1:{free_port()}"}
    arguments = list(SPEC["arguments"])
    for old, new in replacements.items():
        arguments = [word.replace(old, new) for word in arguments]
    script = SPEC["mainApplicationFile"].replace("/opt/job/lib/python3.11/site-packages", str(ROOT / "streamjobs"))
    command = [ENTRYPOINT, "driver", "--properties-file", str(tmp_path / "spark.properties")]
    command += ["--class", "org.apache.spark.deploy.PythonRunner", script, *arguments, "--mode", "microbatch"]
    variables = environment(SPARK_DRIVER_BIND_ADDRESS="127.0.0.1")
    with JobProcess(tmp_path / "logs", command=command, environment=variables) as running:
        running.wait_for("running")
        changelog = Changelog(broker.bootstrap, f"{name}-g1-changelog", contract, PARTITIONS)
        schemas = {1: json.dumps(row_schema(contract))}
        wait_until("rows of all ratings", lambda: changelog.rows(schemas) == wanted, running)
        changelog.close()


def test_an_executor_asks_its_driver(tmp_path: Path) -> None:
    """No driver is there; that it is asked for shows that Spark has understood all that the executor was told."""
    driver = f"127.0.0.1:{free_port()}"
    variables = environment(
        SPARK_DRIVER_URL=f"spark://CoarseGrainedScheduler@{driver}",
        SPARK_EXECUTOR_ID="1",
        SPARK_EXECUTOR_CORES="2",
        SPARK_EXECUTOR_MEMORY="256m",
        SPARK_APPLICATION_ID="spark-1",
        SPARK_EXECUTOR_POD_IP="127.0.0.1",
        SPARK_EXECUTOR_POD_NAME="orders-exec-1",
        SPARK_RESOURCE_PROFILE_ID="0",
        SPARK_CONF_DIR=str(tmp_path),
        SPARK_CLASSPATH=f"{tmp_path}/*",
        SPARK_JAVA_OPT_10="-Dtenth=10 has spaces",
        SPARK_JAVA_OPT_9="-XX:TieredStopAtLevel=1",
        SPARK_JAVA_OPT_0="-Xlog:arguments=info:stdout",
    )
    done = subprocess.run(
        [ENTRYPOINT, "executor"], env=variables, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert re.search(rf"(Failed to connect to|Connection refused).*{driver}", done.stderr), done.stderr[-2_000:]
    assert "Usage: " not in done.stderr


@pytest.mark.long
def test_the_command_of_the_page_keeps_a_table(broker: Broker, tmp_path: Path) -> None:
    name = f"submitted_{uuid.uuid4().hex[:8]}"
    source = new_topic(broker.bootstrap, PARTITIONS, prefix="ratings")
    Path(write_job(tmp_path, name, source)).rename(tmp_path / "orders.py")
    contract = load_contract(load_table(str(tmp_path / "orders.py")))
    produce(broker.bootstrap, source, some_ratings(RATINGS, seed=1))
    wanted = fold_source(broker.bootstrap, source)
    [block] = [block for block in blocks(PAGE) if block.language == "bash"]
    script = f"cd {tmp_path}\n" + block.text.replace("spark-submit --master", "exec spark-submit --master")
    variables = environment(
        MASTER="local[2]", BOOTSTRAP=broker.bootstrap, CHECKPOINTS=str(tmp_path / "checkpoints"), PYTHONSAFEPATH="1"
    )
    with JobProcess(tmp_path / "logs", command=["bash", "-c", script], environment=variables) as running:
        running.wait_for("running")
        changelog = Changelog(broker.bootstrap, f"{name}-g1-changelog", contract, PARTITIONS)
        schemas = {1: json.dumps(row_schema(contract))}
        wait_until("rows of all ratings", lambda: changelog.rows(schemas) == wanted, running)
        changelog.close()


def test_other_commands_are_run_as_they_are() -> None:
    echo = str(shutil.which("echo"))
    done = subprocess.run([ENTRYPOINT, echo, "a b", "c"], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "a b c\n"
