"""The entrypoint of the job's image, started as Spark on Kubernetes starts its pods; without a Kubernetes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tablegate.examples.demo.kafka import free_port
from tests.kit.programs.deployment import DEPLOY

pytestmark = pytest.mark.jvm

ENTRYPOINT = str(DEPLOY / "spark" / "entrypoint.sh")


def environment(**more: str) -> dict[str, str]:
    """Return the environment of the image, as this machine has it."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": programs, "SPARK_LOCAL_IP": "127.0.0.1", **more}


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


def test_other_commands_are_run_as_they_are() -> None:
    echo = str(shutil.which("echo"))
    done = subprocess.run([ENTRYPOINT, echo, "a b", "c"], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "a b c\n"
