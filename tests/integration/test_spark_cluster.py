"""A job on a Spark standalone cluster, by the commands of docker-compose.yml."""

import json
import sys
import uuid
from pathlib import Path

import pytest

from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.contract.rows import row_schema
from tablegate.jobs.jars.jars import cache_directory, jars
from tablegate.jobs.kafka.topics import KafkaAdmin
from tablegate.jobs.planning.declarations import load_contract, load_table
from tablegate.jobs.publishing import spark_jars
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.job.process import Changelog, JobProcess, wait_until
from tests.kit.job.ratings_job import PARTITIONS, fold_source, some_ratings, write_job
from tests.kit.job.scores import application
from tests.kit.job.scores.declared import Scores, write_contract
from tests.kit.job.shop.written import ShopRows, write_shop
from tests.kit.programs.deployment import ROOT, command_line
from tests.kit.programs.kafka import NewRecord, new_topic, produce
from tests.kit.programs.spark_cluster import CORES, EXECUTOR_MB, SparkCluster, spark_environment

pytestmark = pytest.mark.jvm

RATINGS = 1_000
REGISTRY = "--schema-registry="


def submitted(cluster: SparkCluster, job: str, broker: Broker, directory: Path) -> JobProcess:
    """Start a job by spark-submit."""
    replacements = {
        "spark://spark-master:7077": cluster.url,
        "/opt/tablegate/jars": str(cache_directory()),
        "/opt/job/lib/python3.11/site-packages": str(ROOT / "streamjobs"),
        "kafka:9092": broker.bootstrap,
        "/var/lib/tablegate/checkpoints": str(directory / "checkpoints"),
        "=ratings": f"={job}",
        "-memory=1g": f"-memory={EXECUTOR_MB}m",
        "-memory=2g": f"-memory={EXECUTOR_MB}m",
    }
    command = [word for word in command_line("ratings", replacements) if not word.startswith(REGISTRY)]
    command[0] = str(Path(sys.executable).with_name(command[0]))
    return JobProcess(directory / "logs", command=command, environment=spark_environment(directory))


def test_submitted_job_waits_for_workers_and_keeps_its_table(broker: Broker, tmp_path: Path) -> None:
    name = f"clustered_{uuid.uuid4().hex[:12]}"
    source = new_topic(broker.bootstrap, PARTITIONS, prefix="ratings")
    job = write_job(tmp_path, name, source)
    contract = load_contract(load_table(job))
    schemas = {1: json.dumps(row_schema(contract))}
    produce(broker.bootstrap, source, some_ratings(RATINGS, seed=1))
    wanted = fold_source(broker.bootstrap, source)
    assert jars("spark")
    assert CORES < 2 * PARTITIONS + 2 <= 2 * CORES, "one worker must not do, two must"

    with SparkCluster(tmp_path / "spark") as cluster:
        cluster.start_worker()
        with submitted(cluster, job, broker, tmp_path) as running:
            running.wait_for("waiting_for_slots")
            cluster.start_worker()
            running.wait_for("running")
            changelog = Changelog(broker.bootstrap, f"{name}-g1-changelog", contract, PARTITIONS)
            wait_until("rows of all ratings", lambda: changelog.rows(schemas) == wanted, running)
            changelog.close()
            assert 'metrics_master_workers_Value{type="gauges"} 2' in cluster.master.metrics("MasterUI")
            for worker in cluster.workers:
                assert 'metrics_worker_executors_Value{type="gauges"} 1' in worker.metrics("WorkerUI")


@pytest.mark.long
def test_workers_run_the_functions_of_a_declaration(broker: Broker, tmp_path: Path) -> None:
    prefix = f"clustered{uuid.uuid4().hex[:8]}_"
    file = write_shop(tmp_path / "shop", prefix)
    contract = file.with_name("shop.proto")
    topic = f"{prefix}visits_of_users"
    KafkaAdmin(broker.bootstrap).ensure(topic, {}, new_partition_count=2)
    visits = [{"user": user, "pages": 2 * user, "at": "2026-01-01T12:00:00Z"} for user in range(1, 4)]
    produce(broker.bootstrap, topic, [NewRecord(None, json.dumps(visit).encode()) for visit in visits])
    with SparkCluster(tmp_path / "spark") as cluster:
        cluster.start_worker()
        with (
            submitted(cluster, f"{file}:{prefix}visits", broker, tmp_path) as running,
            GatewayProcess(tmp_path / "data", broker.bootstrap, contract=contract, workers=1) as gateway,
        ):
            running.wait_for("running")
            rows = ShopRows(gateway, contract, prefix)
            wanted = [(1, "odd", 1.0), (2, "even", 2.0), (3, "odd", 3.0)]
            soon(lambda: rows.of("visits", "user", "segment", "score") == wanted, "rows of the workers", 120)


@pytest.mark.long
def test_a_submitted_application_publishes_what_it_has(broker: Broker, tmp_path: Path) -> None:
    name = f"submitted_{uuid.uuid4().hex[:8]}"
    contract = write_contract(tmp_path, name)
    topic = new_topic(broker.bootstrap, partitions=2, prefix="visits")
    produce(broker.bootstrap, topic, [NewRecord(None, b"%d" % user) for user in range(4)])
    with SparkCluster(tmp_path / "spark") as cluster:
        cluster.start_worker()
        command = [
            str(Path(sys.executable).with_name("spark-submit")),
            f"--master={cluster.url}",
            f"--executor-memory={EXECUTOR_MB}m",
            f"--jars={spark_jars()}",
            "--conf=spark.sql.shuffle.partitions=2",
            application.__file__,
            *(broker.bootstrap, topic, name, str(contract), str(tmp_path / "checkpoint")),
        ]
        with (
            JobProcess(tmp_path / "logs", command=command, environment=spark_environment(tmp_path)) as running,
            GatewayProcess(tmp_path / "data", broker.bootstrap, contract=contract, workers=1) as gateway,
        ):
            scores = Scores(gateway, contract)
            running.wait_for("batch")
            wanted = {user: (user * 0.5, "half") for user in range(4)}
            soon(lambda: scores.all() == wanted, "rows of the workers", 60)
            for worker in cluster.workers:
                assert 'metrics_worker_executors_Value{type="gauges"} 1' in worker.metrics("WorkerUI")
